// Runs a definition, or one of its phases, without a database: the same checks of payload and
// result, the same retries of phases and the same errors, against effects that remember.
import { v7 as uuidv7 } from 'uuid';
import type { Job, JobError } from '../jobs/model/job.ts';
import { loadConfig } from '../kernel/config.ts';
import { createLogger } from '../kernel/logger.ts';
import type { ContextParts } from '../worker/attempt/context.ts';
import type { HandlerEnd, HandlerRun } from '../worker/attempt/handler-run.ts';
import { invokeHere, parseCheckpoint, parsePayload } from '../worker/attempt/invoke.ts';
import { type PhaseEnd, runPhase as runOnePhase } from '../worker/attempt/run-phase.ts';
import { overallEnd } from '../worker/attempt/run-phases.ts';
import { type StopReason, stopReasonOf } from '../worker/attempt/stop-reason.ts';
import { toStorable } from '../worker/attempt/storable.ts';
import type { JobDefinition } from '../worker/handlers/define-job.ts';
import { HandlerRegistry } from '../worker/handlers/handler-registry.ts';
import { isRecoverable, toJobError } from '../worker/handlers/job-error.ts';
import { type Remembered, remember } from './remembered-effects.ts';

export interface TestOptions {
  payload?: unknown;
  attempt?: number;
  targetId?: string;
  /** What an earlier attempt left. */
  checkpoint?: unknown;
  /** Results of phases that count as completed: `runHandler` does not run them again. */
  phaseResults?: Record<string, unknown>;
  tokensUsed?: number;
  tokenLimit?: number;
  /** Abort it to stop the handler; its reason may be a StopReason, by default `{ kind: 'canceled' }`. */
  signal?: AbortSignal;
}

export interface TestRun extends Remembered {
  status: 'completed' | 'partial' | 'failed' | 'skipped' | 'stopped';
  result: unknown;
  error: JobError | undefined;
  /** Whether the job would be tried again, attempts permitting. */
  recoverable: boolean;
  stoppedBy: StopReason | undefined;
  phases: Record<string, PhaseEnd['status']>;
}

/** The whole job: its `run`, or all its phases in order. */
export async function runHandler(definition: JobDefinition, options: TestOptions = {}): Promise<TestRun> {
  const fake = fakeRun(definition, options);
  const phases: TestRun['phases'] = {};
  const end = await runAll(definition, options, fake, phases).catch(
    (error): HandlerEnd => ({
      kind: 'failed',
      error: toJobError(error),
      recoverable: isRecoverable(error, fake.run.job, definition.retry),
    }),
  );
  const stoppedBy = stopReasonOf(fake.run.signal);
  const isStopped = end.kind === 'failed' && stoppedBy !== undefined;
  return {
    ...fake.remembered,
    status: isStopped ? 'stopped' : end.kind,
    result: end.kind === 'failed' ? undefined : end.result,
    error: end.kind === 'completed' ? undefined : end.error,
    recoverable: end.kind === 'failed' && !isStopped && end.recoverable,
    stoppedBy,
    phases,
  };
}

/** One phase, with the results of those before it from `phaseResults`. */
export async function runPhase(definition: JobDefinition, name: string, options: TestOptions = {}): Promise<TestRun> {
  const fake = fakeRun(definition, options);
  const end = await onePhase(definition, name, fake, { ...options.phaseResults });
  return {
    ...fake.remembered,
    status: end.status === 'lost' ? 'stopped' : end.status,
    result: 'result' in end ? end.result : undefined,
    error: end.status === 'failed' ? end.error : undefined,
    recoverable: end.status === 'failed' && end.recoverable,
    stoppedBy: stopReasonOf(fake.run.signal),
    phases: { [name]: end.status },
  };
}

interface FakeRun {
  run: HandlerRun;
  parts: ContextParts;
  remembered: Remembered;
}

async function runAll(
  definition: JobDefinition,
  options: TestOptions,
  fake: FakeRun,
  statuses: TestRun['phases'],
): Promise<HandlerEnd> {
  if (definition.phases === undefined) return runWhole(definition, fake);
  const results: Record<string, unknown> = { ...options.phaseResults };
  const ends = new Map<string, Exclude<PhaseEnd, { status: 'stopped' | 'lost' }>>();
  for (const { name, when, tolerateFailure } of definition.phases) {
    let end: PhaseEnd;
    if (name in results) end = { status: 'completed', result: results[name] };
    else if (
      when !== undefined &&
      !(await when({ payload: fake.parts.payload, phaseResults: () => ({ ...results }) }))
    ) {
      end = { status: 'skipped', message: 'Its condition was false' };
    } else end = await onePhase(definition, name, fake, results);
    statuses[name] = end.status;
    if (end.status === 'stopped' || end.status === 'lost') throw new Error('stopped');
    ends.set(name, end);
    if (end.status === 'completed' || end.status === 'partial') results[name] = end.result;
    if (end.status === 'failed' && !tolerateFailure) {
      return { kind: 'failed', error: { ...end.error, phase: name }, recoverable: end.recoverable };
    }
  }
  return overallEnd(ends, results);
}

async function runWhole(definition: JobDefinition, { run, parts }: FakeRun): Promise<HandlerEnd> {
  let partial: string | undefined;
  const onPartial = (reason: string) => {
    partial = reason;
  };
  const stored = toStorable(
    await invokeHere(definition, { ...parts, onPartial }),
    run.config.resultLimitBytes,
    'The result',
  );
  if (!stored.ok) return { kind: 'failed', error: stored.error, recoverable: false };
  if (partial === undefined) return { kind: 'completed', result: stored.value };
  return { kind: 'partial', result: stored.value, error: { code: 'PARTIAL', message: partial } };
}

async function onePhase(
  definition: JobDefinition,
  name: string,
  { run, parts }: FakeRun,
  results: Record<string, unknown>,
): Promise<PhaseEnd> {
  const phases = definition.phases ?? [];
  const index = phases.findIndex((phase) => phase.name === name);
  const phase = phases[index];
  if (phase === undefined) throw new Error(`job "${definition.type}" has no phase "${name}"`);
  return runOnePhase({
    phase,
    run,
    parts: { ...parts, phase: { name, index, count: phases.length }, results },
    invoke: (given) => invokeHere(definition, given),
    isolated: false,
    begin: async () => true,
  });
}

function fakeRun(definition: JobDefinition, options: TestOptions): FakeRun {
  const config = loadConfig({});
  const controller = new AbortController();
  const follow = () => controller.abort(options.signal && (stopReasonOf(options.signal) ?? { kind: 'canceled' }));
  if (options.signal?.aborted) follow();
  else options.signal?.addEventListener('abort', follow, { once: true });
  const limit = options.tokenLimit ?? config.tokenLimit;
  const stop = (reason: StopReason) => controller.abort(reason);
  const { effects, remembered } = remember(
    {
      tokenLimit: limit,
      resultLimitBytes: config.resultLimitBytes,
      onOverspent: (used) => stop({ kind: 'budgetSpent', used, limit }),
    },
    options.tokensUsed ?? 0,
  );
  const job = {
    id: uuidv7(),
    type: definition.type,
    targetId: options.targetId ?? null,
    attempt: options.attempt ?? 1,
    maxAttempts: definition.retry?.attempts ?? 1,
    createdAt: new Date().toISOString(),
    parentId: null,
    author: null,
    retry: null,
    payload: options.payload ?? {},
    checkpoint: options.checkpoint ?? null,
  };
  const run = {
    job: job as unknown as Job,
    config,
    logger: createLogger('silent'),
    signal: controller.signal,
    kill: new AbortController().signal,
    stop,
    jobTypes: new HandlerRegistry([definition]),
    leaseId: uuidv7(),
  } as unknown as HandlerRun;
  const parts: ContextParts = {
    job: { ...job, tenant: 'test' },
    leaseId: run.leaseId,
    stored: job,
    payload: parsePayload(definition, job.payload),
    stopping: controller,
    lastCheckpoint: parseCheckpoint(definition, job.checkpoint),
    results: {},
    effects: () => effects,
    onPartial: () => {},
  };
  return { run, parts, remembered };
}
