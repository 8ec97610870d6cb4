// The outcomes of an attempt, and the values that each one stores. finish-statement.ts has the SQL that reads them.
import { assertNever } from '../../kernel/errors.ts';
import type { CancelDetail, HandlerState, HoldKind, JobError, StoredHold } from '../model/job.ts';
import { isBudgetError, jobError } from '../model/job-errors.ts';
import { isTerminal } from '../model/states.ts';
import type { AwaitedCalls, Waiting } from '../model/waiting.ts';
import { transition } from '../transition.ts';

/** `handler`: the handler did not stop when its signal was aborted. */
export type Outcome = AttemptEnd & { handler?: HandlerState | undefined };

type AttemptEnd =
  /** `result`: a value, or the JsonText of a large one. */
  | { kind: 'complete'; result: unknown }
  | { kind: 'completePartly'; result: unknown; error?: JobError }
  | { kind: 'retry'; error: JobError; delayMs: number }
  | { kind: 'fail'; error: JobError }
  | { kind: 'stopPaused'; message: string; by?: CancelDetail | undefined }
  | { kind: 'stopCanceled'; message: string; by?: CancelDetail | undefined }
  | { kind: 'suspend' | 'suspendAside'; waiting: Waiting; leftMs: number; awaited?: AwaitedCalls | undefined }
  | { kind: 'requeue'; reason: string }
  | { kind: 'recover'; error: JobError }
  | { kind: 'recoverLater'; error: JobError; delayMs: number };

export type OutcomeKind = Outcome['kind'];

export interface FinishedAttempt {
  jobId: string;
  leaseId: string;
  targetId: string | null;
  outcome: Outcome;
}

/** The job waits for something that may arrive at any time, so arrivals are read under the lock of the job. */
export function isAwaiting(outcome: Outcome): boolean {
  return (outcome.kind === 'suspend' || outcome.kind === 'suspendAside') && outcome.awaited !== undefined;
}

/** A budget stopped the attempt, and a person is asked. */
export function isOverBudget(outcome: Outcome): outcome is Outcome & { kind: 'fail' } {
  return outcome.kind === 'fail' && isBudgetError(outcome.error);
}

export function isEmpty(outcome: Outcome): boolean {
  return outcome.kind === 'complete' && (outcome.result === null || outcome.result === undefined);
}

interface Entry {
  result?: unknown;
  error?: JobError | undefined;
  hold?: StoredHold | undefined;
  delayMs?: number;
  waiting?: Waiting | undefined;
  awaited?: AwaitedCalls | undefined;
  eventData?: object | undefined;
}

/** Values for the job and, under `eventData`, for the event. */
export function entryOf(outcome: Outcome): Entry {
  const entry = entryOfEnd(outcome);
  const { handler } = outcome;
  if (handler === undefined) return entry;
  // The job, its hold and the event record that the handler did not stop.
  return {
    ...entry,
    eventData: { ...entry.eventData, handler },
    ...(entry.error && { error: { ...entry.error, handler } }),
    ...(outcome.kind === 'fail' && { hold: { kind: failureKind(outcome.error), handler } }),
    ...(entry.hold && { hold: { ...entry.hold, handler } }),
  };
}

function failureKind(error: JobError): HoldKind {
  return isBudgetError(error) ? 'budget' : 'error';
}

function entryOfEnd(outcome: AttemptEnd): Entry {
  switch (outcome.kind) {
    case 'complete':
      return { result: outcome.result ?? null };
    case 'completePartly':
      return { result: outcome.result ?? null, error: outcome.error, eventData: outcome.error };
    case 'retry':
    case 'recoverLater': {
      const { error, delayMs } = outcome;
      return { error, delayMs, eventData: { error, delay_ms: delayMs } };
    }
    case 'fail':
    case 'recover':
      return { error: outcome.error, eventData: { error: outcome.error } };
    case 'stopPaused': {
      const { message, by } = outcome;
      const kind = by?.kind ?? 'user';
      const hold = { kind, reason: by?.reason, author: by?.author ?? by?.actor };
      return { error: jobError('PAUSED', message), hold, eventData: { ...by, kind, message } };
    }
    case 'stopCanceled':
      return {
        error: jobError('CANCELED', outcome.message),
        eventData: { ...outcome.by, message: outcome.message },
      };
    case 'suspend':
    case 'suspendAside':
      return { waiting: outcome.waiting, awaited: outcome.awaited, eventData: outcome.waiting };
    case 'requeue':
      return { eventData: { reason: outcome.reason } };
    default:
      return assertNever(outcome);
  }
}

export function endsJob(kind: OutcomeKind): boolean {
  return isTerminal(transition(kind).to);
}

export function isRequeued({ outcome }: FinishedAttempt): boolean {
  return transition(outcome.kind).to === 'QUEUED';
}
