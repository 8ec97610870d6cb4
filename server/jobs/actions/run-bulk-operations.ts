// Runs bulk operations in batches, through the same action that a person would use for one job. A daemon locks an
// operation for a limited time; if it dies, another daemon continues after the last job that was counted. Cancels take
// the newest jobs first, so that canceling a lane starts none of its jobs. Resumes take the oldest first, so that lanes
// keep their order. Jobs enqueued after the operation are not part of it.
import type { Database, Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { columnList, columnsOf } from '../../database/reads/drizzle.ts';
import { statement, tenant } from '../../database/sql.ts';
import { isConnectionError, isTransient, sqlState } from '../../database/sql-errors.ts';
import { operations } from '../../database/tables/tenant.ts';
import { Problem } from '../../kernel/errors.ts';
import type { Tenant } from '../../tenants/tenant.ts';
import { holdOf } from '../model/hold.ts';
import type { Job } from '../model/job.ts';
import { isOnHold, isTerminal, succeededStatuses } from '../model/states.ts';
import { pageOfHeldIds, pageOfIds } from '../read/page-of-ids.ts';
import { findJob } from '../read/read-jobs.ts';
import { type CanaryState, eligible, type Operation, operationActor } from './bulk-operations.ts';
import { lastEvent } from './job-action.ts';
import { cancelJob } from './pause-and-cancel.ts';
import { resumeJob } from './resume.ts';
import { resumeAsCanary } from './start-canary.ts';

const batchSize = 50;
// Far longer than a batch lasts, and short enough that another daemon soon continues the operation of a dead one.
const lockSeconds = 30;
// The interval at which the outcome of a canary is read.
const canaryPollSeconds = 0.5;

interface LockedOperation extends Operation {
  cursor: string | null;
  /** The fence: a daemon that locks the operation writes a new time. */
  lockedUntil: string;
}

interface OperationRun {
  /** The number of jobs handled. */
  handled: number;
  /** True if there is more to do. */
  more: boolean;
  /** The operation waits for the outcome of its canary. */
  waits?: boolean;
}

/** Locks one operation of the tenant that no daemon works on, and handles up to `batches` batches of it. */
export async function runOperationsOnce(
  db: Database,
  { schema }: Pick<Tenant, 'schema'>,
  options: { batches?: number; signal?: AbortSignal } = {},
): Promise<OperationRun> {
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

const chooseCanary = statement(`
  update ${tenant}.operations
     set canary_job_id = :jobId
   where id = :id
     and locked_until = :lockedUntil`);

const saveCanary = statement(`
  with given as (
    select case when :state = 'waiting' then now() + :pollSeconds * interval '1 second' end as until,
           case when :state = 'failed' then now() end as ended
  )
  update ${tenant}.operations o
     set canary = :state,
         done = o.done + case when :state = 'succeeded' and o.canary_job_id is not null then 1 else 0 end,
         failed = o.failed + case when :state = 'failed' then 1 else 0 end,
         status = case when :state = 'failed' then 'failed' else o.status end,
         finished_at = g.ended,
         locked_until = g.until
    from given g
   where o.id = :id
     and o.locked_until = :lockedUntil
     and o.status = 'running'`);

/** Advances the canary and stores its state. While the canary runs, other operations come first. */
async function runCanary(db: Database, schema: Schema, operation: LockedOperation): Promise<CanaryState> {
  const { id, lockedUntil } = operation;
  const state = await advanceCanary(db, schema, operation, async (jobId) => {
    await chooseCanary.query(db, schema, { id, lockedUntil, jobId });
  });
  await saveCanary.query(db, schema, { id, lockedUntil, state, pollSeconds: canaryPollSeconds });
  return state;
}

const lockStatement = statement(`
  with free as (
    select id, now() + :lockSeconds * interval '1 second' as until
      from ${tenant}.operations
     where status = 'running'
       and (locked_until is null or locked_until < now())
       and (:id::uuid is null or id = :id)
     order by locked_until nulls first, id
     limit 1
       for update skip locked
  )
  update ${tenant}.operations o
     set locked_until = f.until
    from free f
   where o.id = f.id
  returning ${columnList(operations, columnsOf(operations), 'o')}`);

async function lockOperation(db: Queryable, schema: Schema, id?: string): Promise<LockedOperation | undefined> {
  const [operation] = await lockStatement.query<LockedOperation>(db, schema, { lockSeconds, id: id ?? null });
  return operation;
}

const saveStatement = statement(`
  with ended as (
    select now() + :lockSeconds * interval '1 second' as locked_until,
           case when :isLast then now() end as finished_at
  )
  update ${tenant}.operations o
     set cursor = coalesce(:cursor::uuid, o.cursor),
         done = o.done + :done::int,
         failed = o.failed + :failed::int,
         status = case when :isLast then 'finished' else o.status end,
         finished_at = e.finished_at,
         locked_until = e.locked_until
    from ended e
   where o.id = :id
     and o.locked_until = :lockedUntil
     and o.status = 'running'
  returning o.id, o.done, o.failed, o.cursor, o.locked_until as "lockedUntil"`);

/** `next` is undefined if the operation is finished, or if another daemon has locked it. */
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
  const [saved] = await saveStatement.query<LockedOperation>(db, schema, {
    id: operation.id,
    lockedUntil: operation.lockedUntil,
    cursor: page.next ?? page.ids.at(-1) ?? null,
    done,
    failed: page.ids.length - done,
    isLast: page.next === undefined,
    lockSeconds,
  });
  const next = saved === undefined || page.next === undefined ? undefined : { ...operation, ...saved };
  return { handled: page.ids.length, next };
}

/**
 * Returns false if the action was refused, usually because the job has changed. Rejects if the database could not
 * decide.
 */
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
    if (isRefusal(error)) return false;
    // A lost connection, a standby, a full disk, a lock: the operation continues later after its last batch. A job that
    // is passed over here would never be handled.
    throw error;
  }
}

/** Errors that would come again count as refusals too, so that one job does not stop the others. */
function isRefusal(error: unknown): boolean {
  if (error instanceof Problem) return error.httpStatus < 500;
  return sqlState(error) !== undefined && !isConnectionError(error) && !isTransient(error);
}

const releaseStatement = statement(`
  update ${tenant}.operations
     set locked_until = null
   where id = :id
     and locked_until = :lockedUntil`);

async function releaseOperation(db: Queryable, schema: Schema, operation: LockedOperation): Promise<void> {
  await releaseStatement.query(db, schema, { id: operation.id, lockedUntil: operation.lockedUntil });
}

// The canary of a bulk operation. One job is resumed first, and the others wait for its outcome. If it succeeds, the
// operation continues; otherwise the operation fails and leaves the others on hold. Every step can be repeated after a
// crash.

/** Starts the canary if it has not started, and returns its state. `save` stores the chosen job, under the fence. */
async function advanceCanary(
  db: Database,
  schema: Schema,
  operation: Operation,
  save: (jobId: string) => Promise<void>,
): Promise<CanaryState> {
  const jobId = operation.canaryJobId ?? (await oldestEligible(db, schema, operation));
  // No job matches any more, so the operation has nothing to do.
  if (jobId === undefined) return 'succeeded';
  // The choice is saved before the job is resumed, so that no second job is chosen after a crash.
  if (operation.canaryJobId === null) await save(jobId);
  const actor = operationActor(operation);
  const job = await findJob(db, schema, jobId);
  if (job === undefined) return 'failed';
  const isResumed = (await lastEvent(db, schema, jobId, ['job.resumed']))?.actor === actor;
  if (isResumed || !isOnHold(job.status)) return stateOf(job);
  const { author, reason } = operation;
  try {
    await resumeAsCanary(db, schema, { jobId, actor, author: author ?? undefined, reason: reason ?? undefined });
    return 'waiting';
  } catch (error) {
    // A person was faster: the lane has another canary, or another head.
    if (error instanceof Problem) return 'failed';
    throw error;
  }
}

/** Chooses the oldest job. Within a lane that is the first one. */
async function oldestEligible(db: Queryable, schema: Schema, operation: Operation): Promise<string | undefined> {
  const filter = eligible(operation.action, operation.filter);
  const { ids } = await pageOfHeldIds(db, schema, filter, { limit: 1 });
  return ids[0];
}

function stateOf(job: Job): CanaryState {
  if (succeededStatuses.includes(job.status)) return 'succeeded';
  // A drain does not decide the outcome: the job is still the canary when it is resumed.
  const undecided = !isTerminal(job.status) && (!isOnHold(job.status) || holdOf(job)?.kind === 'drain');
  return undecided ? 'waiting' : 'failed';
}
