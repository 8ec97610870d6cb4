// Types of the values in a job's fields. Imports nothing of the database, because the declarations of the package use
// these types.
import type { BackoffPolicy } from '../../kernel/backoff.ts';

export const priorities = ['URGENT', 'HIGH', 'NORMAL', 'LOW'] as const;
export type Priority = (typeof priorities)[number];

export function priorityRank(priority: Priority): number {
  return priorities.indexOf(priority);
}

/** The origin of an error. Stored with the job and its event; omitted from lists and webhooks. */
export interface ErrorTrace {
  name?: string;
  stack?: string;
  cause?: ErrorCause;
  /** The errors of an AggregateError. */
  errors?: ErrorCause[];
}

export interface ErrorCause extends ErrorTrace {
  code?: string;
  message: string;
}

export interface JobError extends ErrorTrace {
  code: string;
  message: string;
  [detail: string]: unknown;
}

export function withoutTrace({ stack, cause, errors, ...error }: JobError): JobError {
  return error as JobError;
}

export type StopIntent = 'pause' | 'cancel';

/** The message of a job that was stopped on request. */
export const stoppedByUser: Record<StopIntent, string> = {
  pause: 'Job was interrupted by user',
  cancel: 'Job was canceled by user',
};

export const holdKinds = ['user', 'drain', 'budget', 'error', 'handler', 'dependency'] as const;
export type HoldKind = (typeof holdKinds)[number];

/** `running`: the handler had not stopped when this was written. `terminated`: its thread was ended. */
export type HandlerState = 'running' | 'terminated';

/** The column `hold`; hold.ts interprets it. */
export interface StoredHold {
  kind: HoldKind;
  reason?: string | undefined;
  author?: string | undefined;
  handler?: HandlerState | undefined;
  /**
   * For the kind `handler`: the start of the hold, and the Outcome that ends the attempt when the handler stops or its
   * lease expires.
   */
  since?: string | undefined;
  outcome?: object | undefined;
}

/** The author, reason and time of a stop request. */
export interface CancelDetail {
  reason?: string;
  author?: string;
  /** The key or process that requested it; `author` is the person it named. */
  actor?: string;
  at?: string;
  /** The kind of hold that a pause creates; `user` by default. */
  kind?: HoldKind;
}

/** The stop request of a running job; both fields are null if there is none. */
export interface StopRequest {
  cancelIntent: StopIntent | null;
  cancelDetail: CancelDetail | null;
}

/** The backoff of retries, and the error codes that always count as recoverable. */
export interface RetryPolicy extends BackoffPolicy {
  codes?: string[];
}

/** A job as retention hooks receive it. */
export interface FinishedJob {
  id: string;
  type: string;
  queue: string;
  targetId: string | null;
  status: string;
  attempt: number;
  author: string | null;
  payload: unknown;
  result: unknown;
  error: { code: string; message: string } | null;
  createdAt: string;
  startedAt: string | null;
  finishedAt: string | null;
}

export type RetentionHook = (tenant: string, jobs: FinishedJob[]) => void | Promise<void>;

// A phase of a job, as in its row.

export type PhaseStatus = 'pending' | 'running' | 'completed' | 'partial' | 'failed' | 'skipped' | 'cancelled';

export type PhaseKind = 'phase' | 'step' | 'sleep' | 'event' | 'children' | 'question';

export interface Phase {
  name: string;
  /** `phase` for a definition with phases; other kinds are durable calls of `run`. */
  kind: PhaseKind;
  position: number;
  status: PhaseStatus;
  progress: number;
  message: string | null;
  result: unknown;
  error: JobError | null;
  /** The number of tries of the phase, over all attempts of the job. */
  attempt: number;
  startedAt: string | null;
  finishedAt: string | null;
  /** The end of a sleep. */
  waitsUntil: string | null;
}
