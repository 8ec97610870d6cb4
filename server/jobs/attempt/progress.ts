// What a holder writes while it runs. Every write is fenced by job, lease and status; zero rows
// means that the lease is lost and nothing was written.
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import type { HeldJob } from '../claim/lease.ts';

export interface Progress {
  percent: number;
  message?: string | undefined;
}

export async function saveProgress(
  db: Queryable,
  schema: Schema,
  held: HeldJob,
  progress: Progress,
  actor: string,
): Promise<boolean> {
  const rows = await db.query(
    `with saved as (
       update ${schema}.jobs set progress = $3::real, progress_message = $4, updated_at = now()
        where id = $1 and lease_id = $2 and status = 'RUNNING'
       returning id, target_id, attempt, lease_id),
     told as (
       insert into ${schema}.events (type, job_id, target_id, from_status, to_status, attempt, lease_id, actor, data)
       select 'job.progress', id, target_id, 'RUNNING', 'RUNNING', attempt, lease_id, $5, $6::jsonb from saved)
     select id from saved`,
    [
      held.jobId,
      held.leaseId,
      progress.percent,
      progress.message ?? null,
      actor,
      JSON.stringify({ progress: progress.percent, message: progress.message }),
    ],
  );
  return rows.length > 0;
}

export async function saveCheckpoint(db: Queryable, schema: Schema, held: HeldJob, state: unknown): Promise<boolean> {
  const rows = await db.query(
    `update ${schema}.jobs set checkpoint = $3::jsonb, updated_at = now()
      where id = $1 and lease_id = $2 and status = 'RUNNING' returning id`,
    [held.jobId, held.leaseId, JSON.stringify(state ?? null)],
  );
  return rows.length > 0;
}
