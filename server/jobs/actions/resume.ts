// Ending a hold: resume (it runs again, first in its lane, with a fresh set of attempts) or resolve
// (a person supplies the result).
import { isDeepStrictEqual } from 'node:util';
import type { Database } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { type Problem, problem } from '../../kernel/errors.ts';
import { endOpenPhases } from '../attempt/phases.ts';
import { holdOf } from '../model/hold.ts';
import type { Job } from '../model/job.ts';
import { allows } from '../model/states.ts';
import { changeJob } from './change.ts';
import { type ActionRequest, type ActionResult, actOnJob, eventData, lastEvent, refusal } from './job-action.ts';

export interface ResumeRequest extends ActionRequest {
  /** A new token limit, for a job that was stopped by its budget. */
  tokenLimit?: number | undefined;
}

const holdEvents = ['job.paused', 'job.failed', 'job.resumed', 'job.resolved'];

export async function resumeJob(db: Database, schema: Schema, request: ResumeRequest): Promise<ActionResult> {
  return actOnJob(db, schema, request, async (job) => {
    if (job.status === 'RUNNING' && (job.cancelRequested || job.hold !== null)) throw stillStopping(job);
    if (!allows('resume', job.status)) {
      const last = await lastEvent(db, schema, job.id, holdEvents);
      if (last?.type === 'job.resumed' && !job.finishedAt) return { job, done: true };
      throw await refusal(db, schema, job, 'resume');
    }
    const limit = request.tokenLimit;
    const requireHold = await db.transaction((tx) =>
      changeJob(tx, schema, job, {
        transition: 'resume',
        actor: request.actor,
        // The holder stays head unless its target is paused; any other goes first in line.
        set: `held_since = null, hold = null, finished_at = null, stale_at = null, error = null, attempt_floor = b.attempt, expires_at = b.expires_later,
              run_at = now(), lane_head = b.free or (b.lane_head and not b.target_paused),
              lane_rank = case when b.free or (b.lane_head and not b.target_paused) then null else 1 end
              ${limit === undefined ? '' : ', token_limit = $4::bigint'}`,
        values: limit === undefined ? [] : [limit],
        data: eventData(request, limit === undefined ? {} : { token_limit: { from: job.tokenLimit, to: limit } }),
      }),
    );
    return requireHold ? 'changed' : undefined;
  });
}

/** Resumed now it would run twice at once; accepted now, the pause that is on its way would win. */
function stillStopping(job: Job): Problem {
  const hold = holdOf(job);
  const detail =
    hold === undefined
      ? `A ${job.cancelIntent} is on its way: the job can be resumed once it is PAUSED.`
      : `The handler of attempt ${job.attempt} was told to stop and still runs on ${job.leaseOwner}: the job can be resumed once it has ended.`;
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
    const happened = await db.transaction(async (tx) => {
      const resolved = await changeJob(tx, schema, job, {
        transition: 'resolve',
        actor: request.actor,
        set: `result = $4::jsonb, error = null, held_since = null, hold = null, finished_at = now(), lane_head = b.free, lane_rank = null, progress = 100`,
        values: [JSON.stringify(request.result ?? null)],
        data: eventData(request),
      });
      if (resolved) await endOpenPhases(tx, schema, job.id, 'skipped');
      return resolved;
    });
    return happened ? 'changed' : undefined;
  });
}
