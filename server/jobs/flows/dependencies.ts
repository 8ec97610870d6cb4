// The jobs that a job runs after: one row each, written in the transaction that enqueues it. A job that is ready at once
// keeps its rows, which draw the graph.
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { statement, tenant } from '../../database/sql.ts';
import type { Waiting } from '../model/waiting.ts';

/** What a job does if one that it runs after ends without success: it is held for a person, canceled, or runs. */
export const failurePolicies = ['hold', 'cancel', 'continue'] as const;
type FailurePolicy = (typeof failurePolicies)[number];

export interface Dependency {
  id: string;
  onFailure: FailurePolicy;
  /** It had succeeded when this was read; nothing changes that. */
  succeeded: boolean;
}

/** The step of an edge that no durable call made. */
export const noStep = '';

/** SQL over `d`: the other job has not ended, as far as the row says. */
export const isUnfinished = (alias = 'd') => `${alias}.state in ('gated', 'open')`;

interface Asked {
  waiting?: Waiting | undefined;
  after?: readonly Dependency[] | undefined;
  runAt?: string | undefined;
}

/** What the new job waits for; undefined if it does not. */
export function toWaiting({ waiting, after, runAt }: Asked): Waiting | undefined {
  if (waiting !== undefined || after === undefined) return waiting;
  if (after.every(({ succeeded }) => succeeded)) return undefined;
  return afterJobs(after.length, runAt);
}

export function afterJobs(jobs: number, notBefore?: string): Waiting {
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
