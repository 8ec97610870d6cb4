// Reasons outside the lane: the tenant's state and limits, and the daemons or workers that could run the job.

import type { LiveDaemon } from '../daemon-registry/live-daemons.ts';
import type { Queryable } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import { statement, tenant } from '../database/sql.ts';
import { type Job, priorityRank } from '../jobs/model/job.ts';
import { type Capacity, type CapacityDemand, reservedAgainst } from '../scheduler/capacity.ts';
import type { Tenant } from '../tenants/tenant.ts';
import type { Reason, Release } from './reason.ts';

export interface WorkerView {
  tenant: Tenant;
  /** The daemons that are alive. */
  daemons: readonly LiveDaemon[];
  /** Slots of one daemon, for all tenants and for one. */
  workerConcurrency: number;
  tenantConcurrency: number;
  questionTimeoutSeconds: number;
  capacities: readonly Capacity[];
}

// A running remote worker claims more often than this.
const recentClaimMinutes = 5;

export async function workerReasons(db: Queryable, job: Job, view: WorkerView): Promise<Reason[]> {
  const { tenant } = view;
  const reasons: Reason[] = [];
  if (tenant.status !== 'ACTIVE') {
    const path = `/api/admin/tenants/${tenant.slug}/activate`;
    reasons.push({
      code: 'TENANT_SUSPENDED',
      detail: `The tenant is ${tenant.status}: nothing is claimed.`,
      release: {
        detail: 'The operator activates it.',
        at: null,
        actions: [{ action: 'activate', method: 'POST', path }],
      },
    });
  }
  const missing = job.remote
    ? await missingWorker(db, tenant.schema, job)
    : await missingDaemon(db, tenant.schema, job, view);
  if (missing !== undefined) reasons.push(missing);
  reasons.push(...capacityReasons(view.capacities, job));
  return reasons;
}

/** Returns the first that is missing: a live daemon, one that is not draining, one with the handler, a free slot. */
async function missingDaemon(db: Queryable, schema: Schema, job: Job, view: WorkerView): Promise<Reason | undefined> {
  if (view.daemons.length === 0) {
    return { code: 'NO_DAEMON', detail: 'No daemon is alive.', release: only('Start a daemon.') };
  }
  const accepting = view.daemons.filter((daemon) => !daemon.draining);
  if (accepting.length === 0) {
    return {
      code: 'DRAINING',
      detail: 'Every daemon is shutting down and takes no new jobs.',
      release: only('A daemon starts.'),
    };
  }
  const able = accepting.filter((daemon) => daemon.jobTypes.includes(job.type));
  if (able.length === 0) {
    return {
      code: 'NO_HANDLER',
      detail: `No daemon has a handler for the job type ${job.type}.`,
      release: only('Start a daemon whose HANDLERS define this type.'),
    };
  }
  const limit = Math.min(view.tenant.settings.concurrency ?? view.tenantConcurrency, view.tenantConcurrency);
  const running = await countRunning(db, schema);
  const owned = able.map((daemon) => running.get(daemon.id) ?? 0);
  if (owned.every((count) => count >= limit)) {
    const path = `/api/admin/tenants/${view.tenant.slug}`;
    return {
      code: 'TENANT_AT_LIMIT',
      detail: `The tenant runs ${owned.reduce((a, b) => a + b, 0)} jobs; its limit is ${limit} on each of ${able.length} daemon(s).`,
      release: {
        detail: 'A running job ends, or the operator raises the concurrency of the tenant.',
        at: null,
        actions: [{ action: 'raise concurrency', method: 'PATCH', path }],
      },
    };
  }
  // A process that runs no jobs, such as the command line, does not know how many jobs the daemons may run.
  const isKnown = view.workerConcurrency > 0;
  if (isKnown && able.every((daemon) => daemon.running >= view.workerConcurrency)) {
    return {
      code: 'DAEMONS_BUSY',
      detail: `All ${able.length} daemon(s) with a handler run as many jobs as they may (${view.workerConcurrency}).`,
      release: only('A running job ends, or a further daemon starts.'),
    };
  }
  return undefined;
}

const runningStatement = statement(`
  select l.owner, count(*)::int as count
    from ${tenant}.leases l
   cross join lateral unnest(l.job_ids) as held(job_id)
    join ${tenant}.jobs j on j.id = held.job_id and j.lease_id = l.id
   where l.state = 'ACTIVE'
     and l.kind = 'local'
     and j.status = 'RUNNING'
   group by l.owner`);

async function countRunning(db: Queryable, schema: Schema): Promise<Map<string, number>> {
  const rows = await runningStatement.query<{ owner: string; count: number }>(db, schema, {});
  return new Map(rows.map((row) => [row.owner, row.count]));
}

const seenStatement = statement(`
  select exists (
           select 1
             from ${tenant}.leases
            where state = 'ACTIVE'
              and kind <> 'local'
         )
         or exists (
           select 1
             from ${tenant}.leases
            where released_at > now() - :minutes * interval '1 minute'
              and kind <> 'local'
         ) as seen`);

async function missingWorker(db: Queryable, schema: Schema, job: Job): Promise<Reason | undefined> {
  const [row] = await seenStatement.query<{ seen: boolean }>(db, schema, { minutes: recentClaimMinutes });
  if (row?.seen === true) return undefined;
  return {
    code: 'NO_WORKER',
    detail: `The job needs a remote worker for ${job.type} in queue ${job.queue}; none has taken a job in the last ${recentClaimMinutes} minutes.`,
    release: only('A remote worker claims it.'),
  };
}

function capacityReasons(capacities: readonly Capacity[], job: Job): Reason[] {
  const { id: jobId, queue, costUnits } = job;
  const demand = { jobId, queue, costUnits, priorityRank: priorityRank(job.priority) };
  return capacities.filter((row) => isShort(row, demand)).map((row) => shortage(row, demand));
}

function isShort(row: Capacity, demand: CapacityDemand): boolean {
  if (row.queue !== '' && row.queue !== demand.queue) return false;
  return row.used + demand.costUnits + reservedAgainst(row, demand) > row.total;
}

function shortage(row: Capacity, demand: CapacityDemand): Reason {
  const whose = row.queue === '' ? 'The tenant' : `Queue ${row.queue}`;
  const kept = reservedAgainst(row, demand);
  const reserved = kept === 0 ? '' : `, ${kept} are kept for job ${row.reservation?.jobId}`;
  return {
    code: 'CAPACITY',
    detail: `${whose} has ${row.total} cost units, ${row.used} are in use${reserved}; the job needs ${demand.costUnits}.`,
    release: only(
      demand.costUnits > row.total
        ? 'The operator raises the capacity.'
        : 'Running jobs end, or the capacity is raised.',
    ),
  };
}

function only(detail: string): Release {
  return { detail, at: null, actions: [] };
}
