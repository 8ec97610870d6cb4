// What a job that a person resumes still has to wait for.
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { statement, tenant } from '../../database/sql.ts';
import type { Waiting } from '../model/waiting.ts';
import { afterJobs, isUnfinished, noStep } from './dependencies.ts';

const unfinishedStatement = statement(`
  select (
           select count(*)::int
             from ${tenant}.dependencies d
            where d.job_id = :jobId
              and d.step = '${noStep}'
              and ${isUnfinished()}
         ) as jobs,
         (
           select d.step
             from ${tenant}.dependencies d
            where d.after_id = :jobId
              and d.state = 'gated'
            limit 1
         ) as step`);

/** Undefined: nothing. */
export async function unfinishedWait(db: Queryable, schema: Schema, jobId: string): Promise<Waiting | undefined> {
  const [row] = await unfinishedStatement.query<{ jobs: number; step: string | null }>(db, schema, { jobId });
  if (row === undefined) return undefined;
  if (row.step !== null) return { kind: 'turn', step: row.step };
  return row.jobs === 0 ? undefined : afterJobs(row.jobs);
}

const acceptStatement = statement(`
  update ${tenant}.dependencies d
     set on_failure = 'continue'
   where d.job_id = :jobId
     and d.step = '${noStep}'
     and d.state in ('failed', 'canceled')`);

/** A person lets the job run although jobs it runs after did not succeed. */
export async function acceptFailures(tx: Queryable, schema: Schema, jobId: string): Promise<void> {
  await acceptStatement.query(tx, schema, { jobId });
}
