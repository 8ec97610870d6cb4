// Carries out bulk operations in batches, each job through the action that a person would use. A daemon locks an
// operation for a limited time: if it dies, another continues after the last job that was counted. Cancels take the newest
// jobs first, so that canceling a lane starts none of its jobs; resumes take the oldest first, so that lanes keep their
// order. Jobs enqueued later are not reached.
import type { Database, Queryable } from '../../database/database.ts';
import { columnList, columnsOf } from '../../database/drizzle.ts';
import type { Schema } from '../../database/identifiers.ts';
import { isConnectionError } from '../../database/sql-errors.ts';
import { operations } from '../../database/tables/tenant.ts';
import { Problem } from '../../kernel/errors.ts';
import type { Tenant } from '../../tenants/tenant.ts';
import { pageOfHeldIds } from '../read/held-ids.ts';
import { pageOfIds } from '../read/read-jobs.ts';
import { type CanaryState, eligible, type Operation, operationActor } from './bulk-operations.ts';
import { advanceCanary } from './operation-canary.ts';
import { resumeJob } from './resume.ts';
import { cancelJob } from './stop.ts';

const batchSize = 50;
// Far longer than a batch lasts; short enough that the operation of a dead daemon is soon continued.
const lockSeconds = 30;
// How often the outcome of a canary is read.
const canaryPollSeconds = 0.5;

interface LockedOperation extends Operation {
  cursor: string | null;
  /** The fence: another daemon that locks the operation writes another time. */
  lockedUntil: string;
}

export interface OperationRun {
  /** Jobs handled. */
  handled: number;
  /** Whether there is more to do. */
  more: boolean;
  /** An operation waits for the outcome of its canary. */
  waits?: boolean;
}

/** Locks one operation of the tenant that no daemon works on, if there is one, and handles up to `batches` batches of it. */
export async function runOperationsOnce(
  db: Database,
  tenant: Pick<Tenant, 'schema'>,
  options: { batches?: number; signal?: AbortSignal } = {},
): Promise<OperationRun> {
  const { schema } = tenant;
  let operation = await lockOperation(db, schema);
  let handled = 0;
  if (operation?.canary === 'waiting') {
    const state = await runCanary(db, schema, operation);
    if (state === 'waiting') return { handled: 1, more: false, waits: true };
    if (state === 'failed') return { handled: 1, more: true };
    operation = await lockOperation(db, schema, operation.id);
  }
  for (let i = 0; operation !== undefined && i < (options.batches ?? 20); i++) {
    if (options.signal?.aborted) break;
    const batch = await runBatch(db, schema, operation);
    handled += batch.handled;
    operation = batch.next;
    if (operation === undefined) return { handled, more: true };
  }
  if (operation !== undefined) await releaseOperation(db, schema, operation);
  return { handled, more: operation !== undefined };
}

/** Advances the canary and stores its state. While it waits, operations of other jobs come first. */
async function runCanary(db: Database, schema: Schema, operation: LockedOperation): Promise<CanaryState> {
  const fence = [operation.id, operation.lockedUntil];
  const state = await advanceCanary(db, schema, operation, async (jobId) => {
    await db.query(`update ${schema}.operations set canary_job_id = $3 where id = $1 and locked_until = $2`, [
      ...fence,
      jobId,
    ]);
  });
  await db.query(
    `with given as (
       select case when $3 = 'waiting' then now() + $4 * interval '1 second' end as until,
              case when $3 = 'failed' then now() end as ended)
     update ${schema}.operations o
        set canary = $3,
            done = o.done + case when $3 = 'succeeded' and o.canary_job_id is not null then 1 else 0 end,
            failed = o.failed + case when $3 = 'failed' then 1 else 0 end,
            status = case when $3 = 'failed' then 'failed' else o.status end,
            finished_at = g.ended,
            locked_until = g.until
       from given g
      where o.id = $1 and o.locked_until = $2 and o.status = 'running'`,
    [...fence, state, canaryPollSeconds],
  );
  return state;
}

async function lockOperation(db: Queryable, schema: Schema, id?: string): Promise<LockedOperation | undefined> {
  const [operation] = await db.query<LockedOperation>(
    `with free as (
       select id, now() + $1 * interval '1 second' as until from ${schema}.operations
        where status = 'running' and (locked_until is null or locked_until < now())
          and ($2::uuid is null or id = $2)
        order by locked_until nulls first, id limit 1 for update skip locked)
     update ${schema}.operations o set locked_until = f.until from free f where o.id = f.id
     returning ${columnList(operations, columnsOf(operations), 'o')}`,
    [lockSeconds, id ?? null],
  );
  return operation;
}

/** Undefined `next`: the operation is finished, or another daemon has locked it. */
async function runBatch(
  db: Database,
  schema: Schema,
  operation: LockedOperation,
): Promise<{ handled: number; next: LockedOperation | undefined }> {
  const filter = eligible(operation.action, operation.filter);
  // Jobs that were enqueued after the operation are not part of it.
  const before = filter.createdBefore;
  const createdBefore = before !== undefined && before < operation.createdAt ? before : operation.createdAt;
  const cursor = operation.cursor ?? undefined;
  const page =
    operation.action === 'cancel'
      ? await pageOfIds(db, schema, { ...filter, createdBefore }, { limit: batchSize, before: cursor })
      : await pageOfHeldIds(db, schema, { ...filter, createdBefore }, { limit: batchSize, after: cursor });
  let done = 0;
  for (const jobId of page.ids) if (await act(db, schema, operation, jobId)) done += 1;
  const [saved] = await db.query<LockedOperation>(
    `with until as (select now() + $6 * interval '1 second' as at, case when $5 then now() end as ended)
     update ${schema}.operations o set cursor = coalesce($3::uuid, o.cursor), done = o.done + $4::int, failed = o.failed + $7::int,
        status = case when $5 then 'finished' else o.status end, finished_at = u.ended, locked_until = u.at
       from until u
      where o.id = $1 and o.locked_until = $2 and o.status = 'running'
     returning o.id, o.done, o.failed, o.cursor, o.locked_until as "lockedUntil"`,
    [
      operation.id,
      operation.lockedUntil,
      page.next ?? page.ids.at(-1) ?? null,
      done,
      page.next === undefined,
      lockSeconds,
      page.ids.length - done,
    ],
  );
  const next = saved === undefined || page.next === undefined ? undefined : { ...operation, ...saved };
  return { handled: page.ids.length, next };
}

/** False: the action was refused, most often because the job changed in between. */
async function act(db: Database, schema: Schema, operation: LockedOperation, jobId: string): Promise<boolean> {
  const request = {
    jobId,
    actor: operationActor(operation),
    author: operation.author ?? undefined,
    reason: operation.reason ?? undefined,
  };
  try {
    await (operation.action === 'cancel' ? cancelJob(db, schema, request) : resumeJob(db, schema, request));
    return true;
  } catch (error) {
    if (error instanceof Problem || !isConnectionError(error)) return false;
    // Without the database nothing can be done: the operation continues later after its last batch.
    throw error;
  }
}

async function releaseOperation(db: Queryable, schema: Schema, operation: LockedOperation): Promise<void> {
  await db.query(`update ${schema}.operations set locked_until = null where id = $1 and locked_until = $2`, [
    operation.id,
    operation.lockedUntil,
  ]);
}
