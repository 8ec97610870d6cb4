// Explains why a job is not running: every current reason, each with the actions that would release it. A job without
// reasons is running, or the next claim takes it.
import type { Queryable } from '../database/database.ts';
import { type LimitWait, readLimitWaits } from '../jobs/limits/read-limits.ts';
import { describeHold, type Hold, holdOf } from '../jobs/model/hold.ts';
import { type Job, priorityRank } from '../jobs/model/job.ts';
import { isBudgetError } from '../jobs/model/job-errors.ts';
import { isOnHold, isTerminal, ownedStatuses } from '../jobs/model/states.ts';
import { describeWaiting, type Waiting, waitsForJobs } from '../jobs/model/waiting.ts';
import { readBudgetQuestion } from '../jobs/questions/budget-question.ts';
import type { Question } from '../jobs/questions/question.ts';
import { readQuestion } from '../jobs/questions/read-questions.ts';
import type { Tenant } from '../tenants/tenant.ts';
import { dependencyReasons } from './dependency-reasons.ts';
import { heldWaits } from './held-waits.ts';
import { laneReasons } from './lane-reasons.ts';
import { answerAction, jobAction, type Reason, type Release, sendAction } from './reason.ts';
import { type WorkerView, workerReasons } from './worker-reasons.ts';

interface Why {
  reasons: Reason[];
  running: boolean;
  /** The next claim takes the job. */
  claimable: boolean;
  /** Position in the lane: 1 is the head. Null without a target; never above 1002. */
  position: number | null;
}

export async function explainJob(db: Queryable, job: Job, view: WorkerView): Promise<Why> {
  if (isTerminal(job.status)) return { reasons: [finished(job)], running: false, claimable: false, position: null };
  const position = job.targetId === null ? null : 1;
  if (ownedStatuses.includes(job.status) && job.leaseExpiresAt === null) {
    return { reasons: [withoutLease(job)], running: false, claimable: false, position };
  }
  if (job.status === 'RUNNING') {
    const hold = holdOf(job);
    const reasons = hold === undefined ? [] : [handlerRunning(job, hold)];
    return { reasons, running: true, claimable: false, position };
  }
  const lane = await laneReasons(db, view.tenant.schema, job);
  const reasons = [
    ...(await ownReasons(db, job, view)),
    ...(await dependencyReasons(db, view.tenant.schema, job)),
    ...lane.reasons,
    ...(await limitReasons(db, job, view.tenant)),
    ...(await workerReasons(db, job, view)),
  ];
  const claimable = reasons.length === 0 && job.status === 'QUEUED';
  return { reasons, running: false, claimable, position: lane.position };
}

function finished(job: Job): Reason {
  return {
    code: 'FINISHED',
    detail: `The job ended as ${job.status} at ${job.finishedAt}.`,
    since: job.finishedAt,
    release: { detail: 'A job that has ended does not run again; enqueue a new one.', at: null, actions: [] },
  };
}

async function ownReasons(db: Queryable, job: Job, view: WorkerView): Promise<Reason[]> {
  const { schema } = view.tenant;
  if (isOnHold(job.status)) {
    const asked = isBudgetError(job.error) ? await readBudgetQuestion(db, schema, job.id) : undefined;
    return [held(job, asked), ...(await heldWaits(db, schema, job))];
  }
  if (job.status === 'PENDING') return [scheduled(job)];
  if (job.status === 'WAITING' && job.waiting !== null) {
    if (waitsForJobs(job.waiting)) return [];
    const { question } = job.waiting;
    const asked = question === undefined ? undefined : await readQuestion(db, schema, question);
    return [waiting(job, job.waiting, asked, view)];
  }
  return ownedStatuses.includes(job.status) ? [claimed(job)] : [];
}

/** The handler was asked to stop and still runs, so no other job of the lane may start. */
function handlerRunning(job: Job, hold: Hold): Reason {
  return {
    code: 'HANDLER_RUNNING',
    detail: `Attempt ${job.attempt} on ${job.leaseOwner}: ${describeHold(hold)}`,
    since: hold.since,
    hold,
    release: {
      detail: 'The handler or its process ends, or the daemon gives up on it after UNRESPONSIVE_HANDLER_MAX_SECONDS.',
      at: null,
      actions: [],
    },
  };
}

function withoutLease(job: Job): Reason {
  return {
    code: 'NO_LEASE',
    detail: `The job is ${job.status}, but its lease ${job.leaseId} (${job.leaseOwner}) has ended or does not exist.`,
    since: job.updatedAt,
    release: {
      detail: 'The sweeper opens the lease again, and recovers the job if nobody renews that lease before it expires.',
      at: null,
      actions: [],
    },
  };
}

function held(job: Job, asked: Pick<Question, 'id' | 'title'> | undefined): Reason {
  const hold = holdOf(job);
  const why = hold === undefined ? '' : `: ${describeHold(hold)}`;
  return {
    code: 'HELD',
    detail: `The job has been ${job.status} since ${job.heldSince}${why}`,
    ...(hold && { hold }),
    since: job.heldSince,
    release: {
      detail:
        asked === undefined
          ? `Resume it to run it ${hold?.kind === 'dependency' ? 'without that job' : 'again'}; resolve or cancel it to end it.`
          : `Answer the question "${asked.title}". Or act on the job: resume it with a higher limit, resolve it or cancel it.`,
      at: null,
      actions: [...(asked === undefined ? [] : [answerAction(asked.id)]), jobAction(job.id, 'resume')],
    },
  };
}

function waiting(job: Job, waits: Waiting, asked: Question | undefined, view: WorkerView): Reason {
  return {
    code: 'WAITING',
    detail: `The job ${describeWaiting({ ...waits, title: asked?.title })}. It has waited since ${job.heldSince} and uses no slot and no lease${
      waits.lane === 'released' ? '; it has left its lane' : ''
    }.`,
    since: job.heldSince,
    release: releaseOf(job, waits, asked, view),
  };
}

function releaseOf(
  job: Job,
  { kind, until, event, question }: Waiting,
  asked: Question | undefined,
  { questionTimeoutSeconds }: WorkerView,
): Release {
  const cancel = jobAction(job.id, 'cancel');
  if (kind === 'event' && event !== undefined) {
    const atLatest = until === undefined ? '' : `, or at ${until}`;
    const detail = `The job wakes when the event "${event}" comes${atLatest}.`;
    return { detail, at: until ?? null, actions: [sendAction(event), cancel] };
  }
  if (kind !== 'question') return { detail: `The job wakes at ${until}.`, at: until ?? null, actions: [cancel] };
  const isDefault =
    asked !== undefined && Date.parse(asked.expiresAt) - Date.parse(asked.askedAt) === questionTimeoutSeconds * 1000;
  const limit = isDefault ? ' This is the default time limit, QUESTION_TIMEOUT_SECONDS.' : '';
  const detail = `A person answers the question. If nobody has answered at ${until}, ${withoutAnswer(asked)}.${limit}`;
  return { detail, at: until ?? null, actions: [...(question === undefined ? [] : [answerAction(question)]), cancel] };
}

function withoutAnswer(asked: Question | undefined): string {
  if (!asked?.onTimeout) return 'the job fails with QUESTION_EXPIRED';
  const { action } = asked.onTimeout;
  return `its default answer applies${action === undefined ? '' : ` ("${action}")`}`;
}

function scheduled(job: Job): Reason {
  const retry = job.attempt > job.attemptFloor;
  return {
    code: retry ? 'BACKOFF' : 'SCHEDULED',
    detail: retry
      ? `Attempt ${job.attempt} failed${job.error === null ? '' : ` (${job.error.message})`}; the next begins at ${job.runAt}.`
      : `The job is scheduled for ${job.runAt}.`,
    release: { detail: `The job is queued at ${job.runAt}.`, at: job.runAt, actions: [] },
  };
}

function claimed(job: Job): Reason {
  return {
    code: 'CLAIMED',
    detail: `The job is ${job.status}: ${job.leaseOwner} has claimed it and waits for its lease.`,
    release: {
      detail: 'The worker gets its lease, or its claim expires and the job is queued again.',
      at: job.leaseExpiresAt,
      actions: [],
    },
  };
}

// Reasons of limits: those without room for the job, and when they will have room.
async function limitReasons(db: Queryable, job: Job, { schema, limits }: Tenant): Promise<Reason[]> {
  if (!job.gated || job.status !== 'QUEUED' || job.limitKeys === null) return [];
  const keyed = { ...job, limitKeys: job.limitKeys };
  const waits = await readLimitWaits(db, schema, limits, keyed, priorityRank(job.priority));
  return waits.filter((wait) => wait.isShort).map(limited);
}

function limited({ limit, value, running, ahead, at }: LimitWait): Reason {
  const { name, key, rate, per = 'second', concurrency } = limit;
  const which = key === undefined ? `Limit ${name}` : `Limit ${name} of ${key} ${JSON.stringify(value)}`;
  const before = ahead === 0 ? '' : `, and ${ahead} ${ahead === 1 ? 'job is' : 'jobs are'} ahead`;
  const tokens = rate === undefined ? '' : ` It allows ${rate} starts per ${per}.`;
  const slots = concurrency === undefined ? '' : ` ${running} of ${concurrency} are running.`;
  const room = concurrency === 0 ? `starts no job${before}.` : `has no room${before}.${tokens}${slots}`;
  const atTime = at === null ? 'A running job ends' : `A token comes at ${at}`;
  return {
    code: 'LIMITED',
    detail: `${which} ${room}`,
    release: {
      detail: concurrency === 0 ? 'The limit is raised.' : `${atTime}, or the limit is raised.`,
      at,
      actions: [{ action: 'raise limit', method: 'PUT', path: `/api/limits/${encodeURIComponent(name)}` }],
    },
  };
}
