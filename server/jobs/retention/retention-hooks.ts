// What a program that embeds the daemon does with jobs that retention marks as stale or is about to delete.
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { statement, tenant } from '../../database/sql.ts';
import type { FinishedJob, RetentionHook } from '../model/job-values.ts';
import { isFinishedSql } from './delete-stale.ts';

export interface RetentionHooks {
  /** Called after the jobs were marked as stale. An error is logged; the call is not repeated. */
  onStale?: RetentionHook | undefined;
  /** Called before the jobs are deleted, to keep a copy. If it fails they stay, and it is called again later. */
  onDelete?: RetentionHook | undefined;
}

/** Jobs with their documents are given to a hook in batches of this size. */
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

/** The jobs that retention would delete next. */
export async function findDeletableJobs(
  db: Queryable,
  schema: Schema,
  { staleForSeconds, limit }: { staleForSeconds: number; limit: number },
): Promise<FinishedJob[]> {
  return deletable.query<FinishedJob>(db, schema, { staleForSeconds, limit });
}
