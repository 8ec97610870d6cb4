// A remote worker's heartbeat: renews its lease by the database's clock, saves progress and usage, and answers with the
// stop that a person or the token limit requests.
import type { Database, Queryable } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import { saveReport } from '../jobs/attempt/report.ts';
import { type Lease, type SchedulerJob, toPercent } from './dialect.ts';
import { getSchedulerJob } from './read.ts';
import { getLease, getOwnLease, type LeaseHolder, leaseOver } from './worker-lease.ts';

export interface Heartbeat extends LeaseHolder {
  /** 0 to 1. */
  progress?: number | undefined;
  message?: string | undefined;
  /** Of all attempts, absolute. */
  tokensUsed?: number | undefined;
  /** What holds for jobs without a limit of their own; 0 means none. */
  tokenLimit: number;
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
    await keepReport(tx, schema, beat);
    const job = await getSchedulerJob(tx, schema, beat.jobId);
    return { lease: await getLease(tx, schema, beat.leaseId), job: withinLimit(job, beat.tokenLimit) };
  });
}

/** An expired lease is never renewed, even if no sweeper has ended it yet. */
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

/** Writes and records only what is new: most heartbeats repeat the one before. */
async function keepReport(tx: Queryable, schema: Schema, beat: Heartbeat): Promise<void> {
  if (beat.progress === undefined && beat.message === undefined && beat.tokensUsed === undefined) return;
  const job = await getSchedulerJob(tx, schema, beat.jobId);
  const percent = beat.progress === undefined ? (job.progress ?? 0) : toPercent(beat.progress);
  const message = beat.message ?? job.progressMessage ?? undefined;
  const moved = Math.fround(percent) !== job.progress || message !== (job.progressMessage ?? undefined);
  const used = beat.tokensUsed !== undefined && beat.tokensUsed > job.tokensUsed;
  if (!moved && !used) return;
  const report = {
    ...(moved && { progress: { percent, message } }),
    ...(used && { tokensUsed: beat.tokensUsed ?? 0 }),
  };
  await saveReport(tx, schema, beat, report, `worker:${beat.workerId}`);
}

/** A job that used too much must stop, whether or not a person says so; its release then fails it. */
function withinLimit(job: SchedulerJob, tokenLimit: number): SchedulerJob {
  const limit = job.tokenLimit ?? tokenLimit;
  if (limit === 0 || job.tokensUsed <= limit || job.cancelRequested) return job;
  return { ...job, cancelRequested: true, cancelIntent: 'cancel' };
}
