// A remote worker asks a person: the question is stored under its lease, and unless it has been answered the attempt
// ends as WAITING. The worker that claims the job next asks the same question again, and gets the answer.
import type { Database, Queryable } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import { retryConflicts } from '../database/sql-errors.ts';
import { finishAttemptsIn } from '../jobs/finish/finish.ts';
import { lockTargets } from '../jobs/lanes/lane.ts';
import type { Waiting } from '../jobs/model/waiting.ts';
import { openQuestion, type QuestionState, type TimedQuestion } from '../jobs/questions/ask.ts';
import { listQuestions } from '../jobs/questions/read-questions.ts';
import { getSchedulerJob } from './read.ts';
import { getOwnLease, type LeaseHolder, leaseOver } from './worker-lease.ts';

export interface WorkerQuestion extends LeaseHolder {
  /** Identifies the question among those of the job. */
  name: string;
  question: TimedQuestion;
}

export async function askFromWorker(db: Database, schema: Schema, request: WorkerQuestion): Promise<QuestionState> {
  const { leaseId, jobId, name, question } = request;
  const actor = `worker:${request.workerId}`;
  const lease = await getOwnLease(db, schema, request);
  if (lease.state === 'RELEASED') return repeated(db, schema, request);
  if (lease.state !== 'ACTIVE' || lease.overdue) throw leaseOver(lease);
  // Workers send no order of calls, so none is compared.
  const call = { name, position: 0, parallel: true };
  const state = await openQuestion(db, schema, { jobId, leaseId }, call, question, actor);
  if (state === undefined) throw leaseOver({ state: 'EXPIRED' });
  if (state.status === 'open') await retryConflicts(() => db.transaction((tx) => suspend(tx, schema, request, state)));
  return state;
}

async function suspend(
  tx: Queryable,
  schema: Schema,
  { leaseId, jobId, workerId, name }: WorkerQuestion,
  { questionId, until, wakeMs }: QuestionState & { status: 'open' },
): Promise<void> {
  const { targetId } = await getSchedulerJob(tx, schema, jobId);
  // The order of every change of a lane: target, lease, job.
  await lockTargets(tx, schema, targetId === null ? [] : [targetId]);
  const ended = await tx.query(
    `update ${schema}.leases set state = 'RELEASED', released_at = now()
      where id = $1 and kind = 'remote' and state = 'ACTIVE' and expires_at > now() returning id`,
    [leaseId],
  );
  if (ended.length === 0) throw leaseOver({ state: 'EXPIRED' });
  const waiting: Waiting = { kind: 'question', step: name, until, question: questionId };
  const outcome = { kind: 'suspend', waiting, leftMs: wakeMs, awaited: { steps: [name], until } } as const;
  const item = { jobId, leaseId, targetId, outcome };
  const finished = await finishAttemptsIn(tx, schema, [item], { actor: `worker:${workerId}` });
  if (!finished.accepted.has(jobId)) throw leaseOver({ state: 'EXPIRED' });
}

/** The answer to an earlier request was lost: the job waits already. */
async function repeated(db: Database, schema: Schema, { jobId, name }: WorkerQuestion): Promise<QuestionState> {
  const open = await listQuestions(db, schema, { jobId, status: 'open' }, { limit: 100 });
  const found = open.find(({ step }) => step === name);
  if (found === undefined) throw leaseOver({ state: 'RELEASED' });
  return { status: 'open', questionId: found.id, until: found.expiresAt, leftMs: 0, wakeMs: 0 };
}
