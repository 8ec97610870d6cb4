// Reports of a remote worker between its claim and its lease. States only move forward; QUEUED releases the claim.
// Every report is fenced by the claim and extends it.
import type { Database, Queryable } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import { statement, statementVariants, tenant } from '../database/sql.ts';
import { insertEvents } from '../events/log/record.ts';
import { saveReport } from '../jobs/attempt/report.ts';
import { isHeld } from '../jobs/claim/lease.ts';
import { requeueClaims } from '../jobs/finish/recover.ts';
import { allows } from '../jobs/model/states.ts';
import { applyTransition, transition } from '../jobs/transition.ts';
import { problem } from '../kernel/errors.ts';
import { invalidFields } from '../kernel/fields.ts';
import { type JobState, type SchedulerJob, toPercent, toState } from './api-names.ts';
import { getSchedulerJob } from './worker-jobs.ts';

export interface StatusReport {
  jobId: string;
  state: JobState;
  note?: string | undefined;
  /** 0 to 1. */
  progress?: number | undefined;
  /** Checked if given. */
  workerId?: string | undefined;
  /** The fence of a RUNNING job. Without it, `workerId` must be the owner of the lease. */
  leaseId?: string | undefined;
  claimSeconds: number;
}

const transitionTo = { PREPARING: 'prepare', LEASE_PENDING: 'awaitLease' } as const;

export async function reportStatus(db: Database, schema: Schema, report: StatusReport): Promise<SchedulerJob> {
  const job = await getSchedulerJob(db, schema, report.jobId);
  if (report.workerId !== undefined && job.leaseOwner !== report.workerId) throw notYours(job);
  if (report.state === 'RUNNING' && job.status === 'RUNNING') await reportProgress(db, schema, job, report);
  else if (report.state === 'QUEUED' && allows('expireClaim', job.status)) await requeue(db, schema, job, report);
  else if (report.state === 'PREPARING' || report.state === 'LEASE_PENDING') {
    const name = transitionTo[report.state];
    if (job.status !== report.state && !allows(name, job.status)) throw refused(job, report.state);
    const saved = await db.transaction((tx) => saveClaimReport(tx, schema, job, report, name), { keepsPlans: true });
    if (!saved) throw lost();
  } else throw refused(job, report.state);
  return getSchedulerJob(db, schema, report.jobId);
}

/** Fences the report by its lease, or by the lease that the named worker holds now. */
async function reportProgress(db: Database, schema: Schema, job: SchedulerJob, report: StatusReport): Promise<void> {
  const leaseId = report.leaseId ?? (report.workerId === undefined ? undefined : job.leaseId);
  if (leaseId === undefined || leaseId === null) {
    const message = 'is needed, or worker_id, to report on a job that is RUNNING';
    throw invalidFields([{ field: 'lease_id', message }]);
  }
  const held = { jobId: job.id, leaseId };
  if (report.progress === undefined && report.note === undefined) {
    if (!(await isHeld(db, schema, held))) throw lost();
    return;
  }
  const percent = report.progress === undefined ? (job.progress ?? 0) : toPercent(report.progress);
  const message = report.note ?? job.progressMessage ?? undefined;
  const saved = await saveReport(db, schema, held, { progress: { percent, message } }, `worker:${job.leaseOwner}`);
  if (!saved) throw lost();
}

/** Returns false if the claim expired, or no longer owns the job. */
async function saveClaimReport(
  tx: Queryable,
  schema: Schema,
  job: SchedulerJob,
  report: StatusReport,
  name: 'prepare' | 'awaitLease',
): Promise<boolean> {
  const { leaseId } = job;
  if (leaseId === null || !(await extendClaim(tx, schema, job, report.claimSeconds))) return false;
  if (job.status === transition(name).to) return repeatReport(tx, schema, job, report, name);
  const { note, percent } = contentOf(report);
  const ids = await applyTransition(tx, schema, {
    name,
    jobs: [job],
    leaseId,
    set: `progress_message = coalesce(:note::text, j.progress_message),
              progress = coalesce(:percent::real, j.progress)`,
    values: { note: note ?? null, percent: percent ?? null },
    actor: `worker:${job.leaseOwner}`,
    data: { note, progress: percent },
  });
  return ids.length > 0;
}

/** A report of the current state: no transition, but its note and progress are saved and recorded. */
const repeatedReport = statementVariants<{ event: string }>(
  ({ event }) => `
  with saved as (
    update ${tenant}.jobs j
       set progress_message = coalesce(:note, j.progress_message),
           progress = coalesce(:percent::real, j.progress),
           updated_at = now()
     where j.id = :jobId
       and j.lease_id = :leaseId
       and j.status = :status
    returning j.id, j.target_id, j.attempt, j.lease_id, j.status),
  recorded as (${insertEvents(tenant, {
    source: 'saved',
    type: `'${event}'`,
    actor: ':actor',
    from: 'status',
    to: 'status',
    data: ':data::jsonb',
  })})
  select id from saved`,
);

async function repeatReport(
  tx: Queryable,
  schema: Schema,
  job: SchedulerJob,
  report: StatusReport,
  name: 'prepare' | 'awaitLease',
): Promise<boolean> {
  const { to, event } = transition(name);
  const { note, percent } = contentOf(report);
  const rows = await repeatedReport({ event }).query(tx, schema, {
    jobId: job.id,
    leaseId: job.leaseId,
    status: to,
    note: note ?? null,
    percent: percent ?? null,
    actor: `worker:${job.leaseOwner}`,
    data: JSON.stringify({ note, progress: percent }),
  });
  return rows.length > 0;
}

/** Progress in percent, as in every other event. */
function contentOf({ note, progress }: StatusReport): { note: string | undefined; percent: number | undefined } {
  return { note, percent: progress === undefined ? undefined : toPercent(progress) };
}

const extendStatement = statement(`
  with claim as (
    select id, greatest(expires_at, now() + :claimSeconds::float8 * interval '1 second') as until
      from ${tenant}.leases
     where id = :leaseId
       and kind = 'claim'
       and state = 'ACTIVE'
       and expires_at > now()
       for update
  )
  update ${tenant}.leases l
     set expires_at = c.until
    from claim c
   where l.id = c.id
  returning l.id`);

/** A worker that reports is alive, so its claim is extended. Returns false if the claim expired, or there was none. */
export async function extendClaim(
  tx: Queryable,
  schema: Schema,
  job: Pick<SchedulerJob, 'leaseId'>,
  claimSeconds: number,
): Promise<boolean> {
  const rows = await extendStatement.query(tx, schema, { leaseId: job.leaseId, claimSeconds });
  return rows.length > 0;
}

async function requeue(db: Database, schema: Schema, job: SchedulerJob, report: StatusReport): Promise<void> {
  const { leaseId, leaseOwner } = job;
  if (leaseId === null || leaseOwner === null) throw lost();
  const lease = { id: leaseId, owner: leaseOwner };
  const reason = report.note ?? 'the worker released its claim';
  const requeued = await db.transaction((tx) =>
    requeueClaims(tx, schema, lease, [job], `worker:${leaseOwner}`, reason),
  );
  if (requeued === 0) throw lost();
}

export function lost() {
  return problem('LEASE_LOST', 'The claim or lease is no longer held: it expired, or the job was stopped.');
}

export function notYours(job: SchedulerJob) {
  return problem('CONFLICT', `The job is not claimed by this worker; it is ${toState(job)}.`, { state: toState(job) });
}

function refused(job: SchedulerJob, state: JobState) {
  return problem('INVALID_TRANSITION', `A job that is ${toState(job)} cannot become ${state}.`, {
    state: toState(job),
    job_status: job.status,
  });
}
