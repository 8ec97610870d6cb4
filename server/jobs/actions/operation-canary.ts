// The canary of a bulk operation: one job is resumed first, and the others wait for its outcome. If it succeeds the
// operation continues; otherwise it fails and leaves the others on hold. Every step can be repeated after a crash.
import type { Database, Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { Problem } from '../../kernel/errors.ts';
import { holdOf } from '../model/hold.ts';
import type { Job } from '../model/job.ts';
import { isOnHold, isTerminal, succeededStatuses } from '../model/states.ts';
import { pageOfHeldIds } from '../read/held-ids.ts';
import { findJob } from '../read/read-jobs.ts';
import { type CanaryState, eligible, type Operation, operationActor } from './bulk-operations.ts';
import { lastEvent } from './job-action.ts';
import { resumeAsCanary } from './start-canary.ts';

/** Starts the canary if it has not started, and answers how it stands. `save` stores the choice, under the fence. */
export async function advanceCanary(
  db: Database,
  schema: Schema,
  operation: Operation,
  save: (jobId: string) => Promise<void>,
): Promise<CanaryState> {
  const jobId = operation.canaryJobId ?? (await chooseCanary(db, schema, operation));
  // Nothing matches any more: the operation has nothing to do.
  if (jobId === undefined) return 'succeeded';
  // Saved before it is resumed: after a crash no second job is chosen.
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
    // A person was faster: the lane has another canary, or another job at its head.
    if (error instanceof Problem) return 'failed';
    throw error;
  }
}

/** The oldest: of a lane, the one that comes first. */
async function chooseCanary(db: Queryable, schema: Schema, operation: Operation): Promise<string | undefined> {
  const filter = eligible(operation.action, operation.filter);
  const { ids } = await pageOfHeldIds(db, schema, filter, { limit: 1 });
  return ids[0];
}

function stateOf(job: Job): CanaryState {
  if (succeededStatuses.includes(job.status)) return 'succeeded';
  // A drain is no verdict: the job continues when it is resumed.
  const undecided = !isTerminal(job.status) && (!isOnHold(job.status) || holdOf(job)?.kind === 'drain');
  return undecided ? 'waiting' : 'failed';
}
