// Replays the events of every job, ordered by job: each must be an allowed transition from the status before it, a job
// ends once, and its row must have the status with which its history ends.

import type { Queryable } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import { scan } from '../database/reads/bounded-reads.ts';
import { hasNoLease } from '../jobs/claim/lease.ts';
import { isUnfinished } from '../jobs/flows/dependencies.ts';
import { isTerminal, type Status, statusIn, terminalStatuses, transitions } from '../jobs/model/states.ts';
import { never } from '../jobs/model/waiting.ts';
import type { Violation, Violations } from './violation.ts';

export interface JobsReport {
  jobs: number;
  events: number;
}

interface HistoryRow {
  xid: string;
  seq: string;
  type: string;
  job_id: string;
  from_status: Status | null;
  to_status: Status | null;
  /** The status in the job's row; null if there is none. */
  present: Status | null;
}

interface Replay {
  jobId: string;
  present: Status | null;
  status: Status | undefined;
  /** The last event that changed the status. */
  last: string;
  deleted: boolean;
}

/** With `pruned` the first events of a job may have been removed, so its history may begin with any event. */
export async function verifyJobs(
  tx: Queryable,
  schema: Schema,
  pruned: boolean,
  violations: Violations,
): Promise<JobsReport> {
  const report = { jobs: 0, events: 0 };
  let replay: Replay | undefined;
  const rows = scan<HistoryRow>(
    tx,
    `select e.xid, e.seq, e.type, e.job_id, e.from_status, e.to_status, j.status as present
       from ${schema}.events e left join ${schema}.jobs j on j.id = e.job_id
      where e.job_id is not null order by e.job_id, e.seq`,
  );
  for await (const batch of rows) {
    for (const row of batch) {
      if (replay?.jobId !== row.job_id) {
        if (replay) finish(replay, pruned, violations);
        replay = { jobId: row.job_id, present: row.present, status: undefined, last: '', deleted: false };
        report.jobs++;
      }
      report.events++;
      step(replay, row, pruned, violations);
    }
  }
  if (replay) finish(replay, pruned, violations);
  await findUnrecorded(tx, schema, pruned, violations);
  await findUnleased(tx, schema, violations);
  await verifyWaits(tx, schema, violations);
  return report;
}

function step(replay: Replay, row: HistoryRow, pruned: boolean, violations: Violations): void {
  const event = `${row.xid}:${row.seq}`;
  const wrong = (detail: string) => violations.add({ kind: 'job_history', event, jobId: row.job_id, detail });
  const { from_status: from, to_status: to } = row;
  // Only changes of status: a webhook may be delivered after the job was deleted.
  if (replay.deleted && from !== to && to !== null) wrong(`${row.type} after the job was deleted`);
  if (row.type === 'job.deleted') replay.deleted = true;
  if (to === null) return;
  if (replay.status === undefined) {
    // The first event of the job, or the first that retention left.
    if (from !== null && !pruned) wrong(`begins with ${row.type} from ${from}, not with job.enqueued`);
  } else if (from === null) {
    wrong(`is enqueued again`);
  } else if (from !== replay.status) {
    wrong(`${row.type} from ${from}, but the job was ${replay.status} since ${replay.last}`);
  }
  if (from === to) {
    replay.status ??= to;
    return;
  }
  if (!isAllowed(row.type, from, to)) wrong(`${row.type} from ${from ?? 'nothing'} to ${to} is not a transition`);
  if (replay.status !== undefined && isTerminal(replay.status)) {
    wrong(`${row.type} after the job ended with ${replay.last}`);
  }
  replay.status = to;
  replay.last = event;
}

const allowed = new Set<string>(
  Object.values(transitions).flatMap(({ event, from, to }) =>
    (from.length === 0 ? [null] : from).map((status) => `${event} ${status} ${to}`),
  ),
);

function isAllowed(type: string, from: Status | null, to: Status): boolean {
  return allowed.has(`${type} ${from} ${to}`);
}

function finish(replay: Replay, pruned: boolean, violations: Violations): void {
  const { jobId, present, status, last, deleted } = replay;
  const event = last === '' ? {} : { event: last };
  const report = (kind: Violation['kind'], detail: string) => violations.add({ kind, jobId, ...event, detail });
  if (present === null) {
    if (!deleted) report('job_missing', 'has a history, but neither a row nor a deletion');
    return;
  }
  if (deleted) report('job_state', `its deletion is recorded, but its row exists and is ${present}`);
  else if (status !== undefined && status !== present) {
    report('job_state', `its row is ${present}, its history ends with ${status}`);
  } else if (status === undefined && !pruned) {
    report('job_history', 'no event records that it was enqueued');
  }
}

/** Jobs without events. Retention may have removed the events of a job that is older than the oldest event. */
async function findUnrecorded(tx: Queryable, schema: Schema, pruned: boolean, violations: Violations): Promise<void> {
  const rows = scan<{ id: string; status: string }>(
    tx,
    `select j.id, j.status from ${schema}.jobs j
      where not exists (select 1 from ${schema}.events e where e.job_id = j.id)
        ${pruned ? `and j.created_at > (select at from ${schema}.events order by xid, seq limit 1)` : ''}`,
  );
  for await (const batch of rows) {
    for (const row of batch)
      violations.add({ kind: 'job_history', jobId: row.id, detail: `is ${row.status}, but has no events` });
  }
}

/** Jobs that are owned, but not by an active lease: their loss would never be noticed. */
async function findUnleased(tx: Queryable, schema: Schema, violations: Violations): Promise<void> {
  const rows = scan<{ id: string; status: string; lease_id: string; lease_owner: string }>(
    tx,
    `select j.id, j.status, j.lease_id, j.lease_owner from ${schema}.jobs j where ${hasNoLease(schema)}`,
  );
  for await (const batch of rows) {
    for (const { id, status, lease_id, lease_owner } of batch) {
      const detail = `is ${status} under lease ${lease_id} of ${lease_owner}, which is not active`;
      violations.add({ kind: 'job_lease', jobId: id, detail });
    }
  }
}

/**
 * Waiting jobs must have something that wakes them, and an open question must have a job that its answer can reach.
 * Reads only the tables, so the result is correct after any retention of events.
 */
async function verifyWaits(tx: Queryable, schema: Schema, violations: Violations): Promise<void> {
  await findForgotten(tx, schema, violations);
  await findUnwakeable(tx, schema, violations);
  await findUnanswerable(tx, schema, violations);
}

/** Jobs that wait for others, although all of them ended more than a minute ago: nothing would wake them. */
async function findForgotten(tx: Queryable, schema: Schema, violations: Violations): Promise<void> {
  const rows = scan<{ id: string; kind: string }>(
    tx,
    `select j.id, j.waiting ->> 'kind' as kind
       from ${schema}.jobs j
      where j.status = 'WAITING'
        and j.waiting ->> 'kind' in ('after', 'children')
        and j.run_at > now()
        and j.held_since < now() - interval '1 minute'
        and coalesce((j.waiting ->> 'not_before')::timestamptz <= now(), true)
        and not exists (
          select 1
            from ${schema}.dependencies d
            left join ${schema}.jobs o on o.id = d.after_id
           where d.job_id = j.id
             and d.step = coalesce(j.waiting ->> 'step', '')
             and (o.finished_at is null or o.finished_at > now() - interval '1 minute'
               or (o.status = 'ERROR' and d.on_failure = 'hold')))`,
  );
  for await (const batch of rows) {
    for (const { id, kind } of batch) {
      const detail = `is WAITING (${kind}), although everything that it waits for has ended`;
      violations.add({ kind: 'job_waiting', jobId: id, detail });
    }
  }
}

/**
 * Jobs that no time wakes and nothing else either: no open wait for an event, no open question, no unfinished child, no
 * turn to come. A run may have several waits at once, so any of them counts, whatever `waiting` names.
 */
async function findUnwakeable(tx: Queryable, schema: Schema, violations: Violations): Promise<void> {
  const rows = scan<{ id: string; kind: string }>(
    tx,
    `select j.id, j.waiting ->> 'kind' as kind
       from ${schema}.jobs j
      where j.status = 'WAITING'
        and coalesce(j.waiting ->> 'kind', '') not in ('after', 'children')
        and j.run_at >= timestamptz '${never}'
        and j.held_since < now() - interval '1 minute'
        and not exists (
          select 1
            from ${schema}.phases p
           where p.job_id = j.id
             and p.kind = 'event'
             and p.status in ('pending', 'running'))
        and not exists (select 1 from ${schema}.questions q where q.job_id = j.id and q.status = 'open')
        and not exists (select 1 from ${schema}.dependencies d where d.job_id = j.id and ${isUnfinished()})
        and not exists (
          select 1
            from ${schema}.dependencies d
           where d.after_id = j.id
             and d.state in ('gated', 'canceling'))`,
  );
  for await (const batch of rows) {
    for (const { id, kind } of batch) {
      const detail = `is WAITING (${kind}), but no time, event, answer or job wakes it`;
      violations.add({ kind: 'job_waiting', jobId: id, detail });
    }
  }
}

/** Open questions of jobs that have ended: a person is asked although no job waits for the answer. */
async function findUnanswerable(tx: Queryable, schema: Schema, violations: Violations): Promise<void> {
  const rows = scan<{ id: string; job_id: string; status: string }>(
    tx,
    `select q.id, q.job_id, j.status
       from ${schema}.questions q
       join ${schema}.jobs j on j.id = q.job_id
      where q.status = 'open'
        and ${statusIn(terminalStatuses, 'j.status')}`,
  );
  for await (const batch of rows) {
    for (const { id, job_id, status } of batch) {
      violations.add({
        kind: 'question_open',
        jobId: job_id,
        detail: `question ${id} is open, but its job is ${status}`,
      });
    }
  }
}
