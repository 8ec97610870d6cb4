// The durable calls of a job's `run`, which share their table with phases: one row per call, written fenced by the lease
// of the attempt, so that a later attempt finds what was done and how long a sleep lasts.
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { statement, tenant } from '../../database/sql.ts';
import { fence, type HeldJob } from '../claim/lease.ts';
import type { PhaseKind, PhaseStatus } from '../model/phase.ts';

export interface StoredStep {
  name: string;
  kind: PhaseKind;
  /** Its place in the order of calls. */
  position: number;
  /** Another durable call of the run was open when it was made, so its place may differ from run to run. */
  parallel: boolean;
  status: PhaseStatus;
  result: unknown;
  /** Of a wait: until when, and how long that is from now by the database's clock. */
  waitsUntil: string | null;
  leftMs: number | null;
}

/** One durable call, as the handler makes it. */
export interface StepCall {
  name: string;
  position: number;
  parallel: boolean;
}

/** Until when: a time, or so long from now by the database's clock. */
export type WaitEnd = { ms: number } | { until: string };

export interface OpenWait {
  until: string;
  leftMs: number;
}

const leftMs = 'extract(epoch from p.waits_until - now())::float8 * 1000 as "leftMs"';

const loadStatement = statement(`
  with held as (
    select j.id
      from ${tenant}.jobs j
     where ${fence}
       for share
  ),
  due as (
    select p.name
      from ${tenant}.phases p
     where p.job_id = :jobId
       and p.kind = 'sleep'
       and p.status in ('pending', 'running')
       and p.waits_until <= now()
  ),
  ended as (
    update ${tenant}.phases p
       set status = 'completed',
           progress = 100,
           finished_at = p.waits_until
      from held h, due d
     where p.job_id = h.id
       and p.name = d.name
  )
  select p.name, p.kind, p.position, p.parallel, p.status, p.result, p.waits_until as "waitsUntil", ${leftMs}
    from held h
    left join ${tenant}.phases p on p.job_id = h.id
   order by p.position`);

/** The calls that earlier attempts made, in their order. Undefined: the lease no longer owns the job. */
export async function loadSteps(
  db: Queryable,
  schema: Schema,
  { jobId, leaseId }: HeldJob,
): Promise<StoredStep[] | undefined> {
  const rows = await loadStatement.query<StoredStep & { name: string | null }>(db, schema, { jobId, leaseId });
  return rows.length === 0 ? undefined : rows.filter((row) => row.name !== null);
}

// On conflict: the same call was stored, and its answer was lost. Its end stays as it was.
const openSleepStatement = statement(`
  with held as (
    select j.id
      from ${tenant}.jobs j
     where ${fence}
       for share
  ),
  p as (
    insert into ${tenant}.phases (job_id, name, kind, position, parallel, status, attempt, started_at, waits_until)
    select h.id, :name, 'sleep', :position, :parallel, 'running', 1, now(),
           coalesce(:until::timestamptz, now() + :ms::float8 * interval '1 millisecond')
      from held h
    on conflict (job_id, name) do update
       set position = excluded.position
    returning waits_until
  )
  select p.waits_until as until, ${leftMs}
    from p`);

/** Stores the end of a sleep. Undefined: the lease no longer owns the job. */
export async function openSleep(
  db: Queryable,
  schema: Schema,
  { jobId, leaseId }: HeldJob,
  call: StepCall,
  end: WaitEnd,
): Promise<OpenWait | undefined> {
  const [row] = await openSleepStatement.query<OpenWait>(db, schema, {
    jobId,
    leaseId,
    ...call,
    until: 'until' in end ? end.until : null,
    ms: 'ms' in end ? end.ms : null,
  });
  return row;
}
