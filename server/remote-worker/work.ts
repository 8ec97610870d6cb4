// The types of a remote worker: its options, the job, and the functions to report on it.
import type { z } from 'zod';
import type { AnswerOf, AskOptions, NoFields } from '../durable/ask-options.ts';
import type { DurableContext } from '../durable/durable-context.ts';

export interface WorkerOptions {
  /** `http://127.0.0.1:8080` */
  url: string;
  /** An API key with the scope `worker`. */
  key: string;
  /** The queue (`addon_id`) to take jobs from. */
  queue: string;
  /** Must be unique among running workers; a new one for each process. */
  workerId?: string;
  jobTypes?: string[];
  maxCostUnits?: number;
  /** `{ gpu_available: true }` takes jobs with `gpu_required`. */
  capabilities?: Record<string, boolean>;
  /** The number of jobs at once; default 1. */
  concurrency?: number;
  /** The duration of a lease without a heartbeat; default 30. Three heartbeats are sent in this time. */
  ttlSeconds?: number;
  /** `release`: a waiting job leaves its lane meanwhile. By default it holds the lane. */
  whileWaiting?: 'hold' | 'release';
  /** How long running jobs may continue after `drain()` before they are requeued; default 60. */
  drainSeconds?: number;
  log?: (message: string, fields: Record<string, unknown>) => void;
  fetch?: typeof fetch;
}

export interface RemoteJob {
  job_id: string;
  job_type: string;
  payload: unknown;
  cost_units: number;
  attempts: number;
  tokens_used?: number;
  /** Usage of other units, over all attempts. */
  usage?: Record<string, number>;
  [field: string]: unknown;
}

/**
 * The durable calls are those of handlers in a daemon (docs/handlers.md). A call that has to wait for long ends the
 * lease and rejects with `Stopped`; do not catch it. The handler runs again when the wait is over, here or in another
 * worker, and its earlier calls return their stored results.
 */
export interface Work extends Omit<DurableContext, 'ask'> {
  job: RemoteJob;
  /**
   * The fence: pass it on with outside effects, so that the receiver can refuse the writes of a worker that lost its
   * lease.
   */
  leaseId: string;
  /** Aborted with a `Stopped` when the handler must end: throw, for example with `signal.throwIfAborted()`. */
  signal: AbortSignal;
  /** Sent with the next heartbeat. */
  report(progress: number, message?: string): void;
  /** Asks a person, and returns the answer. */
  ask: Ask;
}

export interface Ask {
  <S extends z.ZodObject = NoFields, const A extends string = never>(
    options: AskOptions<S, A>,
  ): Promise<AnswerOf<S, A>>;
  /** With the fields of the API and a JSON Schema. */
  (question: RemoteQuestion): Promise<RemoteAnswer>;
}

/** A question to a person; docs/questions.md describes the fields. */
export interface RemoteQuestion {
  /** Identifies the question among those of the job. */
  name: string;
  title: string;
  context?: unknown;
  /** JSON Schema of the answer, of type `object`. */
  schema?: Record<string, unknown>;
  actions?: { name: string; label?: string; style?: 'primary' | 'danger'; answer?: Record<string, unknown> }[];
  assignees?: string[];
  timeout_seconds?: number;
  on_timeout?: 'fail' | { answer?: Record<string, unknown>; action?: string };
  reminders?: number[];
  escalate_to?: { assignees: string[]; after_seconds: number };
}

/** The fields of the answer. `action` is the chosen one, if the question has actions. */
export type RemoteAnswer = Record<string, unknown>;

/** Returns the job's result, or throws. `Fatal`, or `recoverable = false` on the error, makes a failure final. */
export type Handler = (work: Work) => Promise<unknown>;

export class Stopped extends Error {
  readonly reason: 'cancel' | 'pause' | 'drain' | 'leaseLost' | 'waiting' | 'budget' | 'timeout';
  constructor(reason: Stopped['reason']) {
    super(`stopped: ${reason}`);
    this.name = 'Stopped';
    this.reason = reason;
  }
}
