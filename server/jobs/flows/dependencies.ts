// The edges of a job: one row for each job that it runs after, written in the transaction that enqueues it. A job that
// is ready at once keeps its rows for the graph.
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { statement, tenant } from '../../database/sql.ts';
import type { Waiting } from '../model/waiting.ts';

/** The effect on a job if a job that it runs after ends without success: it is held for a person, canceled, or runs. */
export const failurePolicies = ['hold', 'cancel', 'continue'] as const;
export type FailurePolicy = (typeof failurePolicies)[number];

export interface Dependency {
  id: string;
  onFailure: FailurePolicy;
  /** The other job had succeeded when this was read, which is final. */
  succeeded: boolean;
}

/** The step of an edge that no durable call created. */
export const noStep = '';

/** SQL over `d`: the other job has not ended, according to the row. */
export const isUnfinished = (alias = 'd') => `${alias}.state in ('gated', 'open')`;

interface Asked {
  waiting?: Waiting | undefined;
  after?: readonly Dependency[] | undefined;
  runAt?: string | undefined;
}

/** Returns the wait of a new job; undefined if it does not wait. */
export function toWaiting({ waiting, after, runAt }: Asked): Waiting | undefined {
  if (waiting !== undefined || after === undefined) return waiting;
  if (after.every(({ succeeded }) => succeeded)) return undefined;
  return afterJobs(after.length, runAt);
}

function afterJobs(jobs: number, notBefore?: string): Waiting {
  return { kind: 'after', jobs, ...(notBefore !== undefined && { not_before: notBefore }) };
}

const insertStatement = statement(`
  insert into ${tenant}.dependencies (job_id, after_id, step, position, on_failure, state)
  select g."jobId", g.id, '${noStep}', g.position, g."onFailure", case when g.succeeded then 'succeeded' else 'open' end
    from jsonb_to_recordset(:edges::jsonb) as g("jobId" uuid, id uuid, position int, "onFailure" text, succeeded boolean)
  on conflict (job_id, after_id) do nothing`);

export async function insertDependencies(
  tx: Queryable,
  schema: Schema,
  edges: readonly (Dependency & { jobId: string })[],
): Promise<void> {
  if (edges.length === 0) return;
  const rows = edges.map((edge, position) => ({ ...edge, position }));
  await insertStatement.query(tx, schema, { edges: JSON.stringify(rows) });
}

// The edges that a resumed job still has to wait for.

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

/** Returns undefined if there are none. */
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
