// The hold of a job: its kind, its author and its reason. A pause stores it; the hold of a failed job follows from its
// error; a RUNNING job has one while a handler that was asked to stop still runs.

import type { HandlerState, HoldKind, Job, JobError, StoredHold } from './job.ts';
import { isBudgetError, isBudgetErrorSql } from './job-errors.ts';
import { heldStatuses, isOnHold, type Status, statusIn } from './states.ts';

export interface Hold {
  kind: HoldKind;
  reason: string | null;
  author: string | null;
  since: string | null;
  handler: HandlerState | null;
}

type Held = Pick<Job, 'status' | 'heldSince'> & { error: JobError | null; hold: StoredHold | null };

/** Returns undefined if the job is not on hold. */
export function holdOf(job: Held): Hold | undefined {
  const { hold } = job;
  // A time within JSON, which Postgres writes with an offset.
  if (job.status === 'RUNNING' && hold?.kind === 'handler') {
    return toHold(hold, hold.reason, hold.since?.replace(/\+00:00$/, 'Z'));
  }
  if (!isOnHold(job.status)) return undefined;
  const stored = hold ?? { kind: kindOf(job) };
  return toHold(stored, stored.reason ?? (job.status === 'ERROR' ? job.error?.message : undefined), job.heldSince);
}

function toHold(hold: StoredHold, reason: string | undefined, since: string | null | undefined): Hold {
  const { kind, author = null, handler = null } = hold;
  return { kind, reason: reason ?? null, author, since: since ?? null, handler };
}

/** The kind of a hold without a stored one: a failure, or a pause by an older version. */
function kindOf({ status, error }: Held): HoldKind {
  if (status === 'PAUSED') return 'user';
  return isBudgetError(error) ? 'budget' : 'error';
}

/** The statuses in which each kind of hold occurs. */
export const statusesOfHold: Record<HoldKind, readonly Status[]> = {
  user: ['PAUSED'],
  drain: ['PAUSED'],
  budget: ['ERROR'],
  error: ['ERROR'],
  handler: ['RUNNING'],
  dependency: ['PAUSED'],
};

/** SQL over `j`: the kind that `holdOf` returns; null for jobs without a hold. */
export const holdKindSql = `case
  when j.status = 'RUNNING' then j.hold ->> 'kind'
  when not (${statusIn(heldStatuses, 'j.status')}) then null
  when j.hold is not null then j.hold ->> 'kind'
  when j.status = 'PAUSED' then 'user'
  when ${isBudgetErrorSql()} then 'budget'
  else 'error' end`;

/** Returns text such as `paused by ann (worker:w1): reason`. */
export function describeHold(hold: Hold): string {
  const by = hold.author === null ? '' : ` by ${hold.author}`;
  const why = hold.reason === null ? '' : `: ${hold.reason}`;
  // A hold of the kind `handler` has this in its reason.
  const handler = hold.handler === 'running' && hold.kind !== 'handler' ? '; its handler had not stopped' : '';
  return `${descriptions[hold.kind]}${by}${why}${handler}`;
}

const descriptions: Record<HoldKind, string> = {
  user: 'paused',
  drain: 'paused by a drain',
  budget: 'stopped by its budget',
  error: 'failed',
  handler: 'handler still running',
  dependency: 'held',
};
