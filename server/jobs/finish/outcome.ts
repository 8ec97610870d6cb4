// The outcomes of an attempt, and the values that each one stores: the entry that is sent, and the SQL that reads it.

import { tenant } from '../../database/sql.ts';
import { assertNever } from '../../kernel/errors.ts';
import type { CancelDetail, HandlerState, HoldKind, JobError, StoredHold } from '../model/job.ts';
import { isBudgetError, jobError } from '../model/job-errors.ts';
import { type AwaitedCalls, never, type Waiting } from '../model/waiting.ts';
import { nextTime } from '../questions/question.ts';

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

export interface Entry {
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

// SQL over a job `j`. The entry of a job is looked up in one object, because joining a list of (job, lease) pairs makes
// a nested loop over the batch.
export const entrySql = '(:entries::jsonb -> j.id::text)';

const completed = `finished_at = now(),
           progress = 100`;
const setError = `error = ${entrySql} -> 'error'`;
const setResult = `result = ${entrySql} -> 'result'`;
const heldWithError = `held_since = now(),
           ${setError},
           hold = ${entrySql} -> 'hold'`;

/** The attempt is not counted, and the deadline of the job moves. */
const waits = `run_at = g.due_at,
           held_since = now(),
           waiting = ${entrySql} -> 'waiting',
           hold = null,
           error = null,
           attempt_floor = j.attempt_floor + 1`;

/** The assignments of each outcome, besides those of its transition. */
export const assignments: Record<OutcomeKind, string> = {
  complete: `${completed},
           ${setResult},
           error = null`,
  completePartly: `${completed},
           ${setResult},
           ${setError}`,
  retry: `hold = null,
           run_at = g.due_at,
           ${setError}`,
  // Only completed jobs show 100. Otherwise the progress of a failed attempt stays as reported.
  fail: `progress = case when j.progress >= 100 then 99 else j.progress end,
           finished_at = now(),
           ${heldWithError}`,
  stopPaused: heldWithError,
  stopCanceled: `finished_at = now(),
           hold = null,
           ${setError}`,
  suspend: waits,
  suspendAside: waits,
  requeue: `hold = null,
           attempt = j.attempt - 1`,
  recover: `hold = null,
           ${setError}`,
  recoverLater: `hold = null,
           run_at = g.due_at,
           ${setError}`,
};

export const completeWithoutResult = `${completed},
           result = null,
           error = null`;

const interruptPhases = updatePhases(`status = 'pending'`, `('running')`);
/** The new state of phases that have not ended. */
export const phaseUpdates: Partial<Record<OutcomeKind, string>> = {
  retry: interruptPhases,
  recover: interruptPhases,
  recoverLater: interruptPhases,
  stopPaused: interruptPhases,
  requeue: interruptPhases,
  // A wait stays open, because the handler may reach it again after a resume.
  fail: updatePhases(
    `status = 'failed', error = :entries::jsonb -> f.id::text -> 'error', finished_at = now()`,
    `('running')
       and p.kind = 'phase'`,
  ),
  stopCanceled: updatePhases(`status = 'cancelled', finished_at = now()`, `('pending', 'running')`),
};

function updatePhases(set: string, from: string): string {
  return `phases as (
    update ${tenant}.phases p
       set ${set}
      from finished f
     where p.job_id = f.id
       and p.status in ${from}
  ),`;
}

// The time at which a job is due again: after a backoff, or when its wait ends.

/** The job has a time at which it is due again. */
export function isDelayed(kind: OutcomeKind): boolean {
  return givenDueTimes[kind] !== undefined;
}

// Times are computed in a SELECT: a cluster refuses arithmetic on now() and a column in an UPDATE.
function dueTimes(dueAt: string): string {
  return `given as (
    select key::uuid as id, ${dueAt} as due_at
      from jsonb_each(:entries::jsonb)
  ),`;
}

const afterDelay = dueTimes(`now() + (value ->> 'delayMs')::float8 * interval '1 millisecond'`);
// The waited event may have arrived before the job was locked. Reminders come before the end of a wait.
const atWakeTime = dueTimes(`case
           when value -> 'awaited' is null then coalesce(value -> 'waiting' ->> 'until', '${never}')::timestamptz
           when exists (
             select 1
               from ${tenant}.phases p
              where p.job_id = key::uuid
                and value -> 'awaited' -> 'steps' ? p.name
                and p.status in ('completed', 'failed')
           ) then now()
           else least(
             coalesce(value -> 'awaited' ->> 'until', '${never}')::timestamptz,
             (select min(${nextTime('q')})
                from ${tenant}.questions q
               where q.job_id = key::uuid
                 and q.status = 'open'))
           end`);
/** The CTE `given` of each outcome with such a time. */
export const givenDueTimes: Partial<Record<OutcomeKind, string>> = {
  retry: afterDelay,
  recoverLater: afterDelay,
  suspend: atWakeTime,
  suspendAside: atWakeTime,
};
