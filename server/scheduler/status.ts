// What a worker reports between its claim and its lease. States only go forward; QUEUED gives the
// claim back. Every report is fenced by the claim and keeps it alive.
import type { Database, Queryable } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import { insertEvents } from '../events/log/record.ts';
import { saveProgress } from '../jobs/attempt/progress.ts';
import { isHeld } from '../jobs/attempt/report.ts';
import { requeueClaims } from '../jobs/finish/recover.ts';
import { lockTargets } from '../jobs/lanes/lane.ts';
import { allows, become, guard, transitions } from '../jobs/model/states.ts';
import { problem } from '../kernel/errors.ts';
import { invalidFields } from '../kernel/parse.ts';
import { type JobState, type SchedulerJob, toPercent, toState } from './dialect.ts';
import { getSchedulerJob } from './read.ts';

export interface StatusReport {
  jobId: string;
  state: JobState;
  note?: string | undefined;
  /** 0 to 1. */
  progress?: number | undefined;
  /** Checked if given. */
  workerId?: string | undefined;
  /** The fence of a RUNNING job. Without it `workerId` has to be the owner of the lease. */
  leaseId?: string | undefined;
  claimSeconds: number;
}

const moves = { PREPARING: 'prepare', LEASE_PENDING: 'awaitLease' } as const;

export async function reportStatus(db: Database, schema: Schema, report: StatusReport): Promise<SchedulerJob> {
  const job = await getSchedulerJob(db, schema, report.jobId);
  if (report.workerId !== undefined && job.leaseOwner !== report.workerId) throw notYours(job);
  if (report.state === 'RUNNING' && job.status === 'RUNNING') await reportProgress(db, schema, job, report);
  else if (report.state === 'QUEUED' && allows('expireClaim', job.status)) await requeue(db, schema, job, report);
  else if (report.state === 'PREPARING' || report.state === 'LEASE_PENDING') {
    const same = job.status === report.state;
    if (!same && !allows(moves[report.state], job.status)) throw refused(job, report.state);
    const moved = await db.transaction((tx) => move(tx, schema, job, report, same));
    if (!moved) throw lost();
  } else throw refused(job, report.state);
  return getSchedulerJob(db, schema, report.jobId);
}

/** Fenced by the lease that is named, or by the one that the named worker holds now. */
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
  const saved = await saveProgress(db, schema, held, { percent, message }, `worker:${job.leaseOwner}`);
  if (!saved) throw lost();
}

async function move(
  tx: Queryable,
  schema: Schema,
  job: SchedulerJob,
  report: StatusReport,
  same: boolean,
): Promise<boolean> {
  if (!(await keepClaim(tx, schema, job, report.claimSeconds))) return false;
  const transition = moves[report.state as keyof typeof moves];
  // In percent, like the progress of every other event.
  const percent = report.progress === undefined ? undefined : toPercent(report.progress);
  const data = { note: report.note, progress: percent };
  const rows = await tx.query(
    `with before as (
       select id, status as before_status from ${schema}.jobs
        where id = $1 and lease_id = $2 and ${same ? `status = '${transitions[transition].to}'` : guard(transition)} for update),
     moved as (
       update ${schema}.jobs j set ${same ? '' : `${become(transition)},`} progress_message = coalesce($3, j.progress_message),
         progress = coalesce($6::real, j.progress), updated_at = now()
         from before b where j.id = b.id
       returning j.id, j.target_id, j.attempt, j.lease_id, b.before_status),
     told as (${insertEvents(schema, {
       source: 'moved',
       type: `'${transitions[transition].event}'`,
       actor: '$4',
       from: 'before_status',
       to: `'${transitions[transition].to}'`,
       data: '$5::jsonb',
     })})
     select id from moved`,
    [job.id, job.leaseId, report.note ?? null, `worker:${job.leaseOwner}`, JSON.stringify(data), percent ?? null],
  );
  return rows.length > 0;
}

/** A worker that still reports is alive: its claim lasts on. False: it ran out, or was never there. */
export async function keepClaim(
  tx: Queryable,
  schema: Schema,
  job: Pick<SchedulerJob, 'leaseId'>,
  claimSeconds: number,
): Promise<boolean> {
  const rows = await tx.query(
    `with claim as (
       select id, greatest(expires_at, now() + $2::float8 * interval '1 second') as until from ${schema}.leases
        where id = $1 and kind = 'claim' and state = 'ACTIVE' and expires_at > now() for update)
     update ${schema}.leases l set expires_at = c.until from claim c where l.id = c.id returning l.id`,
    [job.leaseId, claimSeconds],
  );
  return rows.length > 0;
}

async function requeue(db: Database, schema: Schema, job: SchedulerJob, report: StatusReport): Promise<void> {
  const { leaseId, leaseOwner } = job;
  if (leaseId === null || leaseOwner === null) throw lost();
  const given = await db.transaction(async (tx) => {
    await lockTargets(tx, schema, job.targetId === null ? [] : [job.targetId]);
    const reason = report.note ?? 'the worker gave it back';
    const lease = { id: leaseId, owner: leaseOwner };
    return requeueClaims(tx, schema, lease, [job], `worker:${leaseOwner}`, reason);
  });
  if (given.jobs === 0) throw lost();
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
