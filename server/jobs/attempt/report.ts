// What a holder writes about its attempt while it runs: progress (its own and its phase's), token usage and the
// checkpoint. Every write is fenced; false means that the lease no longer owns the job, and nothing was written.
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { statement, tenant } from '../../database/sql.ts';
import { currentTransaction } from '../../events/log/transaction-ids.ts';
import { fence, type HeldJob } from '../claim/lease.ts';

export interface Report {
  progress?: { percent: number; message?: string | undefined; phase?: { name: string; percent: number } | undefined };
  /** Of all attempts. Absolute, so that a report whose answer was lost can be sent again. */
  tokensUsed?: number;
}

const reportStatement = statement(`
  with saved as (
    update ${tenant}.jobs j
       set progress = coalesce(:percent::real, j.progress),
           progress_message = coalesce(:message, j.progress_message),
           tokens_used = greatest(j.tokens_used, :tokensUsed::bigint),
           updated_at = now()
     where ${fence}
    returning j.id, j.target_id, j.attempt, j.lease_id
  ),
  phase as (
    update ${tenant}.phases p
       set progress = :phasePercent::real,
           message = coalesce(:message, p.message)
      from saved s
     where p.job_id = s.id
       and p.name = :phase
       and p.status = 'running'
  ),
  recorded as (
    insert into ${tenant}.events (xid, type, job_id, target_id, from_status, to_status, attempt, lease_id, actor, data)
    select ${currentTransaction(tenant)}, e.type, s.id, s.target_id, 'RUNNING', 'RUNNING', s.attempt, s.lease_id, :actor, e.data
      from saved s
     cross join jsonb_to_recordset(:events::jsonb) as e(type text, data jsonb)
  )
  select id from saved`);

export async function saveReport(
  db: Queryable,
  schema: Schema,
  { jobId, leaseId }: HeldJob,
  { progress, tokensUsed }: Report,
  actor: string,
): Promise<boolean> {
  const events = [
    ...(progress === undefined ? [] : [{ type: 'job.progress', data: progressEventData(progress) }]),
    ...(tokensUsed === undefined ? [] : [{ type: 'job.usage', data: { tokens_used: tokensUsed } }]),
  ];
  const rows = await reportStatement.query(db, schema, {
    jobId,
    leaseId,
    percent: progress?.percent ?? null,
    message: progress?.message ?? null,
    tokensUsed: tokensUsed ?? 0,
    phase: progress?.phase?.name ?? null,
    phasePercent: progress?.phase?.percent ?? 0,
    events: JSON.stringify(events),
    actor,
  });
  return rows.length > 0;
}

function progressEventData({ percent, message, phase }: NonNullable<Report['progress']>): object {
  return {
    progress: percent,
    ...(message !== undefined && { message }),
    ...(phase !== undefined && { phase: phase.name, phase_progress: phase.percent }),
  };
}

const checkpointStatement = statement(`
  update ${tenant}.jobs j
     set checkpoint = :checkpoint::jsonb,
         updated_at = now()
   where ${fence}
  returning j.id`);

export async function saveCheckpoint(
  db: Queryable,
  schema: Schema,
  { jobId, leaseId }: HeldJob,
  state: unknown,
): Promise<boolean> {
  const checkpoint = JSON.stringify(state ?? null);
  return (await checkpointStatement.query(db, schema, { jobId, leaseId, checkpoint })).length > 0;
}
