// The reasons in the job's lane: a paused target, a hold, the jobs ahead of it. Of a long lane only the first jobs are
// read.
import type { Queryable } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import { statement, tenant } from '../database/sql.ts';
import { firstByPriority } from '../jobs/lanes/lane.ts';
import { type LaneJob, laneColumns, maxCounted, readHeads } from '../jobs/lanes/read-lanes.ts';
import { mustFindTarget, type Target } from '../jobs/lanes/target.ts';
import { describeHold, holdOf } from '../jobs/model/hold.ts';
import { holdsLane, type Job, priorityRank } from '../jobs/model/job.ts';
import { isBudgetError } from '../jobs/model/job-errors.ts';
import { isOnHold } from '../jobs/model/states.ts';
import { describeWaiting } from '../jobs/model/waiting.ts';
import { readBudgetQuestion } from '../jobs/questions/budget-question.ts';
import { maxInt8 } from '../kernel/limits.ts';
import { answerAction, jobAction, type Reason, type ReleaseAction, sendAction } from './reason.ts';

const maxShown = 25;

export async function laneReasons(
  db: Queryable,
  schema: Schema,
  job: Job,
): Promise<{ reasons: Reason[]; position: number | null }> {
  if (job.targetId === null) return { reasons: [], position: null };
  const target = await mustFindTarget(db, schema, job.targetId);
  const mayRun = target.pausedAt === null || target.canaryJobId === job.id;
  const reasons: Reason[] = mayRun ? [] : [target.canaryJobId === null ? pausedTarget(target) : behindCanary(target)];
  if (job.laneHead && mayRun) return { reasons, position: 1 };
  const place = placeInLine(job);
  const head = job.laneHead ? undefined : (await readHeads(db, schema, [job.targetId])).get(job.targetId);
  const ahead = await readAhead(db, schema, job, place);
  const shown = [...(head === undefined ? [] : [head]), ...ahead];
  const count = ahead.length < maxShown ? ahead.length : await countAhead(db, schema, job, place);
  for (const other of shown) reasons.push(holdsLane(other) ? await targetHeld(db, schema, other) : behindJob(other));
  if (count > ahead.length) reasons.push(behindMore(count - ahead.length));
  return { reasons, position: job.laneHead ? 1 : count + (head === undefined ? 1 : 2) };
}

interface Place {
  rank: number;
  seq: string;
}

/**
 * The job's position in the lane, or its position once it is resumed or due. A head has one too while its target is
 * paused.
 */
function placeInLine(job: Job): Place {
  if (job.laneHead) return { rank: 1, seq: job.laneSeq };
  if (isOnHold(job.status)) return { rank: 1, seq: job.laneSeq };
  if (job.laneRank !== null) return { rank: job.laneRank, seq: job.laneSeq };
  return { rank: firstByPriority + priorityRank(job.priority), seq: maxInt8 };
}

const isAhead = `j.target_id = :targetId
     and j.lane_rank is not null
     and j.id <> :jobId
     and (j.lane_rank, j.lane_seq) < (:rank::smallint, :seq::bigint)`;

const aheadStatement = statement(`
  select ${laneColumns}
    from ${tenant}.jobs j
   where ${isAhead}
   order by j.lane_rank, j.lane_seq
   limit :limit`);

function readAhead(db: Queryable, schema: Schema, { targetId, id }: Job, place: Place): Promise<LaneJob[]> {
  return aheadStatement.query<LaneJob>(db, schema, { targetId, jobId: id, ...place, limit: maxShown });
}

const countStatement = statement(`
  select count(*)::int as count
    from (
      select 1
        from ${tenant}.jobs j
       where ${isAhead}
       limit :limit
    ) w`);

async function countAhead(db: Queryable, schema: Schema, { targetId, id }: Job, place: Place): Promise<number> {
  const parameters = { targetId, jobId: id, ...place, limit: maxCounted };
  const [row] = await countStatement.query<{ count: number }>(db, schema, parameters);
  return row?.count ?? 0;
}

function behindCanary(target: Target): Reason {
  const jobId = target.canaryJobId as string;
  return {
    code: 'CANARY',
    detail: `Target ${target.id} runs only job ${jobId}, its canary. If it succeeds, the lane resumes; otherwise the lane stays stopped.`,
    jobId,
    since: target.pausedAt,
    release: { detail: `Job ${jobId} succeeds, or the target is resumed.`, at: null, actions: [resumeTarget(target)] },
  };
}

function resumeTarget(target: Target): ReleaseAction {
  return {
    action: 'resume target',
    method: 'POST',
    path: `/api/targets/${encodeURIComponent(target.id)}/resume`,
  };
}

function pausedTarget(target: Target): Reason {
  const why = target.pauseReason === null ? '' : `: ${target.pauseReason}`;
  const until = target.pausedUntil === null ? '' : `, until ${target.pausedUntil}`;
  return {
    code: 'TARGET_PAUSED',
    detail: `Target ${target.id} is paused by ${target.pausedBy} since ${target.pausedAt}${until}${why}`,
    since: target.pausedAt,
    release: {
      detail: 'Resume the target.',
      at: target.pausedUntil,
      actions: [resumeTarget(target)],
    },
  };
}

async function targetHeld(db: Queryable, schema: Schema, holder: LaneJob): Promise<Reason> {
  const hold = holdOf(holder);
  const asked = isBudgetError(holder.error) ? await readBudgetQuestion(db, schema, holder.id) : undefined;
  const answer = asked === undefined ? '' : 'Answer its question. ';
  const why = hold === undefined ? '' : `: ${describeHold(hold)}`;
  return {
    code: 'TARGET_HELD',
    detail: `Target ${holder.targetId} is held by job ${holder.id} (${holder.type}), ${holder.status} since ${holder.heldSince}${why}`,
    jobId: holder.id,
    since: holder.heldSince,
    ...(hold && { hold }),
    release: {
      detail: `${answer}Resume, resolve or skip job ${holder.id}.`,
      at: null,
      actions: [
        ...(asked === undefined ? [] : [answerAction(asked.id)]),
        jobAction(holder.id, 'resume'),
        jobAction(holder.id, 'resolve'),
        jobAction(holder.id, 'skip'),
      ],
    },
  };
}

function behindJob(other: LaneJob): Reason {
  const hold = holdOf(other);
  if (hold?.kind === 'handler') {
    return {
      code: 'HANDLER_RUNNING',
      detail: `Job ${other.id} (${other.type}) on ${other.leaseOwner}: ${describeHold(hold)}`,
      jobId: other.id,
      since: hold.since,
      hold,
      release: { detail: `The handler of job ${other.id} or its process ends.`, at: null, actions: [] },
    };
  }
  return {
    code: 'BEHIND_JOB',
    detail: `Job ${other.id} (${other.type}) is ahead in the lane and ${other.status}${aheadBecause(other)}.`,
    jobId: other.id,
    release: {
      detail: `${endsWait(other)}Job ${other.id} ends or is canceled.`,
      at: null,
      actions: [...waitActions(other), jobAction(other.id, 'cancel')],
    },
  };
}

function endsWait({ waiting }: LaneJob): string {
  if (waiting?.question !== undefined) return 'A person answers its question. ';
  return waiting?.event === undefined ? '' : `The event "${waiting.event}" comes. `;
}

/** What lets the job ahead continue. */
function waitActions({ waiting }: LaneJob): ReleaseAction[] {
  const { question, event } = waiting ?? {};
  return [
    ...(question === undefined ? [] : [answerAction(question)]),
    ...(event === undefined ? [] : [sendAction(event)]),
  ];
}

function aheadBecause({ waiting, isUnleased }: LaneJob): string {
  if (isUnleased) return '; it has no lease';
  return waiting === null ? '' : `: it ${describeWaiting(waiting)}`;
}

function behindMore(count: number): Reason {
  return {
    code: 'BEHIND_MORE',
    detail: `${count >= maxCounted - maxShown ? 'At least ' : ''}${count} more jobs are ahead in the lane.`,
    release: { detail: 'They end or are canceled.', at: null, actions: [] },
  };
}
