// Runs a definition, or one of its phases, without a database, with the code that runs attempts in a daemon. Reports of
// the handler are kept in memory.
import type { ResultOf } from '../client/job-reference.ts';
import { JobStopped, type StopReason, stopReasonOf } from '../durable/stop-reason.ts';
import type { Job } from '../jobs/model/job.ts';
import type { PhaseStatus } from '../jobs/model/job-values.ts';
import { loadConfig } from '../kernel/config.ts';
import { newId } from '../kernel/ids.ts';
import { createLogger } from '../kernel/logger.ts';
import { invokeHere } from '../worker/attempt/context.ts';
import type { Effects, HandlerRun } from '../worker/attempt/handler-run.ts';
import { createParts, runHandler as runAttempt } from '../worker/attempt/run-handler.ts';
import { type PhaseEnd, runPhase as runOnePhase } from '../worker/attempt/run-phase.ts';
import type { JobDefinition } from '../worker/handlers/define-job.ts';
import { HandlerRegistry } from '../worker/handlers/handler-registry.ts';
import { effectsInMemory, type GivenCall } from './effects-in-memory.ts';
import type { PhaseEndStatus, Remembered, TestOptions, TestRun } from './test-run.ts';

/** Runs the whole job: its `run`, or all its phases in order. */
export async function runHandler<J extends JobDefinition>(
  definition: J,
  options: TestOptions<J> = {},
): Promise<TestRun<ResultOf<J>>> {
  const { run, effects, remembered, phases } = fakeRun(definition, options);
  const end = await runAttempt(definition, run, effects);
  const stoppedBy = stopReasonOf(run.signal);
  const isStopped = end.kind === 'failed' && stoppedBy !== undefined;
  return {
    ...remembered,
    status: isStopped ? 'stopped' : end.kind,
    result: end.kind === 'failed' ? undefined : (end.result as ResultOf<J>),
    error: end.kind === 'completed' ? undefined : end.error,
    recoverable: end.kind === 'failed' && !isStopped && end.recoverable,
    stoppedBy,
    phases: endStatuses(phases),
  };
}

/** A phase that is still running at the end of the job was stopped. */
function endStatuses(phases: ReadonlyMap<string, PhaseStatus>): TestRun['phases'] {
  const begun = [...phases].filter(([, status]) => status !== 'pending');
  return Object.fromEntries(
    begun.map(([name, status]) => [name, status === 'running' ? 'stopped' : (status as PhaseEndStatus)]),
  );
}

/** Runs one phase, with the results of earlier ones from `phaseResults`. */
export async function runPhase<J extends JobDefinition, N extends keyof ResultOf<J> & string>(
  definition: J,
  name: N,
  options: TestOptions<J> = {},
): Promise<TestRun<ResultOf<J>[N]>> {
  const { run, effects, remembered } = fakeRun(definition, options);
  const phases = definition.phases ?? [];
  const index = phases.findIndex((phase) => phase.name === name);
  const phase = phases[index];
  if (phase === undefined) throw new Error(`job "${definition.type}" has no phase "${name}"`);
  const scope = { name, index, count: phases.length };
  const end: PhaseEnd | { status: 'stopped' } = await runOnePhase({
    phase,
    run,
    parts: { ...createParts(definition, run, () => effects), phase: scope, results: { ...options.phaseResults } },
    invoke: (given) => invokeHere(definition, given),
    isolated: false,
    beginAgain: async () => {},
  }).catch((error: unknown) => {
    if (error instanceof JobStopped) return { status: 'stopped' };
    throw error;
  });
  return {
    ...remembered,
    status: end.status,
    result: 'result' in end ? (end.result as ResultOf<J>[N]) : undefined,
    error: end.status === 'failed' ? end.error : undefined,
    recoverable: end.status === 'failed' && end.recoverable,
    stoppedBy: stopReasonOf(run.signal),
    phases: { [name]: end.status },
  };
}

interface FakeRun {
  run: HandlerRun;
  effects: Effects;
  remembered: Remembered;
  phases: ReadonlyMap<string, PhaseStatus>;
}

function fakeRun(definition: JobDefinition, options: TestOptions): FakeRun {
  const config = loadConfig({});
  const controller = new AbortController();
  const follow = () => controller.abort(options.signal && (stopReasonOf(options.signal) ?? { kind: 'canceled' }));
  if (options.signal?.aborted) follow();
  else options.signal?.addEventListener('abort', follow, { once: true });
  const limit = options.tokenLimit ?? config.tokenLimit;
  const stop = (reason: StopReason) => controller.abort(reason);
  const inMemory = effectsInMemory(
    {
      answers: options.answers ?? {},
      childResult: options.childResult ?? (() => null),
      tokenLimit: limit,
      resultLimitBytes: config.resultLimitBytes,
      budget: options.budget ?? {},
      onOverspent: (spent) => stop({ kind: 'budgetSpent', ...spent }),
      onTimeout: (phase, afterSeconds) => stop({ kind: 'timedOut', afterSeconds, phase }),
      onSuspend: (waiting, leftMs) => stop({ kind: 'suspended', waiting, leftMs }),
    },
    options.tokensUsed ?? 0,
    givenCalls(definition, options),
    options.events ?? {},
  );
  const job = {
    id: newId(),
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
    leaseId: newId(),
    tenant: { slug: 'test', settings: {} },
  } as unknown as HandlerRun;
  return { run, ...inMemory };
}

function givenCalls({ phases = [] }: JobDefinition, { stepResults = {}, phaseResults }: TestOptions): GivenCall[] {
  const results: Record<string, unknown> = phaseResults ?? {};
  const steps = Object.keys(stepResults).map((name, position): GivenCall => {
    return { name, kind: 'step', position, status: 'completed', result: stepResults[name] };
  });
  const done = phases.flatMap(({ name }, position): GivenCall[] => {
    return Object.hasOwn(results, name)
      ? [{ name, kind: 'phase', position, status: 'completed', result: results[name] }]
      : [];
  });
  return phases.length > 0 ? done : steps;
}
