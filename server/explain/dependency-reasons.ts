// The reasons of a job that waits for others: its children, the jobs it runs after, or its turn among its siblings. Of
// many jobs only the first are named.
import type { Queryable } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import { statement, tenant } from '../database/sql.ts';
import { type FailurePolicy, isUnfinished, noStep } from '../jobs/flows/dependencies.ts';
import { describeHold, holdOf } from '../jobs/model/hold.ts';
import type { Job } from '../jobs/model/job.ts';
import { heldStatuses, isOnHold, type Status, statusIn } from '../jobs/model/states.ts';
import { describeWaiting, type Waiting, waitsForJobs } from '../jobs/model/waiting.ts';
import { answerAction, jobAction, type Reason } from './reason.ts';

const maxShown = 10;

export async function dependencyReasons(db: Queryable, schema: Schema, job: Job): Promise<Reason[]> {
  const { waiting } = job;
  if (job.status !== 'WAITING' || waiting === null || !waitsForJobs(waiting)) return [];
  if (waiting.kind === 'children') {
    const held = await heldChildrenStatement.query<HeldChild>(db, schema, {
      jobId: job.id,
      step: waiting.step,
      limit: maxShown,
    });
    return [await waitsForChildren(db, schema, job, waiting), ...held.map(childHeld)];
  }
  if (waiting.kind === 'after') return runsAfter(db, schema, job, waiting);
  return [waitsForTurn(job, waiting)];
}

interface Counts {
  total: number;
  unfinished: number;
}

const countStatement = statement(`
  select count(*)::int as total,
         (count(*) filter (where ${isUnfinished()}))::int as unfinished
    from ${tenant}.dependencies d
   where d.job_id = :jobId
     and d.step = :step`);

async function waitsForChildren(db: Queryable, schema: Schema, job: Job, { step, lane }: Waiting): Promise<Reason> {
  const [counts] = await countStatement.query<Counts>(db, schema, { jobId: job.id, step });
  const { total, unfinished } = counts ?? { total: 0, unfinished: 0 };
  const left = lane === 'released' ? '; it has left its lane' : '';
  return {
    code: 'WAITING',
    detail:
      `The job waits for ${childrenText(total, unfinished)} in "${step}". ` +
      `It has waited since ${job.heldSince} and uses no slot and no lease${left}.`,
    since: job.heldSince,
    release: {
      detail:
        total === 1
          ? 'The child ends. If you cancel this job, the child is canceled too.'
          : 'The children end, or one of them fails. If you cancel this job, they are canceled too.',
      at: null,
      actions: [jobAction(job.id, 'cancel')],
    },
  };
}

type HeldChild = Pick<Job, 'id' | 'type' | 'status' | 'error' | 'hold' | 'heldSince'> & {
  question: string | null;
  title: string | null;
};

// Without a person these children do not end.
const heldChildrenStatement = statement(`
  select j.id, j.type, j.status, j.error, j.hold, j.held_since as "heldSince", q.id as question, q.title
    from ${tenant}.dependencies d
    join ${tenant}.jobs j on j.id = d.after_id
    left join ${tenant}.questions q on q.job_id = j.id and q.status = 'open'
   where d.job_id = :jobId
     and d.step = :step
     and ${isUnfinished()}
     and (${statusIn(heldStatuses, 'j.status')} or (j.status = 'WAITING' and q.id is not null))
   order by d.position
   limit :limit`);

function childHeld(child: HeldChild): Reason {
  const { id, type, status, question, title } = child;
  const hold = holdOf(child);
  const asks =
    question === null ? '' : `${hold === undefined ? ' for' : '; it waits for'} a person to answer "${title}"`;
  return {
    code: 'CHILD_HELD',
    detail: `Child ${id} (${type}) is ${status}${hold === undefined ? '' : `: ${describeHold(hold)}`}${asks}.`,
    jobId: id,
    since: child.heldSince,
    ...(hold && { hold }),
    release: {
      detail:
        question === null ? `Resume, resolve or cancel child ${id}.` : 'A person answers its question, or cancels it.',
      at: null,
      actions: [
        ...(question === null ? [] : [answerAction(question)]),
        ...(hold === undefined ? [] : [jobAction(id, 'resume'), jobAction(id, 'resolve')]),
        jobAction(id, 'cancel'),
      ],
    },
  };
}

interface Unfinished {
  id: string;
  type: string | null;
  status: Status | null;
  message: string | null;
  on_failure: FailurePolicy;
}

const unfinishedStatement = statement(`
  select d.after_id as id, d.on_failure, j.type, j.status, j.error ->> 'message' as message
    from ${tenant}.dependencies d
    left join ${tenant}.jobs j on j.id = d.after_id
   where d.job_id = :jobId
     and d.step = '${noStep}'
     and ${isUnfinished()}
   order by d.position
   limit :limit`);

async function runsAfter(db: Queryable, schema: Schema, job: Job, waiting: Waiting): Promise<Reason[]> {
  const [counts] = await countStatement.query<Counts>(db, schema, { jobId: job.id, step: noStep });
  const { total, unfinished } = counts ?? { total: 0, unfinished: 0 };
  const named = await unfinishedStatement.query<Unfinished>(db, schema, { jobId: job.id, limit: maxShown });
  const notBefore = waiting.not_before === undefined ? '' : ` It is not queued before ${waiting.not_before}.`;
  const summary: Reason = {
    code: 'WAITING',
    detail: `The job runs after ${afterText(total, unfinished)}.${notBefore}`,
    since: job.heldSince,
    release: {
      detail:
        total === 1
          ? 'That job succeeds, or ends in another way that `after` allows.'
          : 'Those jobs succeed, or end in another way that `after` allows.',
      at: null,
      actions: [jobAction(job.id, 'cancel')],
    },
  };
  return [summary, ...named.map(afterJob)];
}

/** A failed job holds this one until a person has decided about it. */
function afterJob({ id, type, status, message, on_failure }: Unfinished): Reason {
  const isHeld = status !== null && isOnHold(status);
  const why = isHeld && message !== null ? ` (${message})` : '';
  return {
    code: 'AFTER_JOB',
    detail:
      `It runs after job ${id}${type === null ? '' : ` (${type})`}, which is ${status ?? 'deleted'}${why}. ${isHeld ? '' : ifItFails[on_failure]}`.trimEnd(),
    jobId: id,
    release: {
      detail: isHeld ? `Resume or resolve job ${id}.` : `Job ${id} ends.`,
      at: null,
      actions: isHeld ? [jobAction(id, 'resume'), jobAction(id, 'resolve')] : [],
    },
  };
}

/** What a failure of the other job does to this one. */
const ifItFails: Record<FailurePolicy, string> = {
  hold: 'If that job fails, this one waits until it is resumed or resolved.',
  cancel: 'If that job fails, this one is canceled.',
  continue: 'If that job fails, this one runs all the same.',
};

function waitsForTurn(job: Job, waiting: Waiting): Reason {
  return {
    code: 'WAITING',
    detail: `The job ${describeWaiting(waiting)}.`,
    ...(job.parentId !== null && { jobId: job.parentId }),
    since: job.heldSince,
    release: { detail: 'One of its siblings ends.', at: null, actions: [jobAction(job.id, 'cancel')] },
  };
}

/** @internal */
export function afterText(total: number, unfinished: number): string {
  if (total === 1) return unfinished === 0 ? 'one other job, which has ended' : 'one other job, which has not ended';
  const left =
    unfinished === 0
      ? 'all of which have ended'
      : unfinished === total
        ? 'none of which has ended'
        : `of which ${format(unfinished)} ${unfinished === 1 ? 'has' : 'have'} not ended`;
  return `${format(total)} other jobs, ${left}`;
}

/** @internal */
export function childrenText(total: number, unfinished: number): string {
  return total === 1 ? 'its child' : `${format(unfinished)} of its ${format(total)} children`;
}

function format(number: number): string {
  return number.toLocaleString('en');
}
