// Ends a hold. Resume runs the job again, first in its lane and with a new set of attempts. Resolve ends it with a
// result that a person supplies.
import { isDeepStrictEqual } from 'node:util';
import type { Database, Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { type Problem, problem } from '../../kernel/errors.ts';
import { endOpenPhases } from '../attempt/phases.ts';
import { acceptFailures, unfinishedWait } from '../flows/dependencies.ts';
import { resolveDependencies } from '../flows/resolve-dependencies.ts';
import { holdOf } from '../model/hold.ts';
import type { Job } from '../model/job.ts';
import type { Units } from '../model/job-budget.ts';
import { hasCode, isBudgetError } from '../model/job-errors.ts';
import { allows } from '../model/states.ts';
import { never } from '../model/waiting.ts';
import { closeBudgetQuestion } from '../questions/budget-question.ts';
import { extendQuestions } from '../questions/close-questions.ts';
import { applyTransition } from '../transition.ts';
import { type ActionRequest, type ActionResult, actOnJob, eventData, lastEvent, refusal } from './job-action.ts';

export interface ResumeRequest extends ActionRequest {
  /** A new token limit for a job that exceeded its budget. */
  tokenLimit?: number | undefined;
  /** New limits of other units, for the same purpose. */
  budget?: Units | undefined;
}

const holdEvents = ['job.paused', 'job.failed', 'job.resumed', 'job.resolved'];

/** Assignments of every resume, over `b`: a new set of attempts, and deadlines moved by the time on hold. */
const resumed = `hold = null,
              finished_at = null,
              stale_at = null,
              error = null,
              attempt_floor = b.attempt,
              expires_at = b.expires_later`;

export const resumeAssignments = `${resumed},
              held_since = null,
              run_at = now()`;

/** The job still has to wait for the jobs it runs after. */
const waitAgain = `${resumed},
              held_since = now(),
              waiting = :waiting::jsonb,
              run_at = timestamptz '${never}'`;

export async function resumeJob(db: Database, schema: Schema, request: ResumeRequest): Promise<ActionResult> {
  return actOnJob(db, schema, request, async (job) => {
    if (job.status === 'RUNNING' && (job.cancelRequested || job.hold !== null)) throw stillStopping(job);
    if (!allows('resume', job.status)) {
      const last = await lastEvent(db, schema, job.id, holdEvents);
      if (last?.type === 'job.resumed' && !job.finishedAt) return { job, done: true };
      throw await refusal(db, schema, job, 'resume');
    }
    return db.transaction((tx) => resumeIn(tx, schema, job, request));
  });
}

/** In the caller's transaction. Returns undefined if the job is no longer on hold. */
export async function resumeIn(
  tx: Queryable,
  schema: Schema,
  job: Job,
  request: ResumeRequest,
): Promise<'changed' | undefined> {
  const { tokens, ...budget } = request.budget ?? {};
  const limit = request.tokenLimit ?? tokens;
  const raises = Object.keys(budget).length > 0;
  const waiting = await unfinishedWait(tx, schema, job.id);
  const set = [
    waiting === undefined ? resumeAssignments : waitAgain,
    ...(limit === undefined ? [] : ['token_limit = :limit::bigint']),
    ...(raises ? ['budget = :budget::jsonb'] : []),
  ].join(', ');
  const raised = {
    ...(limit !== undefined && { token_limit: { from: job.tokenLimit, to: limit } }),
    ...(raises && { budget: { from: job.budget, to: { ...job.budget, ...budget } } }),
  };
  const ids = await applyTransition(tx, schema, {
    name: waiting === undefined ? 'resume' : 'resumeWaiting',
    jobs: [job],
    set,
    values: {
      limit,
      ...(raises && { budget: JSON.stringify({ ...job.budget, ...budget }) }),
      waiting: waiting && JSON.stringify(waiting),
    },
    actor: request.actor,
    data: eventData(request, raised),
  });
  if (ids.length === 0) return undefined;
  if (isBudgetError(job.error)) await closeBudgetQuestion(tx, schema, job.id, request.actor);
  await extendQuestions(tx, schema, job);
  if (hasCode(job.error, 'DEPENDENCY_FAILED')) await acceptFailures(tx, schema, job.id);
  // The jobs it waits for may have ended since it was read.
  if (waiting !== undefined) await resolveDependencies(tx, schema, { ended: [], waiting: [job.id] });
  return 'changed';
}

/**
 * If this job were resumed now, it would run twice at once, or be paused again by a request that its owner has not seen
 * yet.
 */
function stillStopping(job: Job): Problem {
  const hold = holdOf(job);
  const detail =
    hold === undefined
      ? `A ${job.cancelIntent} was requested: the job can be resumed once it is PAUSED.`
      : `The handler of attempt ${job.attempt} was asked to stop and still runs on ${job.leaseOwner}: the job can be resumed once it has ended.`;
  return problem('INVALID_TRANSITION', detail, { job_status: job.status, ...(hold && { hold }) });
}

export interface ResolveRequest extends ActionRequest {
  result: unknown;
}

export async function resolveJob(db: Database, schema: Schema, request: ResolveRequest): Promise<ActionResult> {
  return actOnJob(db, schema, request, async (job) => {
    if (!allows('resolve', job.status)) {
      const last = await lastEvent(db, schema, job.id, holdEvents);
      const same = last?.type === 'job.resolved' && isDeepStrictEqual(job.result, request.result ?? null);
      if (same) return { job, done: true };
      throw await refusal(db, schema, job, 'resolve');
    }
    return db.transaction(async (tx) => {
      const ids = await applyTransition(tx, schema, {
        name: 'resolve',
        jobs: [job],
        set: `result = :result::jsonb,
              error = null,
              held_since = null,
              hold = null,
              finished_at = now(),
              progress = 100`,
        values: { result: JSON.stringify(request.result ?? null) },
        actor: request.actor,
        data: eventData(request),
      });
      if (ids.length === 0) return undefined;
      await endOpenPhases(tx, schema, [job.id], 'skipped');
      return 'changed';
    });
  });
}
