// Ends leases and claims whose holder is gone. Each lease is handled in its own transaction and checked again under its
// lock, so that one bad row does not stop the others and a job that has finished is not overwritten. The jobs end
// through finish.ts.

import type { Database, Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { columnList, columnsOf } from '../../database/reads/drizzle.ts';
import { statement, tenant } from '../../database/sql.ts';
import { retryConflicts } from '../../database/sql-errors.ts';
import { jobs } from '../../database/tables/tenant.ts';
import { backoffMs } from '../../kernel/backoff.ts';
import { distinctTargets, lockTargets } from '../lanes/lane.ts';
import { attemptsLeft, isTimedOutSql, type Job, type JobRow, toJob } from '../model/job.ts';
import type { BudgetRules } from '../model/job-budget.ts';
import { hasCode, jobError, timeoutError } from '../model/job-errors.ts';
import { ownedStatuses, statusIn } from '../model/states.ts';
import { applyTransition } from '../transition.ts';
import { finishAttemptsIn } from './finish.ts';
import type { Outcome } from './outcome.ts';
import { supersedingOutcome } from './stop-decisions.ts';

export interface ExpiredLease {
  id: string;
  kind: 'local' | 'claim' | 'remote';
  owner: string;
  job_ids: string[];
}

/** @internal */
export const expiredLeases = statement(`
  select id, kind, owner, job_ids
    from ${tenant}.leases
   where state = 'ACTIVE'
     and expires_at < now() - :graceSeconds::float8 * interval '1 second'
     and id > :after
   order by id
   limit :limit`);

export async function findExpiredLeases(
  db: Queryable,
  schema: Schema,
  graceSeconds: number,
  after: string,
  limit: number,
): Promise<ExpiredLease[]> {
  return expiredLeases.query<ExpiredLease>(db, schema, { graceSeconds, after, limit });
}

const timedOutLeases = statement(`
  select l.id, l.kind, l.owner, l.job_ids
    from ${tenant}.leases l
    join ${tenant}.jobs j
      on j.id = l.job_ids[1]
     and j.lease_id = l.id
     and j.status = 'RUNNING'
   where l.state = 'ACTIVE'
     and l.kind = 'remote'
     and ${isTimedOutSql(':defaultSeconds::float8')}
   order by l.id
   limit :limit`);

/** Finds remote leases whose attempt ran longer than its job allows. Daemons stop their own attempts. */
export async function findTimedOutLeases(
  db: Queryable,
  schema: Schema,
  defaultSeconds: number,
  limit: number,
): Promise<ExpiredLease[]> {
  return timedOutLeases.query<ExpiredLease>(db, schema, { defaultSeconds, limit });
}

export interface Recovered {
  /** The jobs that the lease no longer owns: retried, failed, paused, canceled or requeued. */
  jobs: number;
  failed: number;
}

/** Ends one expired lease. Does nothing if it was renewed, released or ended by another sweeper. */
export async function recoverLease(
  db: Database,
  schema: Schema,
  lease: ExpiredLease,
  { actor, graceSeconds, ...rules }: BudgetRules & { actor: string; graceSeconds: number },
): Promise<Recovered> {
  const decide = (job: Job) => outcomeOfLostLease(job, lease.owner, rules);
  return endLease(db, schema, lease, { actor, overdueSeconds: graceSeconds, decide });
}

/** Ends the attempt of a timed-out remote lease; the worker's later writes are refused. */
export async function endTimedOutLease(
  db: Database,
  schema: Schema,
  lease: ExpiredLease,
  { actor, timeoutSeconds, ...rules }: BudgetRules & { actor: string; timeoutSeconds: number },
): Promise<Recovered> {
  const decide = (job: Job) => outcomeOfTimeout(job, lease.owner, rules, timeoutSeconds);
  return endLease(db, schema, lease, { actor, releaseStatus: 'TIMEOUT', decide });
}

interface LeaseEnd {
  actor: string;
  /** The minimum time since the expiry; undefined ends the lease at once. */
  overdueSeconds?: number;
  releaseStatus?: 'TIMEOUT';
  decide(job: Job): Outcome;
}

/** @internal */
export const ownedJobs = statement(`
  select ${columnList(jobs, columnsOf(jobs), 'j')}
    from ${tenant}.jobs j
   where j.id = any(:jobIds::uuid[])
     and j.lease_id = :leaseId
     and ${statusIn(ownedStatuses, 'j.status')}`);

/** @internal */
export const endStatement = statement(`
  with e as (
    select id
      from ${tenant}.leases
     where id = :leaseId
       and state = 'ACTIVE'
       and (:overdueSeconds::float8 is null or expires_at < now() - :overdueSeconds::float8 * interval '1 second')
       for update skip locked
  )
  update ${tenant}.leases l
     set state = :state,
         released_at = now(),
         release_status = :releaseStatus
    from e
   where l.id = e.id
  returning l.id`);

const deleteClaim = statement(`delete from ${tenant}.leases where id = :leaseId`);

async function endLease(db: Database, schema: Schema, lease: ExpiredLease, end: LeaseEnd): Promise<Recovered> {
  const leaseId = lease.id;
  return retryConflicts(() =>
    db.transaction(async (tx) => {
      const owned = (await ownedJobs.query<JobRow>(tx, schema, { jobIds: lease.job_ids, leaseId })).map(toJob);
      // Every change of a lane locks in this order: target, lease, job.
      await lockTargets(tx, schema, distinctTargets(owned));
      const ended = await endStatement.query(tx, schema, {
        leaseId,
        overdueSeconds: end.overdueSeconds ?? null,
        // If all its jobs have ended, nothing was lost: the holder only failed to release it.
        state: owned.length > 0 ? 'EXPIRED' : 'RELEASED',
        releaseStatus: end.releaseStatus ?? null,
      });
      if (ended.length === 0) return { jobs: 0, failed: 0 };
      if (lease.kind !== 'claim') return finishLost(tx, schema, lease, owned, end);
      const requeued = await requeueClaims(tx, schema, lease, owned, end.actor);
      // Leases are kept as a record of who ran which jobs. Claims are deleted, because nothing ran under them.
      await deleteClaim.query(tx, schema, { leaseId });
      return { jobs: requeued, failed: 0 };
    }),
  );
}

async function finishLost(
  tx: Queryable,
  schema: Schema,
  lease: ExpiredLease,
  jobs: Job[],
  { actor, decide }: LeaseEnd,
): Promise<Recovered> {
  const attempts = jobs.map((job) => ({
    jobId: job.id,
    leaseId: lease.id,
    targetId: job.targetId,
    outcome: decide(job),
  }));
  const { accepted } = await finishAttemptsIn(tx, schema, attempts, { actor });
  const failed = attempts.filter(({ jobId, outcome }) => outcome.kind === 'fail' && accepted.has(jobId)).length;
  return { jobs: accepted.size, failed };
}

/** As `outcomeOfLostLease`, with the timeout as the error. */
function outcomeOfTimeout(job: Job, owner: string, rules: BudgetRules, defaultSeconds: number): Outcome {
  const outcome = outcomeOfLostLease(job, owner, rules);
  if (outcome.kind !== 'recover' && outcome.kind !== 'recoverLater' && outcome.kind !== 'fail') return outcome;
  if (!hasCode(outcome.error, 'LEASE_EXPIRED')) return outcome;
  const error = timeoutError(job.timeoutSeconds ?? defaultSeconds);
  const again = job.retry?.codes?.includes(error.code) ?? false;
  return again ? { ...outcome, error } : { kind: 'fail', error };
}

/** Decides how the attempt ends if its holder stopped renewing. */
export function outcomeOfLostLease(job: Job, owner: string, rules: BudgetRules): Outcome {
  // The handler was fenced off because it did not stop; its outcome was decided then.
  if (job.hold?.outcome !== undefined) return job.hold.outcome as Outcome;
  return supersedingOutcome('leaseLost', job, rules) ?? outcomeOfExpiry(job, owner);
}

function outcomeOfExpiry(job: Job, owner: string): Outcome {
  const message = `The lease of ${owner} expired: attempt ${job.attempt} was lost.`;
  const error = jobError('LEASE_EXPIRED', message, { owner });
  if (!attemptsLeft(job)) return { kind: 'fail', error };
  if (job.retry === null) return { kind: 'recover', error };
  return { kind: 'recoverLater', error, delayMs: backoffMs(job.retry, job.attempt - job.attemptFloor, Math.random()) };
}

/**
 * Requeues claimed jobs at the front of their lanes. Returns their number; a job that the claim no longer owns is not
 * changed.
 */
export async function requeueClaims(
  tx: Queryable,
  schema: Schema,
  lease: Pick<ExpiredLease, 'id' | 'owner'>,
  jobs: readonly Pick<Job, 'id' | 'targetId'>[],
  actor: string,
  reason = 'claim expired',
): Promise<number> {
  const ids = await applyTransition(tx, schema, {
    name: 'expireClaim',
    jobs,
    leaseId: lease.id,
    set: 'lease_owner = null',
    actor,
    data: { reason, owner: lease.owner },
  });
  return ids.length;
}
