// Durable calls that wait for an event from outside. Stores the row of the call, fenced by the lease, and searches the
// events that have already arrived. Later events are delivered by received/deliver-events.ts.
import type { Database } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { statement, tenant } from '../../database/sql.ts';
import { retryConflicts } from '../../database/sql-errors.ts';
import { insertEvents, whileRunning } from '../../events/log/record.ts';
import { fence, type HeldJob, lockHeld } from '../claim/lease.ts';
import { foreverMs } from '../model/waiting.ts';
import { receivedSql } from '../received/deliver-events.ts';
import { matchKeyOf } from '../received/receive-event.ts';
import type { StepCall } from './steps.ts';

/** The event that the call waits for. */
export interface WantedEvent {
  event: string;
  match: Record<string, unknown> | null;
  /** The longest wait; null for no limit. */
  ms: number | null;
}

/** An event in the form that handlers get. */
export interface StoredEvent {
  id: string;
  name: string;
  data: unknown;
  receivedAt: string;
}

export type EventWait =
  | { kind: 'received'; event: StoredEvent }
  | { kind: 'timedOut' }
  | { kind: 'open'; until: string | undefined; leftMs: number };

// On conflict an earlier run has made the call. Its end is kept, and the condition is replaced by that of the current
// code.
const openStatement = statement(`
  with ${lockHeld()},
  opened as (
    insert into ${tenant}.phases as p
      (job_id, name, kind, position, parallel, status, attempt, started_at, waits_until, event_name, match, match_key)
    select h.id, :name, 'event', :position, :parallel, 'running', 1, now(), now() + :ms::float8 * interval '1 millisecond',
           :event, :match::jsonb, :matchKey
      from held h
    on conflict (job_id, name) do update
       set position = excluded.position,
           status = excluded.status,
           event_name = excluded.event_name,
           match = excluded.match,
           match_key = excluded.match_key
     where p.status in ('pending', 'running')
  )
  select id from held`);

const lockStatement = statement(`
  select j.id
    from ${tenant}.jobs j
   where ${fence}
     for no key update`);

const takeStatement = statement(`
  with wait as (
    select p.job_id, p.name, p.waits_until, j.created_at, j.target_id, j.attempt, j.lease_id, now() as at
      from ${tenant}.jobs j
      join ${tenant}.phases p on p.job_id = j.id and p.name = :name
     where ${fence}
       and p.status in ('pending', 'running')
  ),
  found as (
    select e.id, ${receivedSql('e')} as result
      from ${tenant}.received_events e
     cross join wait w
     where e.name = :event
       and (:match::jsonb is null or e.data @> :match::jsonb)
       and e.received_at >= w.created_at
       and (w.waits_until is null or e.received_at < w.waits_until)
       and not exists (
         select 1
           from ${tenant}.phases taken
          where taken.job_id = w.job_id
            and taken.received_id = e.id
       )
     order by e.received_at, e.id
     limit 1
  ),
  over as (
    select w.*, f.id as received_id, f.result, case when f.id is null then 'skipped' else 'completed' end as status
      from wait w
      left join found f on true
     where f.id is not null
        or w.waits_until <= w.at
  ),
  ended as (
    update ${tenant}.phases p
       set status = o.status,
           progress = 100,
           result = o.result,
           received_id = o.received_id,
           finished_at = o.at
      from over o
     where p.job_id = o.job_id
       and p.name = o.name
  ),
  recorded as (
    ${insertEvents(tenant, {
      ...whileRunning,
      source: 'over',
      type: `case when received_id is null then 'job.event_missed' else 'job.event_received' end`,
      jobId: 'job_id',
      actor: ':actor',
      data: `jsonb_strip_nulls(jsonb_build_object('step', name, 'event', :event::text, 'id', result -> 'id'))`,
    })}
  )
  select coalesce(o.status, p.status) as status,
         coalesce(o.result, p.result) as result,
         p.waits_until as "waitsUntil",
         extract(epoch from p.waits_until - now())::float8 * 1000 as "leftMs"
    from ${tenant}.jobs j
    join ${tenant}.phases p on p.job_id = j.id and p.name = :name
    left join over o on true
   where ${fence}`);

interface WaitRow {
  status: string;
  result: StoredEvent | null;
  waitsUntil: string | null;
  leftMs: number | null;
}

/**
 * Stores the wait, then takes an event that arrived since the job was enqueued. Returns undefined if the lease no
 * longer owns the job.
 */
export async function openEventWait(
  db: Database,
  schema: Schema,
  { jobId, leaseId }: HeldJob,
  { name, position, parallel }: StepCall,
  { event, match, ms }: WantedEvent,
  actor: string,
): Promise<EventWait | undefined> {
  const wanted = { event, match: match === null ? null : JSON.stringify(match) };
  const held = await openStatement.query(db, schema, {
    ...{ jobId, leaseId, name, position, parallel, ms },
    ...{ ...wanted, matchKey: matchKeyOf(match) },
  });
  if (held.length === 0) return undefined;
  const row = await retryConflicts(() =>
    db.transaction(async (tx) => {
      // This is a separate statement, so that the next one sees the events that were delivered before the lock was
      // granted.
      await lockStatement.query(tx, schema, { jobId, leaseId });
      const [found] = await takeStatement.query<WaitRow>(tx, schema, { jobId, leaseId, name, ...wanted, actor });
      return found;
    }),
  );
  return row && toEventWait(row);
}

function toEventWait({ status, result, waitsUntil, leftMs }: WaitRow): EventWait {
  if (status === 'completed' && result !== null) return { kind: 'received', event: result };
  if (status === 'skipped') return { kind: 'timedOut' };
  return { kind: 'open', until: waitsUntil ?? undefined, leftMs: leftMs ?? foreverMs };
}
