// What a running handler reports: progress (its own and its phase's), token usage, a checkpoint. Every write is fenced
// by job, lease and status; false means that the lease no longer owns the job and nothing was written.
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import type { HeldJob } from '../claim/lease.ts';

export interface Report {
  progress?: { percent: number; message?: string | undefined; phase?: { name: string; percent: number } | undefined };
  /** Of all attempts. Absolute, so that a report whose answer was lost can be sent again. */
  tokensUsed?: number;
}

export async function saveReport(
  db: Queryable,
  schema: Schema,
  held: HeldJob,
  report: Report,
  actor: string,
): Promise<boolean> {
  const { progress, tokensUsed } = report;
  const phase = progress?.phase;
  const events = [
    ...(progress === undefined ? [] : [{ type: 'job.progress', data: progressEventData(progress) }]),
    ...(tokensUsed === undefined ? [] : [{ type: 'job.usage', data: { tokens_used: tokensUsed } }]),
  ];
  const rows = await db.query(
    `with saved as (
       update ${schema}.jobs set progress = coalesce($3::real, progress), progress_message = coalesce($4, progress_message),
         tokens_used = greatest(tokens_used, $5::bigint), updated_at = now()
        where id = $1 and lease_id = $2 and status = 'RUNNING'
       returning id, target_id, attempt, lease_id),
     phased as (
       update ${schema}.phases p set progress = $7::real, message = coalesce($4, p.message) from saved s
        where p.job_id = s.id and p.name = $6 and p.status = 'running'),
     recorded as (
       insert into ${schema}.events (type, job_id, target_id, from_status, to_status, attempt, lease_id, actor, data)
       select e.type, s.id, s.target_id, 'RUNNING', 'RUNNING', s.attempt, s.lease_id, $9, e.data
         from saved s cross join jsonb_to_recordset($8::jsonb) as e(type text, data jsonb))
     select id from saved`,
    [
      held.jobId,
      held.leaseId,
      progress?.percent ?? null,
      progress?.message ?? null,
      tokensUsed ?? 0,
      phase?.name ?? null,
      phase?.percent ?? 0,
      JSON.stringify(events),
      actor,
    ],
  );
  return rows.length > 0;
}

function progressEventData({ percent, message, phase }: NonNullable<Report['progress']>): object {
  return {
    progress: percent,
    ...(message !== undefined && { message }),
    ...(phase !== undefined && { phase: phase.name, phase_progress: phase.percent }),
  };
}

export async function saveCheckpoint(db: Queryable, schema: Schema, held: HeldJob, state: unknown): Promise<boolean> {
  const rows = await db.query(
    `update ${schema}.jobs set checkpoint = $3::jsonb, updated_at = now()
      where id = $1 and lease_id = $2 and status = 'RUNNING' returning id`,
    [held.jobId, held.leaseId, JSON.stringify(state ?? null)],
  );
  return rows.length > 0;
}

/** Whether the lease owns the job, even if it is overdue. */
export async function isHeld(db: Queryable, schema: Schema, held: HeldJob): Promise<boolean> {
  const rows = await db.query(`select 1 from ${schema}.jobs where id = $1 and lease_id = $2 and status = 'RUNNING'`, [
    held.jobId,
    held.leaseId,
  ]);
  return rows.length > 0;
}
