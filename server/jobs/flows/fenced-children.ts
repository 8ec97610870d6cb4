// The children that a durable call waits for: one edge each, in the order of the call, fenced by the lease of the
// parent and written in the transaction that enqueues the children.

import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { jsonBytes } from '../../database/reads/bounded-reads.ts';
import { statement, tenant } from '../../database/sql.ts';
import type { StepCall } from '../attempt/steps.ts';
import { type HeldJob, lockHeld } from '../claim/lease.ts';
import type { NewJob } from '../enqueue/enqueue.ts';
import type { JobError } from '../model/job-values.ts';
import { type Status, statusIn, terminalStatuses } from '../model/states.ts';
import { isUnfinished } from './dependencies.ts';

/** `stop`: the call ends with the first child that does not succeed. */
export type ChildPolicy = 'stop' | 'continue';

export interface ChildrenOptions {
  onFailure: ChildPolicy;
  /** The number of children that may be unfinished at once. */
  concurrency?: number | undefined;
}

/** Children beyond the limit wait for their turn. */
export function gate(children: NewJob[], step: string, { concurrency }: ChildrenOptions): NewJob[] {
  if (concurrency === undefined) return children;
  return children.map((child, n) => (n < concurrency ? child : { ...child, waiting: { kind: 'turn', step } }));
}

// On conflict an earlier call of the job has waited for the child.
const openStatement = statement(`
  with ${lockHeld()},
  edges as (
    insert into ${tenant}.dependencies (job_id, after_id, step, position, on_failure, concurrency, state)
    select h.id, c.id, :name, c.position, :onFailure, :concurrency::int,
           case when c.position > :concurrency::int then 'gated' else 'open' end
      from held h
     cross join unnest(:ids::uuid[]) with ordinality as c(id, position)
    on conflict (job_id, after_id) do nothing
  ),
  call as (
    insert into ${tenant}.phases (job_id, name, kind, position, parallel, status, attempt, started_at)
    select h.id, :name, 'children', :position, :parallel, 'pending', 0, now()
      from held h
    on conflict (job_id, name) do nothing
  )
  select id from held`);

/** Returns false if the lease no longer owns the parent. */
export async function openChildren(
  tx: Queryable,
  schema: Schema,
  { jobId, leaseId }: HeldJob,
  call: StepCall,
  ids: readonly string[],
  { onFailure, concurrency }: ChildrenOptions,
): Promise<boolean> {
  const rows = await openStatement.query(tx, schema, {
    jobId,
    leaseId,
    ...call,
    ids,
    onFailure,
    concurrency: concurrency ?? null,
  });
  return rows.length > 0;
}

export interface ChildEnd {
  id: string;
  type: string | null;
  /** Null if it was deleted. */
  status: Status | null;
  result: unknown;
  error: JobError | null;
}

export interface ChildrenState {
  total: number;
  unfinished: number;
  /** The first child that did not succeed, in the order of the call. */
  failed: Omit<ChildEnd, 'result'> | null;
  /** The size of all results and errors as they are stored, possibly compressed. It is read without reading them. */
  bytes: number;
}

const hasEnded = `(j.id is null or ${statusIn([...terminalStatuses, 'ERROR'], 'j.status')})`;
const hasFailed = `(j.id is null or ${statusIn(['CANCELED', 'ERROR'], 'j.status')})`;

// A person may have resumed a failed child. Then the call waits for it again.
const stateStatement = statement(`
  with children as (
    select d.position, d.after_id as id, d.state, j.type, j.status, j.error, ${hasEnded} as ended, ${hasFailed} as failed,
           coalesce(pg_column_size(j.result), 0) + coalesce(pg_column_size(j.error), 0) as bytes
      from ${tenant}.dependencies d
      left join ${tenant}.jobs j on j.id = d.after_id
     where d.job_id = :jobId
       and d.step = :name
  ),
  reopened as (
    update ${tenant}.dependencies d
       set state = 'open'
      from children c, ${tenant}.jobs p
     where d.job_id = :jobId
       and d.after_id = c.id
       and not c.ended
       and not ${isUnfinished()}
       and d.state <> 'canceling'
       and p.id = :jobId
       and p.lease_id = :leaseId
  )
  select count(*)::int as total,
         (count(*) filter (where not ended))::int as unfinished,
         coalesce(sum(bytes), 0)::float8 as bytes,
         (
           select jsonb_build_object('id', c.id, 'type', c.type, 'status', c.status, 'error', c.error)
             from children c
            where c.failed
            order by c.position
            limit 1
         ) as failed
    from children`);

/** Returns the state of the children of a call. */
export async function childrenState(
  db: Queryable,
  schema: Schema,
  { jobId, leaseId }: HeldJob,
  name: string,
): Promise<ChildrenState> {
  const [row] = await stateStatement.query<ChildrenState>(db, schema, { jobId, leaseId, name });
  if (row === undefined) throw new Error('the children of a call could not be counted');
  return row;
}

const bytesStatement = statement(`
  select coalesce(sum(${jsonBytes('j.result')} + ${jsonBytes('j.error')}), 0)::float8 as bytes
    from ${tenant}.dependencies d
    join ${tenant}.jobs j on j.id = d.after_id
   where d.job_id = :jobId
     and d.step = :name`);

/** Bytes of all results and errors as text. Reads what is compressed, so check `bytes` of the state first. */
export async function countChildBytes(db: Queryable, schema: Schema, jobId: string, name: string): Promise<number> {
  const [row] = await bytesStatement.query<{ bytes: number }>(db, schema, { jobId, name });
  return row?.bytes ?? 0;
}

const collectStatement = statement(`
  select d.after_id as id, j.type, j.status, j.result, j.error
    from ${tenant}.dependencies d
    left join ${tenant}.jobs j on j.id = d.after_id
   where d.job_id = :jobId
     and d.step = :name
   order by d.position`);

/** Reads their results, in the order of the call. The caller has checked the total size. */
export async function collectChildren(db: Queryable, schema: Schema, jobId: string, name: string): Promise<ChildEnd[]> {
  return collectStatement.query<ChildEnd>(db, schema, { jobId, name });
}
