// The reasons of a job that waits for others: its children, the jobs it runs after, or its turn among its siblings. Of
// many jobs only the first are named.
import type { Queryable } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import { statement, tenant } from '../database/sql.ts';
import { noStep } from '../jobs/flows/dependencies.ts';
import type { Job } from '../jobs/model/job.ts';
import { isOnHold, type Status } from '../jobs/model/states.ts';
import { describeWaiting, type Waiting, waitsForJobs } from '../jobs/model/waiting.ts';
import { jobAction, type Reason } from './reason.ts';

const maxShown = 10;

export async function dependencyReasons(db: Queryable, schema: Schema, job: Job): Promise<Reason[]> {
  const { waiting } = job;
  if (job.status !== 'WAITING' || waiting === null || !waitsForJobs(waiting)) return [];
  if (waiting.kind === 'children') return [await waitsForChildren(db, schema, job, waiting)];
  if (waiting.kind === 'after') return runsAfter(db, schema, job, waiting);
  return [waitsForTurn(job, waiting)];
}

interface Counts {
  total: number;
  unfinished: number;
}

const countStatement = statement(`
  select count(*)::int as total,
         (count(*) filter (where d.state in ('gated', 'open')))::int as unfinished
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

interface Unfinished {
  id: string;
  type: string | null;
  status: Status | null;
  message: string | null;
  on_failure: string;
}

const unfinishedStatement = statement(`
  select d.after_id as id, d.on_failure, j.type, j.status, j.error ->> 'message' as message
    from ${tenant}.dependencies d
    left join ${tenant}.jobs j on j.id = d.after_id
   where d.job_id = :jobId
     and d.step = '${noStep}'
     and d.state in ('gated', 'open')
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
    detail: `It runs after job ${id}${type === null ? '' : ` (${type})`}, which is ${status ?? 'deleted'}${why}. If it fails: ${on_failure}.`,
    jobId: id,
    release: {
      detail: isHeld ? `Resume or resolve job ${id}.` : `Job ${id} ends.`,
      at: null,
      actions: isHeld ? [jobAction(id, 'resume'), jobAction(id, 'resolve')] : [],
    },
  };
}

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
