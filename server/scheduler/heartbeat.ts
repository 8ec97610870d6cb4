// A worker's sign of life: renews its lease by the database's clock, carries progress, and answers
// with what people asked of the job.
import type { Database, Queryable } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import { saveProgress } from '../jobs/progress.ts';
import type { Lease, SchedulerJob } from './dialect.ts';
import { getLease, getOwnLease, type LeaseHolder, leaseOver } from './lease.ts';
import { getSchedulerJob } from './read.ts';

export interface Heartbeat extends LeaseHolder {
  /** 0 to 1. */
  progress?: number | undefined;
  message?: string | undefined;
}

export async function heartbeat(
  db: Database,
  schema: Schema,
  beat: Heartbeat,
): Promise<{ lease: Lease; job: SchedulerJob }> {
  const lease = await getOwnLease(db, schema, beat);
  if (lease.state !== 'ACTIVE' || lease.overdue) throw leaseOver(lease);
  return db.transaction(async (tx) => {
    if (!(await renew(tx, schema, beat, lease.ttlSeconds))) throw leaseOver(await getLease(tx, schema, beat.leaseId));
    await keepProgress(tx, schema, beat);
    return {
      lease: await getLease(tx, schema, beat.leaseId),
      job: await getSchedulerJob(tx, schema, beat.jobId),
    };
  });
}

/** Once expired a lease is never renewed, even if nobody has taken the job yet. */
async function renew(tx: Queryable, schema: Schema, beat: LeaseHolder, ttlSeconds: number): Promise<boolean> {
  const rows = await tx.query(
    `update ${schema}.leases l set expires_at = now() + $4::float8 * interval '1 second', last_heartbeat_at = now()
      where l.id = $1 and l.kind = 'remote' and l.owner = $2 and l.state = 'ACTIVE' and l.expires_at > now()
        and exists (select 1 from ${schema}.jobs j where j.id = $3 and j.lease_id = $1 and j.status = 'RUNNING')
      returning l.id`,
    [beat.leaseId, beat.workerId, beat.jobId, ttlSeconds],
  );
  return rows.length > 0;
}

/** Writes and tells only what is new: most beats say the same as the one before. */
async function keepProgress(tx: Queryable, schema: Schema, beat: Heartbeat): Promise<void> {
  if (beat.progress === undefined && beat.message === undefined) return;
  const job = await getSchedulerJob(tx, schema, beat.jobId);
  const percent = beat.progress === undefined ? (job.progress ?? 0) : beat.progress * 100;
  const message = beat.message ?? job.progressMessage ?? undefined;
  if (Math.fround(percent) === job.progress && message === (job.progressMessage ?? undefined)) return;
  await saveProgress(tx, schema, beat, { percent, message }, `worker:${beat.workerId}`);
}
