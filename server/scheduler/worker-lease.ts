// The leases of remote workers, and the heartbeat that renews them. Rows stay after the end of a lease, as a record of
// who held which job and how it ended. A worker acts only on its own leases; a reader of jobs may read every lease.
import type { Database, Queryable } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import { statement, tenant } from '../database/sql.ts';
import { readSpentDay, saveReport } from '../jobs/attempt/report.ts';
import { type BudgetRules, findSpent, type Spent, type Units, usageScopes } from '../jobs/model/job-budget.ts';
import { problem } from '../kernel/errors.ts';
import {
  type FinalStatus,
  type KeptAnswer,
  type Lease,
  type LeaseState,
  type SchedulerJob,
  toPercent,
} from './api-names.ts';
import { getSchedulerJob } from './worker-jobs.ts';

interface LeaseRow {
  id: string;
  kind: 'local' | 'remote';
  job_ids: string[];
  queue: string | null;
  owner: string;
  cost_units: number;
  ttl_seconds: number;
  state: LeaseState;
  granted_at: string;
  last_heartbeat_at: string;
  expires_at: string;
  released_at: string | null;
  release_status: FinalStatus | null;
  metrics: unknown;
  release_answer: KeptAnswer | null;
  overdue: boolean;
}

/** By their names: the answer of a prepared statement must not change when a column is added. */
const leaseColumns = `l.id, l.kind, l.job_ids, l.queue, l.owner, l.cost_units, l.ttl_seconds, l.state, l.granted_at,
         l.last_heartbeat_at, l.expires_at, l.released_at, l.release_status, l.metrics, l.release_answer`;

const findStatement = statement(`
  select ${leaseColumns}, l.expires_at <= now() as overdue
    from ${tenant}.leases l
   where l.id = :id
     and l.kind = 'remote'`);

export async function findLease(db: Queryable, schema: Schema, id: string): Promise<Lease | undefined> {
  const [row] = await findStatement.query<LeaseRow>(db, schema, { id }, 'keepPlan');
  return row && toLease(row);
}

export async function getLease(db: Queryable, schema: Schema, id: string): Promise<Lease> {
  const lease = await findLease(db, schema, id);
  if (!lease) throw noSuchLease();
  return lease;
}

const readStatement = statement(`
  select l.*, l.expires_at <= now() as overdue, coalesce(l.queue, j.queue) as queue,
         case l.kind when 'local' then coalesce(j.cost_units, 0) else l.cost_units end as cost_units
    from ${tenant}.leases l
    left join lateral (
      select case when min(queue) = max(queue) then min(queue) end as queue, sum(cost_units)::int as cost_units
        from ${tenant}.jobs
       where l.kind = 'local'
         and id = any(l.job_ids)
    ) j on true
   where l.id = :id
     and l.kind in ('local', 'remote')
     and l.job_ids <> '{}'`);

/**
 * Reads any lease. A lease of a daemon may have several jobs; its queue and cost are those of its jobs, as long as they
 * exist.
 */
export async function readLease(db: Queryable, schema: Schema, id: string): Promise<Lease> {
  const [row] = await readStatement.query<LeaseRow>(db, schema, { id });
  if (!row) throw noSuchLease();
  return toLease(row);
}

const insertStatement = statement(`
  insert into ${tenant}.leases as l
    (id, kind, owner, job_ids, queue, cost_units, ttl_seconds, granted_at, last_heartbeat_at, expires_at)
  select :leaseId::uuid, 'remote', :owner, array[:jobId::uuid], :queue, :costUnits::int, :ttlSeconds::real,
         now(), now(), now() + :ttlSeconds::float8 * interval '1 second'
  returning ${leaseColumns}, false as overdue`);

/** Inserts the lease of a job that was granted one. */
export async function insertRemoteLease(
  tx: Queryable,
  schema: Schema,
  { leaseId, job, costUnits, ttlSeconds }: NewLease,
): Promise<Lease> {
  const [row] = await insertStatement.query<LeaseRow>(tx, schema, {
    leaseId,
    owner: job.leaseOwner,
    jobId: job.id,
    queue: job.queue,
    costUnits,
    ttlSeconds,
  });
  return toLease(row as LeaseRow);
}

interface NewLease {
  leaseId: string;
  job: Pick<SchedulerJob, 'id' | 'leaseOwner' | 'queue'>;
  costUnits: number;
  ttlSeconds: number;
}

export interface LeaseHolder {
  leaseId: string;
  jobId: string;
  workerId: string;
}

/** Returns the lease if this worker holds or held it for this job. Throws NOT_FOUND otherwise. */
export async function getOwnLease(db: Queryable, schema: Schema, holder: LeaseHolder): Promise<Lease> {
  const lease = await getLease(db, schema, holder.leaseId);
  if (lease.owner !== holder.workerId || lease.jobId !== holder.jobId) throw noSuchLease();
  return lease;
}

export function noSuchLease() {
  return problem('NOT_FOUND', 'There is no such lease of this worker and job.');
}

export function leaseOver(lease: Pick<Lease, 'state'>) {
  const state = lease.state === 'ACTIVE' ? 'EXPIRED' : lease.state;
  return problem('LEASE_LOST', `The lease is ${state}.`, { lease_state: state });
}

function toLease(row: LeaseRow): Lease {
  return {
    id: row.id,
    kind: row.kind,
    jobId: row.job_ids[0] ?? '',
    jobIds: row.job_ids,
    queue: row.queue,
    owner: row.owner,
    costUnits: row.cost_units,
    ttlSeconds: row.ttl_seconds,
    state: row.state,
    grantedAt: row.granted_at,
    lastHeartbeatAt: row.last_heartbeat_at,
    expiresAt: row.expires_at,
    releasedAt: row.released_at,
    releaseStatus: row.release_status,
    metrics: row.metrics,
    releaseAnswer: row.release_answer,
    overdue: row.overdue,
  };
}

export interface Heartbeat extends LeaseHolder {
  /** 0 to 1. */
  progress?: number | undefined;
  message?: string | undefined;
  /** The total over all attempts. */
  tokensUsed?: number | undefined;
  /** The totals of other units. */
  usage?: Units | undefined;
  rules: BudgetRules;
}

export async function heartbeat(
  db: Database,
  schema: Schema,
  beat: Heartbeat,
): Promise<{ lease: Lease; job: SchedulerJob; spent: Spent | undefined }> {
  const lease = await getOwnLease(db, schema, beat);
  if (lease.state !== 'ACTIVE' || lease.overdue) throw leaseOver(lease);
  return db.transaction(
    async (tx) => {
      if (!(await renew(tx, schema, beat, lease.ttlSeconds))) throw leaseOver(await getLease(tx, schema, beat.leaseId));
      await keepReport(tx, schema, beat);
      const job = await getSchedulerJob(tx, schema, beat.jobId);
      const spent =
        findSpent(job, { ...job.usage, tokens: job.tokensUsed }, beat.rules) ??
        (await readSpentDay(tx, schema, job, beat.rules.budgets));
      return { lease: await getLease(tx, schema, beat.leaseId), job: spent ? askedToStop(job) : job, spent };
    },
    { keepsPlans: true },
  );
}

const renewStatement = statement(`
  update ${tenant}.leases l
     set expires_at = now() + :ttlSeconds::float8 * interval '1 second',
         last_heartbeat_at = now()
   where l.id = :leaseId
     and l.kind = 'remote'
     and l.owner = :workerId
     and l.state = 'ACTIVE'
     and l.expires_at > now()
     and exists (
           select 1
             from ${tenant}.jobs j
            where j.id = :jobId
              and j.lease_id = :leaseId
              and j.status = 'RUNNING')
  returning l.id`);

/** An expired lease is never renewed, even if no sweeper has ended it yet. */
async function renew(tx: Queryable, schema: Schema, beat: LeaseHolder, ttlSeconds: number): Promise<boolean> {
  const { leaseId, workerId, jobId } = beat;
  const rows = await renewStatement.query(tx, schema, { leaseId, workerId, jobId, ttlSeconds });
  return rows.length > 0;
}

/** Writes and records only new values, because most heartbeats repeat the one before. */
async function keepReport(tx: Queryable, schema: Schema, beat: Heartbeat): Promise<void> {
  const { usage = {}, tokensUsed } = beat;
  if (beat.progress === undefined && beat.message === undefined && tokensUsed === undefined && !hasUnits(usage))
    return undefined;
  const job = await getSchedulerJob(tx, schema, beat.jobId);
  const percent = beat.progress === undefined ? (job.progress ?? 0) : toPercent(beat.progress);
  const message = beat.message ?? job.progressMessage ?? undefined;
  const moved = Math.fround(percent) !== job.progress || message !== (job.progressMessage ?? undefined);
  const more: Units = {};
  for (const [unit, amount] of Object.entries(usage)) if (amount > (job.usage?.[unit] ?? 0)) more[unit] = amount;
  if (tokensUsed !== undefined && tokensUsed > job.tokensUsed) more.tokens = tokensUsed;
  if (!moved && !hasUnits(more)) return;
  const report = {
    ...(moved && { progress: { percent, message } }),
    ...(hasUnits(more) && { usage: more, scopes: usageScopes(job, beat.rules.budgets ?? {}) }),
  };
  await saveReport(tx, schema, beat, report, `worker:${beat.workerId}`);
}

function hasUnits(units: Units): boolean {
  return Object.keys(units).length > 0;
}

/** A job above its budget must stop, even without a stop request; its release then fails it. */
function askedToStop(job: SchedulerJob): SchedulerJob {
  return job.cancelRequested ? job : { ...job, cancelRequested: true, cancelIntent: 'cancel' };
}
