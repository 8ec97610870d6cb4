// Deletes jobs that have been stale for long enough. Only finished jobs are deleted: a job that runs, waits or holds a
// lane is kept, however old it is.
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { statement, statementVariants, tenant } from '../../database/sql.ts';
import { insertEvents } from '../../events/log/record.ts';
import type { FinishedJob, RetentionHook } from '../model/job-values.ts';
import { statusIn, terminalStatuses } from '../model/states.ts';

/** Predicate over a job. A job in ERROR is finished only if it does not hold a lane. */
export const isFinishedSql = `(${statusIn(terminalStatuses)}
         or (status = 'ERROR' and (target_id is null or on_error = 'continue')))`;

/** A child whose result its parent has not read, because the call is open. */
const isAwaited = `
         select 1
           from ${tenant}.dependencies d
           join ${tenant}.phases p on p.job_id = d.job_id and p.name = d.step
          where d.after_id = jobs.id
            and p.kind = 'children'
            and p.status = 'pending'`;

const deleteStatement = statementVariants<{ chosen: boolean }>(
  ({ chosen }) => `
  with old as (
    select id
      from ${tenant}.jobs
     where stale_at is not null
       and stale_at <= now() - :staleForSeconds::float8 * interval '1 second'
       and ${isFinishedSql}
       and not exists (${isAwaited})
       ${chosen ? 'and id = any(:ids::uuid[])' : ''}
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
  deleted_edges as (
    delete from ${tenant}.dependencies
     where job_id = any(array(select id from deleted))
  ),
  deleted_logs as (
    delete from ${tenant}.job_logs
     where job_id = any(array(select id from deleted))
  ),
  deleted_questions as (
    delete from ${tenant}.questions
     where job_id = any(array(select id from deleted))
    returning id
  ),
  deleted_links as (
    delete from ${tenant}.question_links
     where question_id = any(array(select id from deleted_questions))
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
  select id from deleted`,
);

interface DeleteOptions {
  staleForSeconds: number;
  actor: string;
  limit: number;
  /** Only these jobs. */
  ids?: readonly string[];
}

/** Deletes up to `limit` jobs with their phases and logs; returns how many. */
export async function deleteStaleJobs(
  db: Queryable,
  schema: Schema,
  { staleForSeconds, actor, limit, ids }: DeleteOptions,
): Promise<number> {
  const chosen = deleteStatement({ chosen: ids !== undefined });
  return (await chosen.query(db, schema, { staleForSeconds, actor, limit, ids })).length;
}

// Deletes keys of unique jobs that no job holds any more.

const freeKeysStatement = statement(`
  with free as (
    select u.type, u.key
      from ${tenant}.unique_keys u
     where u.used_at < now() - :days::float8 * interval '1 day'
       and (u.held_until is null or u.held_until < now())
       and not exists (
         select 1
           from ${tenant}.jobs j
          where j.id = u.job_id
            and not ${statusIn(terminalStatuses, 'j.status')}
            and (u.until = 'finished' or j.attempt = 0)
       )
     order by u.used_at
     limit :limit
       for update of u skip locked
  )
  delete from ${tenant}.unique_keys u
   using free f
   where u.type = f.type
     and u.key = f.key
  returning u.key`);

// Shorter than any manual use of a key, and long enough that keys in frequent use stay.
const unusedKeyDays = 1;

/** Deletes keys of unique jobs that no job holds. */
export async function deleteFreeKeys(db: Queryable, schema: Schema, limit: number): Promise<number> {
  return (await freeKeysStatement.query(db, schema, { days: unusedKeyDays, limit })).length;
}

// Hooks of a program that embeds the daemon, for jobs that retention marks as stale or is about to delete.

export interface RetentionHooks {
  /** Called after the jobs were marked as stale. An error is logged; the call is not repeated. */
  onStale?: RetentionHook | undefined;
  /** Called before the jobs are deleted, to keep a copy. If it fails they stay, and it is called again later. */
  onDelete?: RetentionHook | undefined;
}

/** The batch size in which jobs with their documents are given to a hook. */
export const hookBatch = 50;

const columns = `id, type, queue, target_id as "targetId", status, attempt, author, payload, result, error,
         created_at as "createdAt", started_at as "startedAt", finished_at as "finishedAt"`;

const byIds = statement(`
  select ${columns}
    from ${tenant}.jobs
   where id = any(:ids::uuid[])`);

export async function readFinishedJobs(db: Queryable, schema: Schema, ids: readonly string[]): Promise<FinishedJob[]> {
  return byIds.query<FinishedJob>(db, schema, { ids });
}

const deletable = statement(`
  select ${columns}
    from ${tenant}.jobs
   where stale_at is not null
     and stale_at <= now() - :staleForSeconds::float8 * interval '1 second'
     and ${isFinishedSql}
   order by stale_at
   limit :limit`);

/** Reads the jobs that retention would delete next. */
export async function findDeletableJobs(
  db: Queryable,
  schema: Schema,
  { staleForSeconds, limit }: { staleForSeconds: number; limit: number },
): Promise<FinishedJob[]> {
  return deletable.query<FinishedJob>(db, schema, { staleForSeconds, limit });
}
