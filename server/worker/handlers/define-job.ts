// What a developer writes: a job type, its payload's schema, and one `run` or ordered phases.
// Types only, and `defineJob`, which checks the definition and infers payload and results.
import type { z } from 'zod';
import type { Priority } from '../../jobs/model/job-values.ts';
import type { BackoffPolicy } from '../../kernel/backoff.ts';
import type { Duration } from '../../kernel/duration.ts';
import type { AnswerOf, AskOptions, NoFields } from './ask-options.ts';
import { findLimitError, type JobLimit } from './job-limit.ts';

export interface RetryOptions extends Partial<BackoffPolicy> {
  /** Attempts in all, the first included. */
  attempts?: number;
  /** Which errors are retried besides `Recoverable`: none, all but `Fatal`, or those with these codes. */
  on?: 'recoverable' | 'any' | readonly string[];
}

export interface JobInfo {
  readonly id: string;
  readonly type: string;
  readonly tenant: string;
  readonly targetId: string | null;
  readonly attempt: number;
  readonly maxAttempts: number;
  readonly createdAt: string;
  readonly parentId: string | null;
  readonly author: string | null;
}

export interface Lease {
  readonly id: string;
  /** `<job id>:<attempt>:<lease id>`: pass it on with outside effects, so that the receiver can refuse a stale one. */
  readonly fence: string;
  /** Rejects, and stops the handler, if the lease is no longer held. Call it right before an outside effect. */
  assert(): Promise<void>;
}

export interface ChildOptions {
  targetId?: string;
  priority?: Priority;
  /** ISO time. */
  runAt?: string;
  maxAttempts?: number;
  /** Identifies this child among those of the same job; by default its position in the order of calls. */
  key?: string;
}

/** A child as `fanOut` enqueues it. */
export interface ChildJob extends ChildOptions {
  type: string;
  payload?: unknown;
}

export interface ChildrenOptions {
  /** `first` (default): the call rejects with the first child that fails. `all settled`: it returns how each ended. */
  onFailure?: 'first' | 'all settled';
  /** Identifies the call among the durable calls of the job; by default its number in the order of such calls. */
  name?: string;
}

export interface FanOutOptions extends Pick<ChildrenOptions, 'onFailure'> {
  /** How many children may be unfinished at once; by default all. */
  concurrency?: number;
}

/** How a child ended, for `onFailure: 'all settled'`. */
export interface ChildOutcome<R = unknown> {
  id: string;
  status: 'succeeded' | 'failed' | 'canceled';
  result?: R;
  error?: { code: string; message: string };
}

export interface StepOptions {
  /** Tries within one attempt of the job. */
  retry?: RetryOptions;
  /** Of one try. */
  timeoutSeconds?: number;
  /** Numbers calls with the same name: `step('send', fn, { key: i })`. */
  key?: string | number;
}

export interface StepContext {
  /** Aborted when the handler must stop, or the time of the step is up. */
  readonly signal: AbortSignal;
}

export interface SleepOptions {
  /** Identifies this sleep among the durable calls of the job; by default its number in the order of sleeps. */
  name?: string;
}

export interface EventWaitOptions<D = unknown> {
  /** Only an event whose data contains this, as Postgres's `@>` compares: `{ invoice: 7 }`. */
  match?: Record<string, unknown> | undefined;
  /** How long to wait at most. Without it the job waits without limit. */
  timeoutSeconds?: number | undefined;
  /** Checks and types the data. Data that it refuses fails the job with INVALID_EVENT. */
  schema?: z.ZodType<D> | undefined;
  /** Identifies this wait among the durable calls of the job; by default `event:invoice.paid#1`. */
  name?: string | undefined;
}

/** An event from outside. */
export interface ReceivedEvent<D = unknown> {
  /** As its sender gave it, else as it was generated. */
  id: string;
  name: string;
  data: D;
  receivedAt: string;
}

/** With a time limit it returns undefined when no event came in time. */
export interface WaitForEvent {
  <D = unknown>(
    name: string,
    options: EventWaitOptions<D> & { timeoutSeconds: number },
  ): Promise<ReceivedEvent<D> | undefined>;
  <D = unknown>(
    name: string,
    options?: EventWaitOptions<D> & { timeoutSeconds?: undefined },
  ): Promise<ReceivedEvent<D>>;
}

export interface LogFunction {
  (message: string, data?: Record<string, unknown>): void;
  warn(message: string, data?: Record<string, unknown>): void;
  error(message: string, data?: Record<string, unknown>): void;
}

/** `P` the payload, `R` the results of earlier phases by name, `C` the checkpoint. */
export interface JobContext<P = unknown, R = Record<string, unknown>, C = unknown> {
  readonly job: JobInfo;
  readonly payload: P;
  /** Aborted when the handler must stop; its reason is a `JobStopped`. */
  readonly signal: AbortSignal;
  /** What the last `checkpoint` of an earlier attempt stored. */
  readonly lastCheckpoint: C | undefined;
  readonly lease: Lease;
  readonly log: LogFunction;
  /** 0 to 100, of the phase if there are phases. Stored at once; many calls in a short time become one write. */
  progress(percent: number, message?: string): void;
  phaseResult<K extends keyof R & string>(name: K): R[K] | undefined;
  phaseResults(): Partial<R>;
  /**
   * Adds to what the job used over all attempts: `{ tokens: 1200, cents: 3 }`, in any units. Above a budget the handler is
   * stopped, and the job is held until a person raises it.
   */
  addUsage(usage: Record<string, number>): Promise<void>;
  /** Waits in this process. Rejects with `JobStopped` when the handler must stop. */
  sleep(ms: number): Promise<void>;
  /**
   * Runs the code and stores what it returned, as JSON. After a crash, retry, resume or wait the call returns the stored
   * result without running the code again. Each name once per run.
   */
  step<T>(name: string, run: (step: StepContext) => T | Promise<T>, options?: StepOptions): Promise<T>;
  /**
   * A durable sleep (`'3d'`, `'1h30m'`, or milliseconds): its end is stored. A long one suspends the job, which needs no
   * slot and no lease until then; the handler runs again from the top, and this call returns at once.
   */
  sleepFor(duration: Duration, options?: SleepOptions): Promise<void>;
  sleepUntil(time: Date | string, options?: SleepOptions): Promise<void>;
  /**
   * Asks a person, and returns the answer, checked and typed by the schema. The job waits without slot and lease, and the
   * handler runs again from the top when the answer has come. See docs/questions.md.
   */
  ask<S extends z.ZodObject = NoFields, const A extends string = never>(
    options: AskOptions<S, A>,
  ): Promise<AnswerOf<S, A>>;
  /**
   * Waits for an event that `POST /api/events/{name}` delivers, without a slot or lease: for one that comes, or has come
   * since the job was enqueued and was not returned by another call of this job.
   */
  readonly waitForEvent: WaitForEvent;
  /** Enqueues a child job in the same tenant; a retry of the call gets the same child. */
  enqueue(type: string, payload: unknown, options?: ChildOptions): Promise<{ id: string }>;
  /**
   * Enqueues one child per item, once, and waits for all of them: the job needs no slot and no lease meanwhile. Returns
   * their results in the order of the items.
   */
  fanOut<T, R = unknown>(
    name: string,
    items: readonly T[],
    toJob: (item: T, index: number) => ChildJob,
    options: FanOutOptions & { onFailure: 'all settled' },
  ): Promise<ChildOutcome<R>[]>;
  fanOut<T, R = unknown>(
    name: string,
    items: readonly T[],
    toJob: (item: T, index: number) => ChildJob,
    options?: FanOutOptions,
  ): Promise<R[]>;
  /** Waits in the same way for the children that this run has enqueued since the last such call, in their order. */
  waitForChildren<R = unknown>(options: ChildrenOptions & { onFailure: 'all settled' }): Promise<ChildOutcome<R>[]>;
  waitForChildren<R = unknown>(options?: ChildrenOptions): Promise<R[]>;
  /** Stores a state that the next attempt finds in `lastCheckpoint`. */
  checkpoint(state: C): Promise<void>;
  /** Marks the result as incomplete: the phase ends as partial, and the job as PARTIAL. */
  markPartial(reason: string): void;
}

export interface PhaseDefinition<P = unknown, N extends string = string, V = unknown, R = Record<string, unknown>> {
  name: N;
  run(context: JobContext<P, R>): V | Promise<V>;
  /** Checks what `run` returned. */
  result?: z.ZodType<V>;
  /** False skips the phase. */
  when?(context: { payload: P; phaseResults(): Partial<R> }): boolean | Promise<boolean>;
  /** A failure of this phase leaves the job PARTIAL instead of failing it. */
  tolerateFailure?: boolean;
  timeoutSeconds?: number;
  /** Tries of this phase within one attempt of the job. */
  retry?: RetryOptions;
}

/** `P` the payload as handlers get it, `C` the checkpoint, `I` the payload as it is enqueued, `T` the type. */
export interface JobOptions<P = unknown, C = unknown, I = unknown, T extends string = string> {
  /** Letters, digits, dots, dashes, underscores: `invoices.send`. */
  type: T;
  payload?: z.ZodType<P> & { readonly _zod: { readonly input: I } };
  checkpoint?: z.ZodType<C>;
  retry?: RetryOptions;
  /** Of one attempt; 0 for no limit. Default: the tenant's, else `JOB_TIMEOUT_SECONDS`. */
  timeoutSeconds?: number;
  /** `thread`: the handler runs in a worker thread, which is terminated if it does not stop. */
  isolation?: 'none' | 'thread';
  /** What a failure does to the lane: `block` (default) holds it, `continue` lets the next job run. */
  onError?: 'block' | 'continue';
  /** What a durable wait does to the lane: `keep` (default) holds it in order, `release` lets the next job run. */
  whileWaiting?: 'keep' | 'release';
  /** How often jobs of this type may start, and how many may run at once, for each tenant. */
  limits?: readonly JobLimit[];
}

/** The types of a job, for clients: what is enqueued, what the handler gets, what the job results in. */
interface JobSignature<I = unknown, P = unknown, R = unknown> {
  readonly input: I;
  readonly payload: P;
  readonly result: R;
}

/** A checked definition; created by `defineJob` only. */
export interface JobDefinition<T extends string = string, I = unknown, P = unknown, R = unknown>
  extends JobOptions<unknown, unknown, unknown, T> {
  readonly leasehold: typeof definitionMark;
  /** For the compiler only, never set: `import type` of a definition is enough to type its payload and result. */
  readonly types?: JobSignature<I, P, R>;
  // biome-ignore lint/suspicious/noExplicitAny: the payload's type is checked by its schema before it gets here.
  run?(context: JobContext<any, any, any>): unknown;
  // biome-ignore lint/suspicious/noExplicitAny: as above.
  phases?: readonly PhaseDefinition<any, string, any, any>[];
  /** The module that exports it, known once it was loaded from one. */
  file?: string;
  /** Runs its code elsewhere; set by the registry for `isolation: 'thread'`. */
  isolate?: Isolate;
}

/** Gets the parts of a context and the signal that ends the grace. */
// biome-ignore lint/suspicious/noExplicitAny: the parts belong to the worker; naming their type here would go in circles.
type Isolate = (parts: any, kill: AbortSignal) => Promise<unknown>;

const definitionMark = 'job/1';
const typePattern = /^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$/;

type Ph<P, N extends string, V, R> = PhaseDefinition<P, N, V, R>;
type And<R, N extends string, V> = R & { [K in N]: V };

/** Results by phase, as the job returns them; a phase that did not run has none. */
type Results<R> = { [K in keyof R]?: R[K] };

export function defineJob<P = unknown, C = unknown, I = P, const T extends string = string, R = unknown>(
  options: JobOptions<P, C, I, T> & {
    run(context: JobContext<P, Record<string, never>, C>): R | Promise<R>;
    phases?: never;
  },
): JobDefinition<T, I, P, R>;
/** Up to six phases know the results of those before them by type; see `phaseResult`. */
export function defineJob<
  P,
  const N1 extends string,
  V1,
  const N2 extends string = never,
  V2 = never,
  const N3 extends string = never,
  V3 = never,
  const N4 extends string = never,
  V4 = never,
  const N5 extends string = never,
  V5 = never,
  const N6 extends string = never,
  V6 = never,
  I = P,
  const T extends string = string,
>(
  options: JobOptions<P, unknown, I, T> & {
    phases: readonly [
      Ph<P, N1, V1, Record<never, never>>,
      Ph<P, N2, V2, And<unknown, N1, V1>>?,
      Ph<P, N3, V3, And<And<unknown, N1, V1>, N2, V2>>?,
      Ph<P, N4, V4, And<And<And<unknown, N1, V1>, N2, V2>, N3, V3>>?,
      Ph<P, N5, V5, And<And<And<And<unknown, N1, V1>, N2, V2>, N3, V3>, N4, V4>>?,
      Ph<P, N6, V6, And<And<And<And<And<unknown, N1, V1>, N2, V2>, N3, V3>, N4, V4>, N5, V5>>?,
    ];
    run?: never;
  },
): JobDefinition<
  T,
  I,
  P,
  Results<And<And<And<And<And<And<unknown, N1, V1>, N2, V2>, N3, V3>, N4, V4>, N5, V5>, N6, V6>>
>;
/** Any number of phases; results of earlier ones are `unknown`. */
export function defineJob<P = unknown, I = P, const T extends string = string>(
  options: JobOptions<P, unknown, I, T> & { phases: readonly PhaseDefinition<P>[]; run?: never },
): JobDefinition<T, I, P, Record<string, unknown>>;
export function defineJob(options: object): JobDefinition {
  const definition = { ...options, leasehold: definitionMark } as JobDefinition;
  const problem = findDefinitionError(definition);
  if (problem) throw new TypeError(problem);
  return definition;
}

export function isDefinition(value: unknown): value is JobDefinition {
  return typeof value === 'object' && value !== null && (value as JobDefinition).leasehold === definitionMark;
}

/** Why this is no job definition; undefined if it is one. @internal */
export function findDefinitionError(d: JobDefinition): string | undefined {
  if (typeof d.type !== 'string' || !typePattern.test(d.type)) {
    return `type must match ${typePattern.source}, not ${JSON.stringify(d.type)}`;
  }
  const at = `job "${d.type}"`;
  if ((d.run === undefined) === (d.phases === undefined)) return `${at} needs either run or phases`;
  if (d.run !== undefined && typeof d.run !== 'function') return `${at}: run must be a function`;
  if (d.payload !== undefined && typeof d.payload?.safeParse !== 'function')
    return `${at}: payload must be a zod schema`;
  const seconds = d.timeoutSeconds;
  if (seconds !== undefined && !(seconds >= 0)) return `${at}: timeoutSeconds must be 0 or more`;
  if (d.whileWaiting !== undefined && d.whileWaiting !== 'keep' && d.whileWaiting !== 'release')
    return `${at}: whileWaiting must be keep or release`;
  const limitError = findLimitError(d);
  if (limitError !== undefined) return `${at}: ${limitError}`;
  const attempts = d.retry?.attempts;
  if (attempts !== undefined && !(Number.isInteger(attempts) && attempts > 0)) {
    return `${at}: retry.attempts must be a whole number above 0`;
  }
  if (d.phases === undefined) return undefined;
  if (!Array.isArray(d.phases) || d.phases.length === 0) return `${at}: phases must be a list of at least one phase`;
  const names = new Set<string>();
  for (const phase of d.phases) {
    if (typeof phase?.name !== 'string' || !typePattern.test(phase.name))
      return `${at} has a phase without a good name`;
    if (names.has(phase.name)) return `${at} has two phases named "${phase.name}"`;
    if (typeof phase.run !== 'function') return `${at}: phase "${phase.name}" needs a run function`;
    names.add(phase.name);
  }
  return undefined;
}
