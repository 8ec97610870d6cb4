// The durable calls of remote workers. They use the same rows and statements as handlers in a daemon, under a remote
// lease.
import type { Database } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import type { StepCall } from '../jobs/attempt/steps.ts';
import { isHeld } from '../jobs/claim/lease.ts';
import type { BudgetRules } from '../jobs/model/job-budget.ts';
import { openQuestion, type QuestionState, type TimedQuestion } from '../jobs/questions/ask.ts';
import { listQuestions } from '../jobs/questions/read-questions.ts';
import type { Lease, SchedulerJob } from './api-names.ts';
import { type Suspended, suspendAttempt } from './suspend-attempt.ts';
import { getSchedulerJob } from './worker-jobs.ts';
import { getOwnLease, type LeaseHolder, leaseOver } from './worker-lease.ts';

/** Runs a fenced write of the holder. `write` returns undefined if the lease no longer owns the job. */
export async function writeAsHolder<T>(
  db: Database,
  schema: Schema,
  holder: LeaseHolder,
  write: () => Promise<T | undefined>,
): Promise<T> {
  await requireActive(db, schema, holder);
  // While a tenant moves between nodes, a fenced write can miss an existing row. This checks the row and writes again.
  const written = (await write()) ?? ((await isHeld(db, schema, holder)) ? await write() : undefined);
  if (written === undefined) throw leaseOver({ state: 'EXPIRED' });
  return written;
}

/** Returns the job of a lease that its worker holds now. */
export async function getHeldJob(db: Database, schema: Schema, holder: LeaseHolder): Promise<SchedulerJob> {
  await requireActive(db, schema, holder);
  const job = await getSchedulerJob(db, schema, holder.jobId);
  if (job.leaseId !== holder.leaseId) throw leaseOver({ state: 'EXPIRED' });
  return job;
}

async function requireActive(db: Database, schema: Schema, holder: LeaseHolder): Promise<Lease> {
  const lease = await getOwnLease(db, schema, holder);
  if (lease.state !== 'ACTIVE' || lease.overdue) throw leaseOver(lease);
  return lease;
}

// The question is stored under the worker's lease. Unless it has been answered, the attempt may end as WAITING; the
// worker that claims the job next asks again and gets the answer.

export interface WorkerQuestion extends LeaseHolder {
  call: StepCall;
  question: TimedQuestion;
  /** Ends the attempt if there is no answer yet. */
  suspend: boolean;
  releaseLane: boolean;
  rules: BudgetRules;
}

export interface AskedFromWorker {
  state: QuestionState;
  /** The lease has ended. */
  suspended?: Suspended | undefined;
}

export async function askFromWorker(db: Database, schema: Schema, request: WorkerQuestion): Promise<AskedFromWorker> {
  const { jobId, leaseId, call, question } = request;
  const lease = await getOwnLease(db, schema, request);
  if (lease.state === 'RELEASED') return repeated(db, schema, request);
  const actor = `worker:${request.workerId}`;
  const ask = () => openQuestion(db, schema, { jobId, leaseId }, call, question, actor);
  const state = await writeAsHolder(db, schema, request, ask);
  if (state.status !== 'open' || !request.suspend) return { state };
  return { state, suspended: await suspendAttempt(db, schema, { ...request, call: call.name }) };
}

/** The answer to an earlier request was lost, and the job waits already. */
async function repeated(db: Database, schema: Schema, { jobId, call }: WorkerQuestion): Promise<AskedFromWorker> {
  const { questions } = await listQuestions(db, schema, { jobId, step: call.name, status: 'open' }, { limit: 1 });
  const [found] = questions;
  if (found === undefined) throw leaseOver({ state: 'RELEASED' });
  const state = { status: 'open', questionId: found.id, until: found.expiresAt, leftMs: 0, wakeMs: 0 } as const;
  return { state, suspended: 'waiting' };
}
