// Turns a claim into a lease: checks the capacity and starts the job under its own lease, in one transaction.

import type { Database, Queryable } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import { statement, tenant } from '../database/sql.ts';
import { retryConflicts } from '../database/sql-errors.ts';
import { priorityRank } from '../jobs/model/job.ts';
import { allows } from '../jobs/model/states.ts';
import { applyTransition } from '../jobs/transition.ts';
import { monotonicMs } from '../kernel/clock.ts';
import { Problem, problem } from '../kernel/errors.ts';
import { newId } from '../kernel/ids.ts';
import { type Lease, type SchedulerJob, toState } from './api-names.ts';
import { CapacityLedger, describeShortage, retryAfterSeconds, type Shortage } from './capacity.ts';
import { extendClaim, lost, notYours } from './report-status.ts';
import { getSchedulerJob } from './worker-jobs.ts';
import { findLease, insertRemoteLease } from './worker-lease.ts';

export interface LeaseRequest {
  jobId: string;
  queue?: string | undefined;
  jobType?: string | undefined;
  /** Raises the cost of the job; a smaller value does not lower it. */
  costUnits?: number | undefined;
  /** Checked if given. */
  workerId?: string | undefined;
  /** The same for each repetition of one request: no other request is answered with its lease. */
  requestId?: string | undefined;
  ttlSeconds: number;
  claimSeconds: number;
}

export type LeaseAnswer =
  | { approved: true; lease: Lease }
  | { approved: false; retryAfterSeconds: number; reason: string };

export async function requestLease(db: Database, schema: Schema, request: LeaseRequest): Promise<LeaseAnswer> {
  const job = await getSchedulerJob(db, schema, request.jobId);
  checkSameJob(job, request);
  const granted = await findUnusedLease(db, schema, job, request);
  if (granted) return { approved: true, lease: granted };
  if (!allows('grantLease', job.status)) {
    throw problem('INVALID_TRANSITION', `A job that is ${toState(job)} cannot get a lease; claim it first.`, {
      state: toState(job),
    });
  }
  const sentAt = monotonicMs();
  try {
    const answer = await retryConflicts(() =>
      db.transaction((tx) => decide(tx, schema, job, request), { keepsPlans: true }),
    );
    // The process may have been frozen since Postgres answered, and a worker must not start under an expired lease.
    if (answer.approved && monotonicMs() - sentAt >= request.ttlSeconds * 1000) throw lost();
    return answer;
  } catch (error) {
    if (!(error instanceof Problem) || error.code !== 'LEASE_LOST') throw error;
    // The claim may be gone because the same request was sent twice and granted meanwhile.
    const now = await getSchedulerJob(db, schema, request.jobId);
    const lease = now.leaseOwner === job.leaseOwner ? await findUnusedLease(db, schema, now, request) : undefined;
    if (lease === undefined) throw error;
    return { approved: true, lease };
  }
}

async function decide(tx: Queryable, schema: Schema, job: SchedulerJob, request: LeaseRequest): Promise<LeaseAnswer> {
  const ledger = await CapacityLedger.lock(tx, schema, job.queue);
  if (!(await extendClaim(tx, schema, job, request.claimSeconds))) throw lost();
  const costUnits = Math.max(job.costUnits, request.costUnits ?? 0);
  const demand = { jobId: job.id, queue: job.queue, priorityRank: priorityRank(job.priority), costUnits };
  const shortage = ledger.shortage(demand);
  if (shortage) {
    await ledger.reserve(demand);
    await deny(tx, schema, job, shortage);
    return { approved: false, retryAfterSeconds, reason: describeShortage(shortage) };
  }
  await ledger.take(demand);
  return { approved: true, lease: await grant(tx, schema, job, costUnits, request) };
}

async function grant(
  tx: Queryable,
  schema: Schema,
  job: SchedulerJob,
  costUnits: number,
  { ttlSeconds, requestId }: LeaseRequest,
): Promise<Lease> {
  const leaseId = newId();
  const granted = await applyTransition(tx, schema, {
    name: 'grantLease',
    jobs: [job],
    ...claimOf(job),
    set: `lease_id = :newLeaseId::uuid,
              attempt = j.attempt + 1,
              cost_units = :costUnits,
              started_at = now(),
              progress = null`,
    values: { newLeaseId: leaseId, costUnits },
    data: { cost_units: costUnits, ttl_sec: ttlSeconds, ...(requestId !== undefined && { request_id: requestId }) },
  });
  if (granted.length === 0) throw lost();
  const [lease] = await Promise.all([
    insertRemoteLease(tx, schema, { leaseId, job, costUnits, ttlSeconds }),
    // A claim of this job alone is no longer needed. A claim of several jobs is kept for the others.
    deleteClaim.query(tx, schema, { leaseId: job.leaseId, jobId: job.id }),
  ]);
  return lease;
}

const deleteClaim = statement(`
  delete from ${tenant}.leases
   where id = :leaseId
     and kind = 'claim'
     and job_ids = array[:jobId::uuid]`);

/** The job becomes LEASE_PENDING and keeps its claim. */
async function deny(tx: Queryable, schema: Schema, job: SchedulerJob, shortage: Shortage): Promise<void> {
  const denied = await applyTransition(tx, schema, {
    name: 'denyLease',
    jobs: [job],
    ...claimOf(job),
    set: `cost_units = :costUnits,
              run_at = now() + :retryAfterSeconds::float8 * interval '1 second'`,
    values: { costUnits: shortage.requested, retryAfterSeconds },
    data: { reason: describeShortage(shortage), ...shortage },
  });
  if (denied.length === 0) throw lost();
}

function claimOf({ leaseId, leaseOwner }: SchedulerJob): { leaseId: string; actor: string } {
  if (leaseId === null) throw lost();
  return { leaseId, actor: `worker:${leaseOwner}` };
}

function checkSameJob(job: SchedulerJob, request: LeaseRequest): void {
  const wrong =
    (request.queue !== undefined && request.queue !== job.queue && 'addon_id') ||
    (request.jobType !== undefined && request.jobType !== job.type && 'job_type');
  if (wrong) throw problem('CONFLICT', `The job has another ${wrong}.`, { field: wrong });
  if (request.workerId !== undefined && job.leaseOwner !== request.workerId) throw notYours(job);
}

// The time of the lease starts again: the worker counts it from this request.
const unusedStatement = statement(`
  with unused as (
    select l.id, now() + l.ttl_seconds * interval '1 second' as expires_at
      from ${tenant}.leases l
     where l.id = :leaseId
       and l.kind = 'remote'
       and l.state = 'ACTIVE'
       and l.expires_at > now()
       and l.last_heartbeat_at = l.granted_at
       and exists (
             select 1
               from ${tenant}.events e
              where e.job_id = :jobId
                and e.lease_id = :leaseId
                and e.type = 'job.lease_granted'
                and e.data ->> 'request_id' is not distinct from :requestId::text)
       for update
  )
  update ${tenant}.leases l
     set expires_at = u.expires_at
    from unused u
   where l.id = u.id
  returning l.id`);

/**
 * A worker that repeats its request because the response was lost gets the same lease, unless it has renewed it.
 * Another request of the same worker does not: two of its slots may have claimed the job, one after the other.
 */
async function findUnusedLease(
  db: Database,
  schema: Schema,
  { id: jobId, status, leaseId }: SchedulerJob,
  { requestId = null }: { requestId?: string | null | undefined },
): Promise<Lease | undefined> {
  if (status !== 'RUNNING' || leaseId === null) return undefined;
  const unused = await unusedStatement.query(db, schema, { leaseId, jobId, requestId });
  return unused.length > 0 ? findLease(db, schema, leaseId) : undefined;
}
