// What the fields of a job hold. Imports nothing of the database: the declarations of the package mention these types.
import type { BackoffPolicy } from '../../kernel/backoff.ts';

export const priorities = ['URGENT', 'HIGH', 'NORMAL', 'LOW'] as const;
export type Priority = (typeof priorities)[number];

export function priorityRank(priority: Priority): number {
  return priorities.indexOf(priority);
}

/** Where an error comes from. Kept with the job and its event; left out of lists and webhooks. */
export interface ErrorTrace {
  name?: string;
  stack?: string;
  cause?: ErrorCause;
  /** Of an AggregateError. */
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

/** The column `hold`; what it means is in hold.ts. */
export interface StoredHold {
  kind: HoldKind;
  reason?: string | undefined;
  author?: string | undefined;
  handler?: HandlerState | undefined;
  /** Of kind `handler`: since when, and the Outcome that ends the attempt when the handler has stopped or its lease expires. */
  since?: string | undefined;
  outcome?: object | undefined;
}

/** Who requested a stop, why and when. */
export interface CancelDetail {
  reason?: string;
  author?: string;
  /** The key or process that requested it; `author` is the person it named. */
  actor?: string;
  at?: string;
  /** The kind of hold that a pause becomes; `user` by default. */
  kind?: HoldKind;
}

/** The stop request of a running job; both null if there is none. */
export interface StopRequest {
  cancelIntent: StopIntent | null;
  cancelDetail: CancelDetail | null;
}

/** When to try again, and which error codes count as recoverable by themselves. */
export interface RetryPolicy extends BackoffPolicy {
  codes?: string[];
}

/** What a retention hook gets of a job. */
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

// A phase of a job, as its row says.

export type PhaseStatus = 'pending' | 'running' | 'completed' | 'partial' | 'failed' | 'skipped' | 'cancelled';

export type PhaseKind = 'phase' | 'step' | 'sleep' | 'event' | 'children' | 'question';

export interface Phase {
  name: string;
  /** `phase` of a definition with phases; the others are durable calls of `run`. */
  kind: PhaseKind;
  position: number;
  status: PhaseStatus;
  progress: number;
  message: string | null;
  result: unknown;
  error: JobError | null;
  /** Tries of the phase, over all attempts of the job. */
  attempt: number;
  startedAt: string | null;
  finishedAt: string | null;
  /** Until when a sleep lasts. */
  waitsUntil: string | null;
}
