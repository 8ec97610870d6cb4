// Releases a remote lease: the worker's outcome finishes the attempt, and the row of the lease records it. A repeated
// release gets the response of the first. After the expiry no release is accepted.
import type { Database, Queryable } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import { statement, tenant } from '../database/sql.ts';
import { retryConflicts } from '../database/sql-errors.ts';
import { readSpentDay } from '../jobs/attempt/report.ts';
import { finishAttemptsIn } from '../jobs/finish/finish.ts';
import type { Outcome } from '../jobs/finish/outcome.ts';
import { recoverLease } from '../jobs/finish/recover.ts';
import { supersedingOutcome } from '../jobs/finish/stop-decisions.ts';
import { lockTargets } from '../jobs/lanes/lane.ts';
import { attemptsLeft, type JobError } from '../jobs/model/job.ts';
import type { BudgetRules } from '../jobs/model/job-budget.ts';
import { budgetError, jobError } from '../jobs/model/job-errors.ts';
import { closeQuestions } from '../jobs/questions/close-questions.ts';
import { backoffMs, defaultBackoff } from '../kernel/backoff.ts';
import { assertNever, problem } from '../kernel/errors.ts';
import {
  type FinalStatus,
  type Lease,
  type ReleaseAnswer,
  type SchedulerJob,
  toJobIntent,
  toJobResult,
} from './api-names.ts';
import { getSchedulerJob, lockSchedulerJob } from './worker-jobs.ts';
import { getLease, getOwnLease, type LeaseHolder, leaseOver } from './worker-lease.ts';

export interface Release extends LeaseHolder {
  status: FinalStatus;
  result: unknown;
  error: JobError | undefined;
  metrics: unknown;
  /** False if a failure is final, even if attempts are left. */
  recoverable: boolean;
  /**
   * With CANCELED and no stop request: the worker is draining, and the job is requeued without counting the attempt.
   */
  requeue: boolean;
  /** Questions without an answer are withdrawn. */
  closesQuestions?: boolean;
  rules: BudgetRules;
}

export interface Released {
  lease: Lease;
  job: SchedulerJob;
  answer: ReleaseAnswer;
  /** There may be jobs to claim now. */
  runnable: boolean;
}

export async function releaseLease(db: Database, schema: Schema, release: Release): Promise<Released> {
  const lease = await getOwnLease(db, schema, release);
  if (lease.state === 'RELEASED') return replay(db, schema, lease, release);
  if (lease.state === 'ACTIVE' && !lease.overdue) {
    const released = await retryConflicts(() =>
      db.transaction((tx) => finishRelease(tx, schema, release), { keepsPlans: true }),
    );
    if (released) return released;
  }
  // The lease ended in between: by the same release sent twice, by a sweeper, or by its expiry.
  const now = await getLease(db, schema, release.leaseId);
  if (now.state === 'RELEASED') return replay(db, schema, now, release);
  if (now.state === 'ACTIVE' && now.overdue) await expireNow(db, schema, now, release.rules);
  throw leaseOver(now);
}

const releaseStatement = statement(`
  update ${tenant}.leases
     set state = 'RELEASED',
         released_at = now(),
         release_status = :status,
         metrics = :metrics::jsonb
   where id = :leaseId
     and kind = 'remote'
     and state = 'ACTIVE'
     and expires_at > now()
  returning id`);

async function finishRelease(tx: Queryable, schema: Schema, release: Release): Promise<Released | undefined> {
  const before = await getSchedulerJob(tx, schema, release.jobId);
  // Every change of a lane locks in this order: target, lease, job.
  await lockTargets(tx, schema, before.targetId === null ? [] : [before.targetId]);
  // Sent together. A stop that was requested before decides the outcome, and a later one is refused.
  const [ended, job] = await Promise.all([
    releaseStatement.query(tx, schema, {
      leaseId: release.leaseId,
      status: release.status,
      metrics: release.metrics === undefined ? null : JSON.stringify(release.metrics),
    }),
    lockSchedulerJob(tx, schema, release.jobId),
  ]);
  if (ended.length === 0) return undefined;
  if (release.closesQuestions) await closeQuestions(tx, schema, [job.id], `worker:${release.workerId}`);
  const outcome = outcomeOf(job, release);
  const spent = outcome.kind === 'complete' ? undefined : await readSpentDay(tx, schema, job, release.rules.budgets);
  const item = {
    jobId: job.id,
    leaseId: release.leaseId,
    targetId: job.targetId,
    outcome: spent === undefined ? outcome : ({ kind: 'fail', error: budgetError(spent) } as const),
  };
  const finished = await finishAttemptsIn(tx, schema, [item], { actor: `worker:${release.workerId}` });
  if (!finished.accepted.has(job.id)) throw leaseOver({ state: 'EXPIRED' });
  const [released, lease] = await Promise.all([
    getSchedulerJob(tx, schema, job.id),
    getLease(tx, schema, release.leaseId),
  ]);
  const answer = { job: toJobIntent(released), result: toJobResult(released) };
  if (released.status !== 'SUCCESS') await keepAnswer(tx, schema, release.leaseId, answer);
  return { lease, job: released, answer, runnable: finished.runnable };
}

const keepStatement = statement(`
  update ${tenant}.leases
     set release_answer = :answer::json
   where id = :leaseId`);

/** Stored for a repeated release, because the job may be claimed or resumed before it arrives. */
async function keepAnswer(
  tx: Queryable,
  schema: Schema,
  leaseId: string,
  { job, result }: ReleaseAnswer,
): Promise<void> {
  const { payload: _, constraints: __, ...kept } = job;
  await keepStatement.query(tx, schema, { leaseId, answer: JSON.stringify({ job: kept, result }) });
}

/** Returns the worker's outcome, unless a spent budget or a stop request supersedes it. */
function outcomeOf(job: SchedulerJob, release: Release): Outcome {
  const end = release.status === 'SUCCEEDED' ? 'complete' : 'reported';
  return supersedingOutcome(end, job, release.rules) ?? reportedOutcome(job, release);
}

function reportedOutcome(job: SchedulerJob, release: Release): Outcome {
  switch (release.status) {
    case 'SUCCEEDED':
      return { kind: 'complete', result: release.result };
    case 'CANCELED':
      return release.requeue
        ? { kind: 'requeue', reason: release.error?.message ?? 'the worker is shutting down' }
        : { kind: 'stopCanceled', message: release.error?.message ?? 'Canceled by the worker' };
    case 'TIMEOUT':
      return {
        kind: 'fail',
        error: { ...jobError('TIMEOUT', 'The worker ran out of time.'), ...release.error, code: 'TIMEOUT' },
      };
    case 'FAILED':
      return failure(job, release);
    default:
      return assertNever(release.status);
  }
}

function failure(job: SchedulerJob, release: Release): Outcome {
  const error = release.error ?? jobError('HANDLER_ERROR', 'The worker reported a failure without a reason.');
  if (!release.recoverable || !attemptsLeft(job)) return { kind: 'fail', error };
  const delayMs = backoffMs(job.retry ?? defaultBackoff, job.attempt - job.attemptFloor, Math.random());
  return { kind: 'retry', error, delayMs };
}

async function replay(db: Database, schema: Schema, lease: Lease, release: Release): Promise<Released> {
  if (lease.releaseStatus !== release.status) {
    throw problem('CONFLICT', `The lease was already released as ${lease.releaseStatus}.`, {
      release_status: lease.releaseStatus,
    });
  }
  const job = await getSchedulerJob(db, schema, release.jobId);
  const intent = toJobIntent(job);
  const kept = lease.releaseAnswer;
  const answer = kept
    ? { job: { ...intent, ...kept.job }, result: kept.result }
    : { job: intent, result: toJobResult(job) };
  return { lease, job, answer, runnable: false };
}

/** Ends the job as the sweeper would, without waiting for it. */
async function expireNow(db: Database, schema: Schema, lease: Lease, rules: BudgetRules): Promise<void> {
  const expired = { id: lease.id, kind: 'remote' as const, owner: lease.owner, job_ids: [lease.jobId] };
  await recoverLease(db, schema, expired, { actor: `worker:${lease.owner}`, graceSeconds: 0, ...rules });
}
