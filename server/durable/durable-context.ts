// The durable calls of a handler, in a daemon or in a remote worker: their functions and options. Types only.
import type { z } from 'zod';
import type { Priority } from '../jobs/model/job-values.ts';
import type { BackoffPolicy } from '../kernel/backoff.ts';
import type { Duration } from '../kernel/clock.ts';
import type { AnswerOf, AskOptions, NoFields } from './ask-options.ts';
import type { CallTimeout } from './call-options.ts';

export interface RetryOptions extends Partial<BackoffPolicy> {
  /** The total number of attempts, including the first. */
  attempts?: number;
  /** The errors that are retried besides `Recoverable`: none, all but `Fatal`, or those with these codes. */
  on?: 'recoverable' | 'any' | readonly string[];
}

export interface ChildOptions {
  /**
   * The queue of remote workers that run the child, whatever its type. By default it runs wherever its type is known.
   */
  queue?: string;
  targetId?: string;
  priority?: Priority;
  /** ISO time. */
  runAt?: string;
  maxAttempts?: number;
  /** Identifies this child among those of the same job; by default its position in the order of calls. */
  key?: string;
  /**
   * At most one job of the type holds the key at a time. No call waits for such a child, because it may be the job of
   * another request.
   */
  unique?: { key: string; until?: 'started' | 'finished' | number; conflict?: 'skip' | 'replace' | 'debounce' };
  /** The child starts when all of these have succeeded. */
  after?: readonly AfterJob[];
}

/**
 * A job that has to succeed first: its id or client_request_id. If it does not succeed: hold (default), cancel this
 * job, or continue.
 */
export type AfterJob = string | { job: string; onFailure?: 'hold' | 'cancel' | 'continue' };

export interface EnqueuedChild {
  id: string;
  /** Set if the job holds the unique key of the call: the effect of the call on it. */
  unique?: 'skipped' | 'replaced' | 'debounced';
}

/** A child for `fanOut`. */
export interface ChildJob extends Omit<ChildOptions, 'unique' | 'after'> {
  type: string;
  payload?: unknown;
}

export interface ChildrenOptions {
  /**
   * `first` (default): the call rejects with the first child that fails. `all settled`: it returns how each child
   * ended.
   */
  onFailure?: 'first' | 'all settled';
  /** Identifies the call among the durable calls of the job; by default its number in the order of such calls. */
  name?: string;
}

export interface FanOutOptions extends Pick<ChildrenOptions, 'onFailure'> {
  /** The number of children that may be unfinished at once; by default all. */
  concurrency?: number;
}

/** The end of a child, for `onFailure: 'all settled'`. */
export interface ChildOutcome<R = unknown> {
  id: string;
  status: 'succeeded' | 'failed' | 'canceled';
  result?: R;
  error?: { code: string; message: string };
}

/** The time limit is that of one try. */
export interface StepOptions extends CallTimeout {
  /** The number of tries within one attempt of the job. */
  retry?: RetryOptions;
  /** Distinguishes calls with the same name: `step('send', fn, { key: i })`. */
  key?: string | number;
}

export interface StepContext {
  /** Aborted when the handler must stop, or when the time of the step is up. */
  readonly signal: AbortSignal;
}

export interface SleepOptions {
  /** Identifies this sleep among the durable calls of the job; by default its number in the order of sleeps. */
  name?: string;
}

/** Without a time limit the job waits without end. */
export interface EventWaitOptions<D = unknown> extends CallTimeout {
  /** Only an event whose data contains this value, compared like Postgres' `@>`: `{ invoice: 7 }`. */
  match?: Record<string, unknown> | undefined;
  /** Checks and types the data. Data that it refuses fails the job with INVALID_EVENT. */
  schema?: z.ZodType<D> | undefined;
  /** Identifies this wait among the durable calls of the job; by default `event:invoice.paid#1`. */
  name?: string | undefined;
}

/** An event from outside. */
export interface ReceivedEvent<D = unknown> {
  /** The sender's id, otherwise a generated one. */
  id: string;
  name: string;
  data: D;
  receivedAt: string;
}

/** With a time limit, returns undefined if no event came in time. */
export interface WaitForEvent {
  <D = unknown>(
    name: string,
    options: EventWaitOptions<D> & ({ timeout: Duration } | { timeoutSeconds: number }),
  ): Promise<ReceivedEvent<D> | undefined>;
  <D = unknown>(
    name: string,
    options?: EventWaitOptions<D> & { timeout?: undefined; timeoutSeconds?: undefined },
  ): Promise<ReceivedEvent<D>>;
}

export interface DurableContext {
  /**
   * Runs the code and stores its result as JSON. After a crash, retry, resume or wait, the call returns the stored
   * result without running the code again. Use each name once per run.
   */
  step<T>(name: string, run: (step: StepContext) => T | Promise<T>, options?: StepOptions): Promise<T>;
  /**
   * A durable sleep (`'3d'`, `'1h30m'`, or milliseconds), whose end is stored. A long sleep suspends the job, which
   * needs no slot and no lease until then. The handler then runs again from the top, and this call returns at once.
   */
  sleepFor(duration: Duration, options?: SleepOptions): Promise<void>;
  sleepUntil(time: Date | string, options?: SleepOptions): Promise<void>;
  /**
   * Asks a person and returns the answer, checked and typed by the schema. The job waits without slot and lease, and
   * the handler runs again from the top when the answer has come. See docs/questions.md.
   */
  ask<S extends z.ZodObject = NoFields, const A extends string = never>(
    options: AskOptions<S, A>,
  ): Promise<AnswerOf<S, A>>;
  /**
   * Waits for an event that `POST /api/events/{name}` delivers, without a slot or lease. Returns the first event since
   * the job was enqueued that no other call of this job has returned.
   */
  readonly waitForEvent: WaitForEvent;
  /** Enqueues a child job in the same tenant; a retry of the call gets the same child. */
  enqueue(type: string, payload: unknown, options?: ChildOptions): Promise<EnqueuedChild>;
  /**
   * Enqueues one child per item, once, and waits for all of them without a slot or lease. Returns their results in the
   * order of the items.
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
  /**
   * Adds to the usage of the job over all attempts: `{ tokens: 1200, cents: 3 }`, in any units. Above a budget the
   * handler is stopped, and the job is held until a person raises the budget.
   */
  addUsage(usage: Record<string, number>): Promise<void>;
}
