// From claim to lease: admitted by capacity, RUNNING under a lease of its own, in one transaction.
import { v7 as uuidv7 } from 'uuid';
import { type Database, type Queryable, retryConflicts } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import { insertEvents } from '../events/log/record.ts';
import { priorityRank } from '../jobs/model/job.ts';
import { allows, become, guard, transitions } from '../jobs/model/states.ts';
import { Problem, problem } from '../kernel/errors.ts';
import { monotonicMs } from '../kernel/monotonic.ts';
import { CapacityLedger, describeShortage, retryAfterSeconds, type Shortage } from './capacity.ts';
import { type Lease, type SchedulerJob, toState } from './dialect.ts';
import { findLease, getLease } from './lease.ts';
import { getSchedulerJob } from './read.ts';
import { keepClaim, lost, notYours } from './status.ts';

export interface LeaseRequest {
  jobId: string;
  queue?: string | undefined;
  jobType?: string | undefined;
  /** More than the job said raises its cost; less does not lower it. */
  costUnits?: number | undefined;
  /** Checked if given. */
  workerId?: string | undefined;
  ttlSeconds: number;
  claimSeconds: number;
}

export type LeaseAnswer =
  | { approved: true; lease: Lease }
  | { approved: false; retryAfterSeconds: number; reason: string };

export async function requestLease(db: Database, schema: Schema, request: LeaseRequest): Promise<LeaseAnswer> {
  const job = await getSchedulerJob(db, schema, request.jobId);
  checkSameJob(job, request);
  const granted = await findUnusedLease(db, schema, job);
  if (granted) return { approved: true, lease: granted };
  if (!allows('grantLease', job.status)) {
    throw problem('INVALID_TRANSITION', `A job that is ${toState(job)} gets no lease; claim it first.`, {
      state: toState(job),
    });
  }
  const sentAt = monotonicMs();
  try {
    const answer = await retryConflicts(() => db.transaction((tx) => decide(tx, schema, job, request)));
    // The answer may have lain in the socket while this process stood still: nobody may begin under a lease that is over.
    if (answer.approved && monotonicMs() - sentAt >= request.ttlSeconds * 1000) throw lost();
    return answer;
  } catch (error) {
    if (!(error instanceof Problem) || error.code !== 'LEASE_LOST') throw error;
    // The claim may be gone because the same request, sent twice, was granted meanwhile.
    const now = await getSchedulerJob(db, schema, request.jobId);
    const lease = now.leaseOwner === job.leaseOwner ? await findUnusedLease(db, schema, now) : undefined;
    if (lease === undefined) throw error;
    return { approved: true, lease };
  }
}

async function decide(tx: Queryable, schema: Schema, job: SchedulerJob, request: LeaseRequest): Promise<LeaseAnswer> {
  const ledger = await CapacityLedger.lock(tx, schema, job.queue);
  if (!(await keepClaim(tx, schema, job, request.claimSeconds))) throw lost();
  const costUnits = Math.max(job.costUnits, request.costUnits ?? 0);
  const demand = { jobId: job.id, queue: job.queue, priorityRank: priorityRank(job.priority), costUnits };
  const shortage = ledger.shortage(demand);
  if (shortage) {
    await ledger.reserve(demand);
    await deny(tx, schema, job, shortage);
    return { approved: false, retryAfterSeconds, reason: describeShortage(shortage) };
  }
  await ledger.take(demand);
  return { approved: true, lease: await grant(tx, schema, job, costUnits, request.ttlSeconds) };
}

async function grant(
  tx: Queryable,
  schema: Schema,
  job: SchedulerJob,
  costUnits: number,
  ttlSeconds: number,
): Promise<Lease> {
  const leaseId = uuidv7();
  const rows = await tx.query(
    `with given as (
       select j.id, j.status as before_status, now() as at, now() + $4::float8 * interval '1 second' as until
         from ${schema}.jobs j where j.id = $1 and j.lease_id = $2 and ${guard('grantLease', 'j')} for update),
     granted as (
       update ${schema}.jobs j set ${become('grantLease')}, lease_id = $3::uuid, attempt = j.attempt + 1, cost_units = $5,
         started_at = g.at, updated_at = g.at, progress = null
         from given g where j.id = g.id
       returning j.id, j.target_id, j.attempt, j.lease_id, j.queue, j.lease_owner, g.before_status, g.at, g.until),
     lease as (
       insert into ${schema}.leases (id, kind, owner, job_ids, queue, cost_units, ttl_seconds, granted_at, last_heartbeat_at, expires_at)
       select $3::uuid, 'remote', lease_owner, array[id], queue, $5::int, $4::real, at, at, until from granted),
     told as (${insertEvents(schema, {
       source: 'granted',
       type: `'${transitions.grantLease.event}'`,
       actor: `'worker:' || lease_owner`,
       from: 'before_status',
       to: `'${transitions.grantLease.to}'`,
       data: '$6::jsonb',
     })})
     select id from granted`,
    [
      job.id,
      job.leaseId,
      leaseId,
      ttlSeconds,
      costUnits,
      JSON.stringify({ cost_units: costUnits, ttl_sec: ttlSeconds }),
    ],
  );
  if (rows.length === 0) throw lost();
  // A claim of this job alone has done its duty; one that others share goes on for them.
  await tx.query(`delete from ${schema}.leases where id = $1 and kind = 'claim' and job_ids = array[$2::uuid]`, [
    job.leaseId,
    job.id,
  ]);
  return getLease(tx, schema, leaseId);
}

/** The job waits with its claim; only the first denial is told, or a waiting worker would fill the log. */
async function deny(tx: Queryable, schema: Schema, job: SchedulerJob, shortage: Shortage): Promise<void> {
  const rows = await tx.query(
    `with b as (
       select j.id, j.status as before_status from ${schema}.jobs j
        where j.id = $1 and j.lease_id = $2 and ${guard('denyLease', 'j')} for update),
     denied as (
       update ${schema}.jobs j set ${become('denyLease')}, cost_units = $3, run_at = now() + $4::float8 * interval '1 second',
         updated_at = now()
         from b where j.id = b.id
       returning j.id, j.target_id, j.attempt, j.lease_id, j.lease_owner, b.before_status),
     told as (${insertEvents(schema, {
       source: `denied where before_status <> '${transitions.denyLease.to}'`,
       type: `'${transitions.denyLease.event}'`,
       actor: `'worker:' || lease_owner`,
       from: 'before_status',
       to: `'${transitions.denyLease.to}'`,
       data: '$5::jsonb',
     })})
     select id from denied`,
    [
      job.id,
      job.leaseId,
      shortage.requested,
      retryAfterSeconds,
      JSON.stringify({ reason: describeShortage(shortage), ...shortage }),
    ],
  );
  if (rows.length === 0) throw lost();
}

function checkSameJob(job: SchedulerJob, request: LeaseRequest): void {
  const wrong =
    (request.queue !== undefined && request.queue !== job.queue && 'addon_id') ||
    (request.jobType !== undefined && request.jobType !== job.type && 'job_type');
  if (wrong) throw problem('CONFLICT', `The ${wrong} given is not that of the job.`, { field: wrong });
  if (request.workerId !== undefined && job.leaseOwner !== request.workerId) throw notYours(job);
}

/** A worker whose answer was lost, or who asked twice, gets the same lease, as long as it has not been used. */
async function findUnusedLease(db: Database, schema: Schema, job: SchedulerJob): Promise<Lease | undefined> {
  if (job.status !== 'RUNNING' || job.leaseId === null) return undefined;
  // The worker counts its time from this request, so the lease must last for it.
  const unused = await db.query(
    `update ${schema}.leases set expires_at = now() + ttl_seconds * interval '1 second'
      where id = $1 and kind = 'remote' and state = 'ACTIVE' and expires_at > now() and last_heartbeat_at = granted_at
      returning id`,
    [job.leaseId],
  );
  return unused.length > 0 ? findLease(db, schema, job.leaseId) : undefined;
}
