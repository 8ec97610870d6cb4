// Runs a definition, or one of its phases, without a database, with the code that runs attempts in a daemon. What the
// handler reports is kept in memory.

import type { ResultOf } from '../client/job-reference.ts';
import type { StoredEvent } from '../jobs/attempt/event-waits.ts';
import type { PhaseChange } from '../jobs/attempt/phases.ts';
import type { ChildEnd } from '../jobs/flows/fenced-children.ts';
import type { Job } from '../jobs/model/job.ts';
import { findSpent, type Spent, sumOf, type Units } from '../jobs/model/job-budget.ts';
import { jobError } from '../jobs/model/job-errors.ts';
import { foreverMs, type Waiting } from '../jobs/model/waiting.ts';
import { checkAnswer } from '../jobs/questions/answer-schema.ts';
import type { QuestionState } from '../jobs/questions/ask.ts';
import type { AskedQuestion, GivenAnswer } from '../jobs/questions/question-request.ts';
import { loadConfig } from '../kernel/config.ts';
import { newId } from '../kernel/ids.ts';
import { createLogger } from '../kernel/logger.ts';
import { invokeHere } from '../worker/attempt/context.ts';
import type { HandlerRun } from '../worker/attempt/handler-run.ts';
import { type Effects, overallProgress, type PhaseScope } from '../worker/attempt/handler-run.ts';
import { createParts, runHandler as runAttempt } from '../worker/attempt/run-handler.ts';
import { runPhase as runOnePhase } from '../worker/attempt/run-phase.ts';
import type { PhaseStore, StoredPhase } from '../worker/attempt/run-phases.ts';
import { type StopReason, stopReasonOf } from '../worker/attempt/stop-reason.ts';
import { toStorable } from '../worker/attempt/storable.ts';
import type { JobDefinition } from '../worker/handlers/define-job.ts';
import { Fatal } from '../worker/handlers/handler-errors.ts';
import { HandlerRegistry } from '../worker/handlers/handler-registry.ts';
import type { PhaseEndStatus, Remembered, TestOptions, TestRun } from './test-run.ts';

/** Runs the whole job: its `run`, or all its phases in order. */
export async function runHandler<J extends JobDefinition>(
  definition: J,
  options: TestOptions<J> = {},
): Promise<TestRun<ResultOf<J>>> {
  const { run, effects, remembered } = fakeRun(definition, options);
  const phases = new PhasesInMemory(options.phaseResults ?? {});
  const end = await runAttempt(definition, run, { effects, phases });
  const stoppedBy = stopReasonOf(run.signal);
  const isStopped = end.kind === 'failed' && stoppedBy !== undefined;
  return {
    ...remembered,
    status: isStopped ? 'stopped' : end.kind,
    result: end.kind === 'failed' ? undefined : (end.result as ResultOf<J>),
    error: end.kind === 'completed' ? undefined : end.error,
    recoverable: end.kind === 'failed' && !isStopped && end.recoverable,
    stoppedBy,
    phases: phases.statuses(),
  };
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
  const end = await runOnePhase({
    phase,
    run,
    parts: { ...createParts(definition, run, () => effects), phase: scope, results: { ...options.phaseResults } },
    invoke: (given) => invokeHere(definition, given),
    isolated: false,
    begin: async () => true,
  });
  return {
    ...remembered,
    status: end.status === 'lost' ? 'stopped' : end.status,
    result: 'result' in end ? (end.result as ResultOf<J>[N]) : undefined,
    error: end.status === 'failed' ? end.error : undefined,
    recoverable: end.status === 'failed' && end.recoverable,
    stoppedBy: stopReasonOf(run.signal),
    phases: { [name]: end.status },
  };
}

class PhasesInMemory implements PhaseStore {
  readonly #rows = new Map<string, StoredPhase>();

  constructor(results: Record<string, unknown>) {
    for (const [name, result] of Object.entries(results)) {
      this.#rows.set(name, { name, status: 'completed', result, message: null });
    }
  }

  async open(names: readonly string[]): Promise<StoredPhase[]> {
    return names.flatMap((name) => this.#rows.get(name) ?? []);
  }

  async save(changes: PhaseChange[]): Promise<boolean> {
    for (const { name, status, result, message } of changes) {
      this.#rows.set(name, { name, status, result, message: message ?? null });
    }
    return true;
  }

  /** A phase that is still running at the end of the job was stopped. */
  statuses(): TestRun['phases'] {
    const rows = [...this.#rows.values()];
    return Object.fromEntries(
      rows.map(({ name, status }) => [name, status === 'running' ? 'stopped' : (status as PhaseEndStatus)]),
    );
  }
}

interface FakeRun {
  run: HandlerRun;
  effects: Effects;
  remembered: Remembered;
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
    options.stepResults ?? {},
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
  return { run, effects, remembered };
}

interface Limits {
  answers: NonNullable<TestOptions['answers']>;
  childResult(child: { type: string; payload: unknown }, position: number, call: string): unknown;
  tokenLimit: number;
  resultLimitBytes: number;
  budget: Units;
  onOverspent(spent: Spent): void;
  onTimeout(name: string, seconds: number): void;
  onSuspend(waiting: Waiting, leftMs: number): void;
}

/** The answer of the test, checked as one that a person gives. */
function answerFor(name: string, question: AskedQuestion, answers: Limits['answers']): QuestionState {
  const given = answers[name] ?? answers[question.title];
  if (given === undefined) {
    throw new Fatal(`the test has no answer to "${question.title}"; give one in answers["${name}"]`);
  }
  if (given === 'timeout' && question.on_timeout === 'fail') {
    const message = `Nobody answered the question "${question.title}" in time.`;
    return { status: 'failed', error: { ...jobError('QUESTION_EXPIRED', message), disposition: 'fatal' } };
  }
  const { action, ...answer } = given === 'timeout' ? flat(question.on_timeout as GivenAnswer) : given;
  return { status: 'completed', result: checkAnswer(question, { answer, action: action as string | undefined }) };
}

function flat({ answer, action }: GivenAnswer): Record<string, unknown> {
  return { ...answer, ...(action !== undefined && { action }) };
}

function remember(
  limits: Limits,
  tokensUsed: number,
  given: Record<string, unknown>,
  givenEvents: Record<string, readonly unknown[]>,
): { effects: Effects; remembered: Remembered } {
  const children = new Map<string, { id: string }>();
  const events = new Map(Object.entries(givenEvents).map(([name, data]) => [name, [...data]]));
  const remembered: Remembered = {
    progress: [],
    logs: [],
    tokensUsed,
    usage: {},
    children: [],
    checkpoint: undefined,
    leaseAsserts: 0,
    sleeps: [],
    questions: [],
    eventWaits: [],
    steps: { ...given },
  };
  const effects: Effects = {
    steps: {
      load: async () =>
        Object.entries(given).map(([name, result], position) => ({
          name,
          kind: 'step',
          position,
          parallel: true,
          status: 'completed',
          result,
          error: null,
          waitsUntil: null,
          leftMs: null,
        })),
      async save(ends) {
        for (const { name, status, result } of ends) if (status === 'completed') remembered.steps[name] = result;
      },
      timeOut: async (name, seconds) => limits.onTimeout(name, seconds),
      async openSleep({ name }, end) {
        remembered.sleeps.push({ name, ...end });
        return { until: 'until' in end ? end.until : new Date(Date.now() + end.ms).toISOString(), leftMs: 0 };
      },
      async children({ call, open }) {
        const jobs = open !== undefined && 'jobs' in open ? open.jobs : [];
        const made = jobs.map(({ type, payload, ...options }) => ({ id: newId(), type, payload, options }));
        remembered.children.push(...made);
        const ids = open !== undefined && 'ids' in open ? open.ids : made.map(({ id }) => id);
        const children = ids.flatMap((id) => remembered.children.find((child) => child.id === id) ?? []);
        const ends = children.map((child, n): ChildEnd => {
          const result = limits.childResult(child, n, call.name);
          return { id: child.id, type: child.type, status: 'SUCCESS', result: result ?? null, error: null };
        });
        return { total: ids.length, unfinished: 0, failed: null, bytes: 0, ends };
      },
      async openQuestion({ name }, question) {
        remembered.questions.push({ name, ...question });
        return answerFor(name, question, limits.answers);
      },
      closeQuestions: async () => {},
      async openEventWait({ name }, { event, match, ms }) {
        remembered.eventWaits.push({ name, event, match, timeoutSeconds: ms === null ? null : ms / 1000 });
        const data = events.get(event)?.shift();
        if (data !== undefined) return { kind: 'received', event: toReceived(event, data) };
        return ms === null ? { kind: 'open', until: undefined, leftMs: foreverMs } : { kind: 'timedOut' };
      },
      suspend: async (waiting, leftMs) => limits.onSuspend(waiting, leftMs),
    },
    progress(percent: number, message: string | undefined, phase: PhaseScope | undefined) {
      remembered.progress.push({ percent, overall: overallProgress(percent, phase), message, phase: phase?.name });
    },
    log: (level, message, data) => void remembered.logs.push({ level, message, data }),
    addUsage({ tokens = 0, ...units }) {
      remembered.tokensUsed += tokens;
      for (const [unit, amount] of Object.entries(units)) {
        remembered.usage[unit] = sumOf(remembered.usage[unit], amount);
      }
      const job = { type: '', targetId: null, tokenLimit: limits.tokenLimit, budget: limits.budget };
      const spent = findSpent(job, { ...remembered.usage, tokens: remembered.tokensUsed }, { tokenLimit: 0 });
      if (spent !== undefined) limits.onOverspent(spent);
    },
    async assertLease() {
      remembered.leaseAsserts += 1;
      return { validUntilMs: Number.POSITIVE_INFINITY };
    },
    async enqueue(key, type, payload, options) {
      const known = children.get(key);
      if (known !== undefined) return known;
      const child = { id: newId() };
      children.set(key, child);
      remembered.children.push({ ...child, type, payload, options });
      return child;
    },
    async checkpoint(state) {
      const stored = toStorable(state, limits.resultLimitBytes, 'The checkpoint');
      if (!stored.ok) throw new Fatal(stored.error.message, { code: stored.error.code });
      remembered.checkpoint = stored.value;
    },
    async flush() {},
  };
  return { effects, remembered };
}

function toReceived(name: string, data: unknown): StoredEvent {
  return { id: newId(), name, data, receivedAt: new Date().toISOString() };
}
