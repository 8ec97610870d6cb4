// The ways in which an attempt ends, and what each of them writes to the job beside its status.
import { assertNever } from '../../kernel/errors.ts';
import type { CancelDetail, HandlerState, HoldKind, JobError, StoredHold } from '../model/job.ts';

/** `handler`: it did not stop when it was told to. */
export type Outcome = AttemptEnd & { handler?: HandlerState | undefined };

type AttemptEnd =
  | { kind: 'complete'; result: unknown }
  | { kind: 'completePartly'; result: unknown; error?: JobError }
  | { kind: 'retry'; error: JobError; delayMs: number }
  | { kind: 'fail'; error: JobError }
  | { kind: 'stopPaused'; message: string; by?: CancelDetail | undefined }
  | { kind: 'stopCanceled'; message: string; by?: CancelDetail | undefined }
  | { kind: 'requeue'; reason: string }
  | { kind: 'recover'; error: JobError }
  | { kind: 'recoverLater'; error: JobError; delayMs: number };

export type OutcomeKind = Outcome['kind'];

/**
 * A pause or cancel that was acknowledged while the attempt came to its end: the job must not start
 * again, nor hold its lane against a cancel. Only an end of its own and a spent budget come first.
 */
const noStopRequest = 'and j.cancel_intent is null';
const noCancelRequest = `and j.cancel_intent is distinct from 'cancel'`;
export const stopRequestGuard: Partial<Record<OutcomeKind, string>> = {
  retry: noStopRequest,
  recover: noStopRequest,
  recoverLater: noStopRequest,
  requeue: noStopRequest,
  stopPaused: noCancelRequest,
  fail: `and (j.cancel_intent is distinct from 'cancel' or $2::jsonb -> j.id::text -> 'error' ->> 'code' = 'TOKEN_LIMIT')`,
};

// What each outcome writes beside the status. A job's own entry is looked up in the $2 object: joining
// a list of (job, lease) pairs makes a nested loop over the whole batch.
export const entry = `($2::jsonb -> j.id::text)`;
const finishes = `finished_at = now(), lane_head = (j.target_id is null), progress = 100,`;
const holds = `held_since = now(), error = ${entry} -> 'error', hold = ${entry} -> 'hold',`;
export const writes: Record<OutcomeKind, string> = {
  complete: `${finishes} result = ${entry} -> 'result', error = null,`,
  completePartly: `${finishes} result = ${entry} -> 'result', error = ${entry} -> 'error',`,
  retry: `hold = null, run_at = g.due_at, error = ${entry} -> 'error',`,
  // 100 is for what was completed; otherwise the progress of a failed attempt is as it was reported.
  fail: `progress = case when j.progress >= 100 then 99 else j.progress end, finished_at = now(), ${holds} lane_head = (j.target_id is null or j.on_error = 'block'),`,
  stopPaused: holds,
  stopCanceled: `finished_at = now(), lane_head = (j.target_id is null), hold = null, error = ${entry} -> 'error',`,
  requeue: `hold = null, attempt = j.attempt - 1,`,
  recover: `hold = null, error = ${entry} -> 'error',`,
  recoverLater: `hold = null, run_at = g.due_at, error = ${entry} -> 'error',`,
};

/** Without a result there is nothing to look up. */
export const completeBare = `${finishes} result = null, error = null,`;

// What becomes of the phases that have not ended. Where there is nothing to do the statement stays as it is.
export const phaseWrites: Partial<Record<OutcomeKind, string>> = {
  retry: interrupted('running', 'pending'),
  recover: interrupted('running', 'pending'),
  recoverLater: interrupted('running', 'pending'),
  stopPaused: interrupted('running', 'pending'),
  requeue: interrupted('running', 'pending'),
  fail: interrupted('running', 'failed', `error = $2::jsonb -> s.id::text -> 'error', finished_at = now(),`),
  stopCanceled: interrupted(`pending', 'running`, 'cancelled', 'finished_at = now(),'),
};

function interrupted(from: string, to: string, more = ''): string {
  return `set ${more} status = '${to}' from settled s where p.job_id = s.id and p.status in ('${from}')`;
}

export function isEmpty(outcome: Outcome): boolean {
  return outcome.kind === 'complete' && (outcome.result === null || outcome.result === undefined);
}

export interface Entry {
  result?: unknown;
  error?: JobError | undefined;
  hold?: StoredHold | undefined;
  delay?: number;
  eventData?: object | undefined;
}

/** What is written to the job and, under `eventData`, what the event says. */
export function entryOf(outcome: Outcome): Entry {
  const entry = entryOfEnd(outcome);
  const { handler } = outcome;
  if (handler === undefined) return entry;
  // The job, its hold and the event say that the handler did not stop.
  return {
    ...entry,
    eventData: { ...entry.eventData, handler },
    ...(entry.error && { error: { ...entry.error, handler } }),
    ...(outcome.kind === 'fail' && { hold: { kind: failureKind(outcome.error), handler } }),
    ...(entry.hold && { hold: { ...entry.hold, handler } }),
  };
}

function failureKind({ code }: JobError): HoldKind {
  return code === 'TOKEN_LIMIT' ? 'budget' : 'error';
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
      return { error, delay: delayMs, eventData: { error, delay_ms: delayMs } };
    }
    case 'fail':
    case 'recover':
      return { error: outcome.error, eventData: { error: outcome.error } };
    case 'stopPaused': {
      const { message, by } = outcome;
      const kind = by?.kind ?? 'user';
      const hold = { kind, reason: by?.reason, author: by?.author ?? by?.actor };
      return { error: { code: 'PAUSED', message }, hold, eventData: { ...by, kind, message } };
    }
    case 'stopCanceled':
      return {
        error: { code: 'CANCELED', message: outcome.message },
        eventData: { ...outcome.by, message: outcome.message },
      };
    case 'requeue':
      return { eventData: { reason: outcome.reason } };
    default:
      return assertNever(outcome);
  }
}
