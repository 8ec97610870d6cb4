// What a lease holder may do while it holds: renew, and learn what people asked of its jobs.
// One statement for all running jobs of a tenant; it touches lease rows, never job rows.
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import type { CancelDetail, StopIntent } from '../model/job.ts';

export interface HeldJob {
  jobId: string;
  leaseId: string;
}

export interface LiveJob extends HeldJob {
  cancelIntent: StopIntent | null;
  cancelDetail: CancelDetail | null;
}

/** How a statement names what a new lease is given. */
export interface LeasePlaces {
  lease: string;
  owner: string;
  seconds: string;
}

/** One lease for all jobs of the CTE `source`, to be used as a CTE beside their start; none if there are none. */
export function insertLease(
  schema: Schema,
  kind: 'local' | 'claim',
  { lease, owner, seconds }: LeasePlaces,
  source: string,
): string {
  return `insert into ${schema}.leases (id, kind, owner, job_ids, ttl_seconds, expires_at)
       select ${lease}, '${kind}', ${owner}, ids, ${seconds}::real, at + ${seconds}::float8 * interval '1 second'
         from (select array_agg(id) as ids, now() as at from ${source}) as s where ids is not null`;
}

/**
 * The CTE `ended`, beside a CTE `settled` of the jobs that this statement ends: releases the daemons' leases `leases`,
 * except those that a RUNNING job still refers to. Such a job's outcome was given up or lost in a failover; its lease
 * must run out, so that the sweeper finds the job. What the statement writes it cannot read, so the jobs of `settled`
 * are left out; mostly these are all, and no job is looked up. Arrays, because joins may read a whole table.
 */
export function endLeases(schema: Schema, leases: string, settled: string): string {
  const others = `array(select u.id from unnest(l.job_ids) as u(id) where u.id not in (select id from ${settled}))`;
  return `ended as (
       update ${schema}.leases set state = 'RELEASED', released_at = now()
        where state = 'ACTIVE' and id = any(array(
          select l.id from ${schema}.leases l
           where l.id = any(${leases}) and l.kind = 'local' and l.state = 'ACTIVE'
             and array(select j.id from ${schema}.jobs j
                        where j.id = any(${others}) and j.lease_id = l.id and j.status = 'RUNNING' limit 1) = '{}')))`;
}

/**
 * Renews the leases; answers with the jobs that they still own. A job left out is lost. The statement alone, for
 * the heartbeat thread, which has a connection of its own. A lease knows its jobs.
 */
export function renewStatement(
  schema: string,
  leaseIds: readonly string[],
  leaseSeconds: number,
): { text: string; values: unknown[] } {
  return {
    text: `with renewed as (
        update ${schema}.leases set expires_at = now() + $2::float8 * interval '1 second', last_heartbeat_at = now()
         where id = any($1::uuid[]) and state = 'ACTIVE'
        returning id, job_ids)
      select j.id, j.lease_id, j.cancel_intent, j.cancel_detail from ${schema}.jobs j
       where j.id = any(array(select unnest(job_ids) from renewed)) and j.status = 'RUNNING'
         and j.lease_id in (select id from renewed)`,
    values: [leaseIds, leaseSeconds],
  };
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

/** For how long the lease owns the job, by the database's clock at the moment of the answer; undefined if it does not. */
export async function leaseLeftMs(db: Queryable, schema: Schema, held: HeldJob): Promise<number | undefined> {
  const [row] = await db.query<{ left_ms: number }>(
    `select (extract(epoch from l.expires_at - now()) * 1000)::float8 as left_ms
       from ${schema}.jobs j join ${schema}.leases l on l.id = j.lease_id
      where j.id = $1 and j.lease_id = $2 and j.status = 'RUNNING' and l.state = 'ACTIVE' and l.expires_at > now()`,
    [held.jobId, held.leaseId],
  );
  return row?.left_ms;
}
