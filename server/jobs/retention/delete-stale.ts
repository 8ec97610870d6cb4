// The end of a job's row: stale first, deleted later. Only jobs that are over and hold nothing; what
// runs, waits, or holds a lane for a person is never touched, however old.
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { insertEvents } from '../../events/log/record.ts';
import type { Status } from '../model/states.ts';

export interface RetiredJob {
  id: string;
  type: string;
  queue: string;
  targetId: string | null;
  status: Status;
}

export interface RetiredRow {
  id: string;
  type: string;
  queue: string;
  target_id: string | null;
  status: Status;
}

// SQL. A job that failed without a lane, or left it, holds nobody up.
export const isFinishedSql = `(status in ('SUCCESS','PARTIAL','CANCELED') or (status = 'ERROR' and (target_id is null or on_error = 'continue')))`;

/** Deletes up to `limit` jobs that have been stale for longer than this, with their phases and logs. */
export async function deleteStaleJobs(
  db: Queryable,
  schema: Schema,
  options: { staleForSeconds: number; actor: string; limit: number },
): Promise<RetiredJob[]> {
  const rows = await db.query<RetiredRow>(
    `with old as (
       select id from ${schema}.jobs
        where stale_at is not null and stale_at <= now() - $1::float8 * interval '1 second' and ${isFinishedSql}
        order by stale_at limit $2 for update skip locked),
     gone as (
       delete from ${schema}.jobs where id = any(array(select id from old))
       returning id, type, queue, target_id, status, attempt, lease_id),
     phases_gone as (delete from ${schema}.phases where job_id = any(array(select id from gone))),
     logs_gone as (delete from ${schema}.job_logs where job_id = any(array(select id from gone))),
     told as (${insertEvents(schema, {
       source: 'gone',
       type: `'job.deleted'`,
       actor: '$3',
       from: 'status',
       to: 'null',
       data: `jsonb_build_object('job_type', type, 'queue', queue)`,
     })})
     select id, type, queue, target_id, status from gone`,
    [options.staleForSeconds, options.limit, options.actor],
  );
  return rows.map(toRetiredJob);
}

export function toRetiredJob({ target_id, ...row }: RetiredRow): RetiredJob {
  return { ...row, targetId: target_id };
}
