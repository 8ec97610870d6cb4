// Deletes jobs that have been stale for long enough. Only finished jobs: one that runs, waits or holds a lane is never
// deleted, however old.

import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { insertEvents } from '../../events/log/record.ts';
import { statusIn, terminalStatuses } from '../model/states.ts';

// SQL. A job in ERROR is finished only if it does not hold a lane.
export const isFinishedSql = `(${statusIn(terminalStatuses)} or (status = 'ERROR' and (target_id is null or on_error = 'continue')))`;

/** Deletes up to `limit` jobs with their phases and logs; returns how many. */
export async function deleteStaleJobs(
  db: Queryable,
  schema: Schema,
  options: { staleForSeconds: number; actor: string; limit: number },
): Promise<number> {
  const rows = await db.query(
    `with old as (
       select id from ${schema}.jobs
        where stale_at is not null and stale_at <= now() - $1::float8 * interval '1 second' and ${isFinishedSql}
        order by stale_at limit $2 for update skip locked),
     gone as (
       delete from ${schema}.jobs where id = any(array(select id from old))
       returning id, type, queue, target_id, status, attempt, lease_id),
     phases_gone as (delete from ${schema}.phases where job_id = any(array(select id from gone))),
     logs_gone as (delete from ${schema}.job_logs where job_id = any(array(select id from gone))),
     recorded as (${insertEvents(schema, {
       source: 'gone',
       type: `'job.deleted'`,
       actor: '$3',
       from: 'status',
       to: 'null',
       data: `jsonb_build_object('job_type', type, 'queue', queue)`,
     })})
     select id from gone`,
    [options.staleForSeconds, options.limit, options.actor],
  );
  return rows.length;
}
