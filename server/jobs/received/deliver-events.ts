// Delivers received events to the jobs that wait for them: ends their waits, and wakes the WAITING ones. A job that
// runs or is on hold finds the event when it reaches the call.
//
// No event is missed. A wait is committed before its run searches the received events, and an event is committed before
// this code searches the waits, so whichever commits second finds the other. Both lock the job before they change its
// wait, so a wait gets one event, and no other wait of the job gets the same event.
import type { Database, Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { statement, tenant } from '../../database/sql.ts';
import { retryConflicts } from '../../database/sql-errors.ts';
import { insertEvents } from '../../events/log/record.ts';
import { wakeJobs } from '../finish/due-jobs.ts';
import { distinctTargets, lockTargets } from '../lanes/lane.ts';
import { type Status, statusIn, terminalStatuses } from '../model/states.ts';
import { keysOf } from './receive-event.ts';

// A transaction locks this many jobs and lanes for some milliseconds.
const jobsPerTransaction = 200;
const eventsPerRun = 50;

interface Undelivered {
  id: string;
  name: string;
  data: unknown;
  receivedAt: string;
}

const undeliveredStatement = statement(`
  select id, name, data, received_at as "receivedAt"
    from ${tenant}.received_events
   where delivered_at is null
   order by received_at, id
   limit :limit`);

export interface Deliveries {
  /** The jobs that were woken. */
  woken: number;
  /** There may be more events. */
  more: boolean;
}

/** Delivers events in the order of their arrival. Safe to run twice, and by several daemons at once. */
export async function deliverEvents(
  db: Database,
  schema: Schema,
  actor: string,
  { signal, limit = eventsPerRun }: { signal?: AbortSignal; limit?: number } = {},
): Promise<Deliveries> {
  const events = await undeliveredStatement.query<Undelivered>(db, schema, { limit });
  let woken = 0;
  for (const event of events) {
    for (;;) {
      if (signal?.aborted) return { woken, more: true };
      const batch = await deliverBatch(db, schema, event, actor);
      woken += batch.woken;
      if (batch.complete) break;
    }
  }
  return { woken, more: events.length === limit };
}

/**
 * SQL over a wait `p` of job `j`: name, required data and time of the event match. It is an array, because a join would
 * read the waits of all jobs.
 */
const isWantedSql = (event: { name: string; data: string; id: string; receivedAt: string }) => `
       p.event_name = ${event.name}
       and p.status in ('pending', 'running')
       and (p.match is null or ${event.data} @> p.match)
       and (p.waits_until is null or p.waits_until > ${event.receivedAt})
       and j.created_at <= ${event.receivedAt}
       and array(
         select 1
           from ${tenant}.phases taken
          where taken.job_id = p.job_id
            and taken.received_id = ${event.id}
          limit 1
       ) = '{}'`;

const given = { name: ':name', data: ':data::jsonb', id: ':id::uuid', receivedAt: ':receivedAt::timestamptz' };

// A job with several such waits is returned several times; removing the repetitions here would read all waits for each
// batch. The inner limit keeps Postgres from reading the jobs first, many of which wait for nothing.
const waitingStatement = statement(`
  select w.id, w.target_id as "targetId"
    from unnest(:keys::text[]) as k(key)
   cross join lateral (
     select j.id, j.target_id
       from ${tenant}.phases p
      cross join lateral (
        select id, target_id, status, created_at
          from ${tenant}.jobs
         where id = p.job_id
         limit 1
      ) as j
      where p.match_key = k.key
        and not ${statusIn(terminalStatuses, 'j.status')}
        and ${isWantedSql(given)}
      order by p.job_id
      limit :limit
   ) as w
   limit :limit`);

const lockStatement = statement(`
  select id
    from ${tenant}.jobs
   where id = any(:jobIds::uuid[])
   order by id
     for no key update`);

/** The event that the handler gets. */
export function receivedSql(event: string): string {
  return `jsonb_build_object(
             'id', coalesce(${event}.event_id, ${event}.id::text),
             'name', ${event}.name,
             'data', ${event}.data,
             'receivedAt', to_char(${event}.received_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'))`;
}

const endWaitsStatement = statement(`
  with chosen as (
    select distinct on (p.job_id) p.job_id, p.name, ${receivedSql('e')} as result, now() as at
      from ${tenant}.phases p
      join ${tenant}.jobs j on j.id = p.job_id
      join ${tenant}.received_events e on e.id = :id::uuid
     where p.job_id = any(:jobIds::uuid[])
       and not ${statusIn(terminalStatuses, 'j.status')}
       and ${isWantedSql(given)}
     order by p.job_id, p.position
  ),
  ended as (
    update ${tenant}.phases p
       set status = 'completed',
           progress = 100,
           result = c.result,
           received_id = :id::uuid,
           finished_at = c.at
      from chosen c
     where p.job_id = c.job_id
       and p.name = c.name
       and p.status in ('pending', 'running')
    returning p.job_id, p.name
  ),
  recorded as (
    ${insertEvents(tenant, {
      source: `ended d
      join chosen c on c.job_id = d.job_id
      join ${tenant}.jobs j on j.id = d.job_id`,
      type: `'job.event_received'`,
      from: 'j.status',
      to: 'j.status',
      actor: ':actor',
      data: `jsonb_build_object('step', d.name, 'event', :name::text, 'id', c.result -> 'id')`,
    })}
  )
  select j.id, j.target_id as "targetId", j.status
    from ended d
    join ${tenant}.jobs j on j.id = d.job_id`);

const deliveredStatement = statement(`
  with done as (select :id::uuid as id, now() as at)
  update ${tenant}.received_events e
     set delivered_at = d.at
    from done d
   where e.id = d.id`);

type WaitingJob = { id: string; targetId: string | null };

async function deliverBatch(
  db: Database,
  schema: Schema,
  { id, name, data, receivedAt }: Undelivered,
  actor: string,
): Promise<{ woken: number; complete: boolean }> {
  const event = { id, name, data: JSON.stringify(data), receivedAt };
  const found = await waitingStatement.query<WaitingJob>(db, schema, {
    ...event,
    keys: keysOf(data),
    limit: jobsPerTransaction,
  });
  const waiting = [...new Map(found.map((job) => [job.id, job])).values()];
  const woken = await retryConflicts(() => db.transaction((tx) => endWaits(tx, schema, event, waiting, actor)));
  if (found.length === jobsPerTransaction) return { woken, complete: false };
  await deliveredStatement.query(db, schema, { id });
  return { woken, complete: true };
}

async function endWaits(
  tx: Queryable,
  schema: Schema,
  event: { id: string; name: string; data: string; receivedAt: string },
  waiting: readonly WaitingJob[],
  actor: string,
): Promise<number> {
  if (waiting.length === 0) return 0;
  await lockTargets(tx, schema, distinctTargets(waiting));
  const jobIds = waiting.map((job) => job.id);
  // A separate statement, so that the next one sees rows committed before the locks were granted.
  await lockStatement.query(tx, schema, { jobIds });
  const ended = await endWaitsStatement.query<WaitingJob & { status: Status }>(tx, schema, { ...event, jobIds, actor });
  const asleep = ended.filter((job) => job.status === 'WAITING');
  if (asleep.length > 0) await wakeJobs(tx, schema, asleep, actor);
  return asleep.length;
}
