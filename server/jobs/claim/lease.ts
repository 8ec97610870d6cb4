// Leases: each row says who owns which jobs until when. This file has the SQL with which other statements begin and end
// them. A renewal touches lease rows only. The heartbeat thread loads this file, so it imports little.
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { type BoundStatement, statement, tenant } from '../../database/sql.ts';
import type { CancelDetail, StopIntent } from '../model/job.ts';
import type { StopRequest } from '../model/job-values.ts';
import { ownedStatuses, statusIn } from '../model/states.ts';

export interface HeldJob {
  jobId: string;
  leaseId: string;
}

export interface LiveJob extends HeldJob, StopRequest {}

/** Predicate over `j`: the job is RUNNING under the lease of the caller. Every write of a holder has it. */
export const fence = `j.id = :jobId
       and j.lease_id = :leaseId
       and j.status = 'RUNNING'`;

/** SQL of the CTE `held`: the job of the fence, whose attempt cannot end before the commit. */
export function lockHeld(columns = 'j.id'): string {
  return `held as (
    select ${columns}
      from ${tenant}.jobs j
     where ${fence}
       for share
  )`;
}

/** The same for several jobs: each under the lease in its place of the other list. */
export const fenceOfEach = `j.id = any(:jobIds::uuid[])
       and j.lease_id = (:leaseIds::uuid[])[array_position(:jobIds::uuid[], j.id)]
       and j.status = 'RUNNING'`;

/** Predicate over `j`: the job has a holder, or a remote claim that may become one. */
const owned = statusIn(ownedStatuses, 'j.status');

/** SQL expressions for the values of a new lease. */
export interface LeaseValues {
  lease: string;
  owner: string;
  seconds: string;
}

/** SQL of a CTE that inserts one lease for all jobs in `source`, and none if `source` is empty. */
export function insertLease(
  schema: Schema,
  kind: 'local' | 'claim',
  { lease, owner, seconds }: LeaseValues,
  source: string,
): string {
  return `
    insert into ${schema}.leases (id, kind, owner, job_ids, ttl_seconds, expires_at)
    select ${lease}, '${kind}', ${owner}, ids, ${seconds}::real, at + ${seconds}::float8 * interval '1 second'
      from (select array_agg(id) as ids, now() as at from ${source}) as s
     where ids is not null`;
}

/**
 * SQL of the CTE `ended`, which releases the daemons' leases `leases` unless a RUNNING job still refers to them. The
 * outcome of such a job was given up, or lost in a failover; its lease must expire so that the sweeper finds it. A
 * statement cannot read its own writes, so the jobs of the CTE `finished` are excluded; usually these are all, and no
 * job is read. It compares arrays, because joins may read a whole table.
 */
export function endLeases(schema: Schema, leases: string, finished: string): string {
  return `ended as (
    update ${schema}.leases
       set state = 'RELEASED',
           released_at = now()
     where state = 'ACTIVE'
       and id = any(array(
         select l.id
           from ${schema}.leases l
          where l.id = any(${leases})
            and l.kind = 'local'
            and l.state = 'ACTIVE'
            and array(
              select j.id
                from ${schema}.jobs j
               where j.id = any(array(select u.id from unnest(l.job_ids) as u(id) where u.id not in (select id from ${finished})))
                 and j.lease_id = l.id
                 and j.status = 'RUNNING'
               limit 1
            ) = '{}'
       ))
  )`;
}

/** Renews the leases, and reads the jobs that they still own with their stop requests. */
export const renewal = statement(`
  with renewed as (
    update ${tenant}.leases
       set expires_at = now() + :leaseSeconds::float8 * interval '1 second',
           last_heartbeat_at = now()
     where id = any(:leaseIds::uuid[])
       and state = 'ACTIVE'
    returning id, job_ids
  )
  select j.id, j.lease_id, j.cancel_intent, j.cancel_detail
    from ${tenant}.jobs j
   where j.id = any(array(select unnest(job_ids) from renewed))
     and j.status = 'RUNNING'
     and j.lease_id in (select id from renewed)`);

/** Used by the heartbeat thread, which has its own connection and receives the quoted schema in a message. */
export function renewStatement(schema: string, leaseIds: readonly string[], leaseSeconds: number): BoundStatement {
  return renewal.bind(schema as Schema, { leaseIds, leaseSeconds });
}

/** The same renewal by the main thread. Returns the jobs that the leases still own. */
export async function renewLeases(
  db: Queryable,
  schema: Schema,
  leaseIds: readonly string[],
  leaseSeconds: number,
): Promise<LiveJob[]> {
  const rows = await renewal.query<LiveRow>(db, schema, { leaseIds, leaseSeconds });
  return rows.map(toLiveJob);
}

export interface LiveRow {
  id: string;
  lease_id: string;
  cancel_intent: StopIntent | null;
  cancel_detail: CancelDetail | null;
}

export function toLiveJob(row: LiveRow): LiveJob {
  return { jobId: row.id, leaseId: row.lease_id, cancelIntent: row.cancel_intent, cancelDetail: row.cancel_detail };
}

const timeLeft = statement(`
  select (extract(epoch from l.expires_at - now()) * 1000)::float8 as left_ms
    from ${tenant}.jobs j
    join ${tenant}.leases l on l.id = j.lease_id
   where ${fence}
     and l.state = 'ACTIVE'
     and l.expires_at > now()`);

/**
 * Returns how long the lease still owns the job, by the database's clock at the moment of the answer; undefined if it
 * does not.
 */
export async function leaseLeftMs(
  db: Queryable,
  schema: Schema,
  { jobId, leaseId }: HeldJob,
): Promise<number | undefined> {
  const [row] = await timeLeft.query<{ left_ms: number }>(db, schema, { jobId, leaseId });
  return row?.left_ms;
}

const fencedJob = statement(`select 1 from ${tenant}.jobs j where ${fence}`);

/** True if the lease still owns the job, even if it has expired by the clock. */
export async function isHeld(db: Queryable, schema: Schema, { jobId, leaseId }: HeldJob): Promise<boolean> {
  return (await fencedJob.query(db, schema, { jobId, leaseId })).length > 0;
}

/** Predicate over `j`: the job is owned, but its lease is not active. No sweep of leases finds such a job. */
export function hasNoLease(schema: Schema): string {
  return `${owned}
     and not exists (
       select 1
         from ${schema}.leases l
        where l.id = j.lease_id
          and l.state = 'ACTIVE'
          and j.id = any(l.job_ids)
     )`;
}

// On conflict the lease has ended. A lease is not trusted again after its end, so it is reopened as expired.
const reopen = statement(`
  with lost as (
    select j.lease_id as id,
           min(case when j.status <> 'RUNNING' then 'claim' when j.remote then 'remote' else 'local' end) as kind,
           min(j.lease_owner) as owner,
           array_agg(j.id) as job_ids,
           min(j.queue) filter (where j.remote) as queue,
           coalesce(sum(j.cost_units) filter (where j.remote), 0)::int as cost_units,
           now() as at
      from ${tenant}.jobs j
     where j.id = any(:jobIds::uuid[])
       and ${hasNoLease(tenant)}
     group by j.lease_id
  )
  insert into ${tenant}.leases as l (id, kind, owner, job_ids, queue, cost_units, ttl_seconds, granted_at, last_heartbeat_at, expires_at)
  select id, kind, owner, job_ids, queue, cost_units, :leaseSeconds::real, at, at, at + :leaseSeconds::float8 * interval '1 second'
    from lost
  on conflict (id) do update
     set state = excluded.state,
         kind = excluded.kind,
         released_at = null,
         release_status = null,
         job_ids = excluded.job_ids,
         expires_at = excluded.granted_at
  returning l.id`);

/**
 * Opens leases again for owned jobs whose lease is missing or has ended. This version leaves no such job, but an older
 * daemon, a restored backup or manual SQL may. A live holder renews the lease; otherwise the lease expires and its jobs
 * are recovered as usual. Returns the ids of the leases.
 */
export async function reopenLeases(
  db: Queryable,
  schema: Schema,
  jobIds: readonly string[],
  leaseSeconds: number,
): Promise<string[]> {
  const rows = await reopen.query<{ id: string }>(db, schema, { jobIds, leaseSeconds });
  return rows.map((row) => row.id);
}
