// What a lease holder may do while it holds: renew, and learn what people asked of its jobs.
// One statement for all running jobs of a tenant; it touches lease rows, never job rows.
import type { Queryable } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import type { CancelDetail, StopIntent } from './job.ts';

export interface HeldJob {
  jobId: string;
  leaseId: string;
}

export interface LiveJob extends HeldJob {
  cancelIntent: StopIntent | null;
  cancelDetail: CancelDetail | null;
}

/** Renews the leases; returns the jobs that they still own. A job left out is lost. */
export async function renewLeases(
  db: Queryable,
  schema: Schema,
  held: HeldJob[],
  leaseSeconds: number,
): Promise<LiveJob[]> {
  const { text, values } = renewStatement(schema, held, leaseSeconds);
  return toLiveJobs(await db.query<LiveRow>(text, values), held);
}

/** The statement alone, for the heartbeat thread, which has a connection of its own. */
export function renewStatement(
  schema: string,
  held: HeldJob[],
  leaseSeconds: number,
): { text: string; values: unknown[] } {
  return {
    text: `with renewed as (
        update ${schema}.leases set expires_at = now() + $3::float8 * interval '1 second', last_heartbeat_at = now()
         where id = any($2::uuid[]) and state = 'ACTIVE'
        returning id)
      select j.id, j.lease_id, j.cancel_intent, j.cancel_detail from ${schema}.jobs j
       where j.id = any($1::uuid[]) and j.status = 'RUNNING' and j.lease_id in (select id from renewed)`,
    values: [held.map((h) => h.jobId), [...new Set(held.map((h) => h.leaseId))], leaseSeconds],
  };
}

export interface LiveRow {
  id: string;
  lease_id: string;
  cancel_intent: StopIntent | null;
  cancel_detail: CancelDetail | null;
}

/** The database answers for all leases at once; a job counts only under its own. */
export function toLiveJobs(rows: LiveRow[], held: HeldJob[]): LiveJob[] {
  const leases = new Map(held.map((h) => [h.jobId, h.leaseId]));
  return rows
    .filter((row) => leases.get(row.id) === row.lease_id)
    .map((row) => ({
      jobId: row.id,
      leaseId: row.lease_id,
      cancelIntent: row.cancel_intent,
      cancelDetail: row.cancel_detail,
    }));
}

/** True if the lease owns the job now, by the database's clock. */
export async function ownsJob(db: Queryable, schema: Schema, held: HeldJob): Promise<boolean> {
  const rows = await db.query(
    `select 1 from ${schema}.jobs j join ${schema}.leases l on l.id = j.lease_id
      where j.id = $1 and j.lease_id = $2 and j.status = 'RUNNING' and l.state = 'ACTIVE' and l.expires_at > now()`,
    [held.jobId, held.leaseId],
  );
  return rows.length > 0;
}
