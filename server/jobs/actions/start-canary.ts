// Starts a canary: exactly one job of a held or paused target runs. The target is paused meanwhile, and the lane stops
// again unless the job succeeds. lanes/conclude-canaries.ts ends the pause after a success.
import type { Database, Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { statement, tenant } from '../../database/sql.ts';
import { retryConflicts } from '../../database/sql-errors.ts';
import { recordEvent } from '../../events/log/record.ts';
import { problem } from '../../kernel/errors.ts';
import { becomesHead, lockTargets } from '../lanes/lane.ts';
import { type LaneJob, laneColumns, readHeads } from '../lanes/read-lanes.ts';
import { mustFindTarget, type Target, type TargetRequest } from '../lanes/target.ts';
import { holdsLane } from '../model/job.ts';
import { isOnHold, ownedStatuses } from '../model/states.ts';
import { closeBudgetQuestion } from '../questions/budget-question.ts';
import { extendQuestions } from '../questions/close-questions.ts';
import { findJob } from '../read/read-jobs.ts';
import { applyTransition } from '../transition.ts';
import { type ActionRequest, eventData } from './job-action.ts';
import { resumeAssignments, resumeJob } from './resume.ts';

export interface CanaryRequest extends TargetRequest {
  /** If set, the request is refused unless it would choose this job. */
  jobId?: string | undefined;
}

/** A second request while the canary runs changes nothing. */
export async function startCanary(db: Database, schema: Schema, request: CanaryRequest): Promise<Target> {
  return retryConflicts(() =>
    db.transaction(async (tx) => {
      await lockTargets(tx, schema, [request.targetId]);
      const target = await mustFindTarget(tx, schema, request.targetId);
      const chosen = request.jobId;
      if (target.canaryJobId !== null && (chosen ?? target.canaryJobId) === target.canaryJobId) return target;
      if (target.canaryJobId !== null) {
        throw problem('CONFLICT', `Job ${target.canaryJobId} is the canary of target ${target.id}.`);
      }
      const job = await chooseJob(tx, schema, target);
      if (chosen !== undefined && chosen !== job.id) {
        throw problem('CONFLICT', `Job ${job.id} is the next of target ${target.id}, not job ${chosen}.`);
      }
      await pauseForCanary(tx, schema, request, target, job.id);
      await letRun(tx, schema, request, job);
      return mustFindTarget(tx, schema, request.targetId);
    }),
  );
}

/** Resumes one held job. If the job holds a lane, it becomes the canary of its target. */
export async function resumeAsCanary(db: Database, schema: Schema, request: ActionRequest): Promise<void> {
  const job = await findJob(db, schema, request.jobId);
  if (job === undefined) throw problem('NOT_FOUND', 'There is no such job.');
  if (job.targetId === null || !job.laneHead) {
    await resumeJob(db, schema, request);
    return;
  }
  await startCanary(db, schema, { ...request, targetId: job.targetId });
}

/** Returns the job that holds the lane, or the next job in line of a paused target. */
async function chooseJob(tx: Queryable, schema: Schema, target: Target): Promise<LaneJob> {
  const head = (await readHeads(tx, schema, [target.id])).get(target.id);
  if (head === undefined) {
    const next = target.pausedAt === null ? undefined : await firstInLine(tx, schema, target.id);
    if (next === undefined) throw problem('CONFLICT', `Target ${target.id} has no waiting job.`);
    return next;
  }
  if (ownedStatuses.includes(head.status)) {
    throw problem('CONFLICT', `Job ${head.id} of target ${target.id} is ${head.status}; wait until it has ended.`, {
      job_id: head.id,
      job_status: head.status,
    });
  }
  if (holdsLane(head) || target.pausedAt !== null) return head;
  throw problem('CONFLICT', `Target ${target.id} is neither held nor paused: its next job runs anyway.`);
}

const firstStatement = statement(`
  select ${laneColumns}
    from ${tenant}.jobs j
   where j.target_id = :targetId
     and j.lane_rank is not null
   order by j.lane_rank, j.lane_seq
   limit 1
     for update`);

async function firstInLine(tx: Queryable, schema: Schema, targetId: string): Promise<LaneJob | undefined> {
  const [job] = await firstStatement.query<LaneJob>(tx, schema, { targetId });
  return job;
}

const pauseStatement = statement(`
  update ${tenant}.targets
     set paused_at = now(),
         paused_by = :author,
         pause_reason = :reason,
         canary_job_id = :jobId,
         canary_paused = true
   where id = :targetId`);

const chooseStatement = statement(`
  update ${tenant}.targets
     set canary_job_id = :jobId
   where id = :targetId`);

async function pauseForCanary(
  tx: Queryable,
  schema: Schema,
  request: CanaryRequest,
  target: Target,
  jobId: string,
): Promise<void> {
  const { reason, author, actor } = request;
  if (target.pausedAt === null) {
    const pause = { targetId: target.id, author: author ?? actor, reason: reason ?? null, jobId };
    await pauseStatement.query(tx, schema, pause);
  } else {
    await chooseStatement.query(tx, schema, { targetId: target.id, jobId });
  }
  await recordEvent(tx, schema, {
    type: 'target.canary_started',
    actor,
    targetId: target.id,
    data: { reason, author, canary_job_id: jobId },
  });
}

const headStatement = statement(`
  update ${tenant}.jobs
     set ${becomesHead}
   where id = :jobId`);

async function letRun(tx: Queryable, schema: Schema, request: CanaryRequest, job: LaneJob): Promise<void> {
  if (job.laneRank !== null) await headStatement.query(tx, schema, { jobId: job.id });
  if (!isOnHold(job.status)) return;
  const { targetId, actor } = request;
  const [resumed] = await applyTransition(tx, schema, {
    name: 'resume',
    jobs: [{ id: job.id, targetId }],
    set: resumeAssignments,
    actor,
    data: eventData({ ...request, jobId: job.id }, { canary: true }),
  });
  if (resumed === undefined) throw problem('CONFLICT', `Job ${job.id} changed meanwhile; try again.`);
  await closeBudgetQuestion(tx, schema, job.id, actor);
  await extendQuestions(tx, schema, job);
}
