// Deletes jobs that have been stale for long enough. Only finished jobs: one that runs, waits or holds a lane is never
// deleted, however old.

import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { statement, tenant } from '../../database/sql.ts';
import { insertEvents } from '../../events/log/record.ts';
import { statusIn, terminalStatuses } from '../model/states.ts';

/** Predicate over a job. One in ERROR is finished only if it does not hold a lane. */
export const isFinishedSql = `(${statusIn(terminalStatuses)}
         or (status = 'ERROR' and (target_id is null or on_error = 'continue')))`;

const deleteStatement = statement(`
  with old as (
    select id
      from ${tenant}.jobs
     where stale_at is not null
       and stale_at <= now() - :staleForSeconds::float8 * interval '1 second'
       and ${isFinishedSql}
     order by stale_at
     limit :limit
       for update skip locked
  ),
  deleted as (
    delete from ${tenant}.jobs
     where id = any(array(select id from old))
    returning id, type, queue, target_id, status, attempt, lease_id
  ),
  deleted_phases as (
    delete from ${tenant}.phases
     where job_id = any(array(select id from deleted))
  ),
  deleted_logs as (
    delete from ${tenant}.job_logs
     where job_id = any(array(select id from deleted))
  ),
  recorded as (
    ${insertEvents(tenant, {
      source: 'deleted',
      type: `'job.deleted'`,
      actor: ':actor',
      from: 'status',
      to: 'null',
      data: `jsonb_build_object('job_type', type, 'queue', queue)`,
    })}
  )
  select id from deleted`);

/** Deletes up to `limit` jobs with their phases and logs; returns how many. */
export async function deleteStaleJobs(
  db: Queryable,
  schema: Schema,
  { staleForSeconds, actor, limit }: { staleForSeconds: number; actor: string; limit: number },
): Promise<number> {
  return (await deleteStatement.query(db, schema, { staleForSeconds, actor, limit })).length;
}
