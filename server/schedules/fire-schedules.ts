// Fires due schedules: one transaction locks a schedule, enqueues its jobs and sets its next time, so that every time
// is fired once, however many daemons run.

import { readLiveDaemons } from '../daemon-registry/live-daemons.ts';
import type { Database, Queryable } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import { statement, tenant } from '../database/sql.ts';
import { retryConflicts } from '../database/sql-errors.ts';
import { recordEvent } from '../events/log/record.ts';
import type { CommitSignals } from '../jobs/commit-signals.ts';
import { type Enqueued, enqueueIn, type NewJob } from '../jobs/enqueue/enqueue.ts';
import type { QueueLimit } from '../jobs/enqueue/enqueue-limits.ts';
import { toNewJob } from '../jobs/enqueue/job-request.ts';
import type { JobTypes } from '../jobs/enqueue/job-types.ts';
import { Problem } from '../kernel/errors.ts';
import { newId } from '../kernel/ids.ts';
import type { Tenant } from '../tenants/tenant.ts';
import { dueTimes } from './cron.ts';
import { actorOf, getSchedule, lockSchedule, type Schedule, scheduleColumns } from './schedule.ts';

export interface Firing {
  db: Database;
  jobTypes: JobTypes;
  queueLimit: QueueLimit;
  signals?: Pick<CommitSignals, 'jobsWritten'>;
  /** Firing one schedule failed; the others are fired. */
  onError?(tenant: Tenant, scheduleId: string, error: unknown): void;
}

/** Fires due schedules. Returns the number of enqueued jobs. */
export async function fireDueSchedules(firing: Firing, tenant: Tenant): Promise<number> {
  const failed: string[] = [];
  let jobs = 0;
  for (;;) {
    let picked: string | undefined;
    try {
      const enqueued = await retryConflicts(() =>
        firing.db.forTenant(tenant.schema).transaction(async (tx) => {
          const due = await pickDue(tx, tenant.schema, failed);
          picked = due?.id;
          return due && fire(tx, firing, tenant, due);
        }),
      );
      if (enqueued === undefined) return jobs;
      jobs += enqueued.length;
      firing.signals?.jobsWritten(tenant, enqueued);
    } catch (error) {
      if (picked === undefined) throw error;
      failed.push(picked);
      firing.onError?.(tenant, picked, error);
    }
  }
}

interface DueSchedule extends Schedule {
  now: string;
}

const pickStatement = statement(`
  select ${scheduleColumns}, now() as now
    from ${tenant}.schedules
   where paused_at is null
     and next_at <= now()
     and id <> all(:failedIds::uuid[])
   order by next_at
   limit 1
     for update skip locked`);

async function pickDue(tx: Queryable, schema: Schema, failed: string[]): Promise<DueSchedule | undefined> {
  const rows = await pickStatement.query<DueSchedule>(tx, schema, { failedIds: failed });
  return rows[0];
}

const advanceStatement = statement(`
  update ${tenant}.schedules
     set next_at = :nextAt,
         last_fired_at = coalesce(:firedAt::timestamptz, last_fired_at),
         last_job_id = coalesce(:jobId::uuid, last_job_id),
         updated_at = now()
   where id = :id`);

async function fire(tx: Queryable, firing: Firing, tenant: Tenant, schedule: DueSchedule): Promise<Enqueued[]> {
  const { schema } = tenant;
  const { fire: times, dropped, nextAt } = dueTimes(schedule, schedule.now);
  const keys = times.map((time) => `schedule:${schedule.id}:${time}`);
  const enqueued = await enqueueRuns(tx, firing, tenant, schedule, keys);
  await advanceStatement.query(tx, schema, {
    id: schedule.id,
    nextAt,
    firedAt: times.at(-1) ?? null,
    jobId: enqueued.at(-1)?.job.id ?? null,
  });
  for (const [index, { job }] of enqueued.entries()) {
    await recordEvent(tx, schema, {
      type: 'schedule.fired',
      actor: actorOf(schedule),
      jobId: job.id,
      targetId: job.targetId ?? undefined,
      data: { schedule_id: schedule.id, name: schedule.name, for: times[index] },
    });
  }
  if (dropped > 0) {
    const data = { schedule_id: schedule.id, name: schedule.name, missed: dropped, policy: schedule.missed };
    await recordEvent(tx, schema, { type: 'schedule.missed', actor: actorOf(schedule), data });
  }
  return enqueued;
}

/**
 * If the job is refused, because its type or schema changed or the queue is full, records the reason and enqueues
 * nothing.
 */
async function enqueueRuns(
  tx: Queryable,
  firing: Firing,
  tenant: Tenant,
  schedule: Schedule,
  keys: string[],
): Promise<Enqueued[]> {
  if (keys.length === 0) return [];
  let newJobs: NewJob[];
  try {
    const newJob = await toScheduledJob(tx, firing, tenant, schedule);
    newJobs = keys.map((clientRequestId) => ({ ...newJob, clientRequestId }));
    await firing.queueLimit.admit(tenant, newJobs, tx);
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    const data = { schedule_id: schedule.id, name: schedule.name, code: error.code, message: error.message };
    await recordEvent(tx, tenant.schema, { type: 'schedule.failed', actor: actorOf(schedule), data });
    return [];
  }
  return enqueueIn(tx, tenant.schema, newJobs, actorOf(schedule));
}

async function toScheduledJob(
  tx: Queryable,
  { db, jobTypes }: Firing,
  tenant: Tenant,
  schedule: Schedule,
): Promise<NewJob> {
  // In a cluster the transaction is on the tenant's node, and the coordinator has the daemons.
  const liveDaemons = () => readLiveDaemons(db.sharded ? db : tx);
  const newJob = await toNewJob(schedule.job, { tenant, jobTypes, liveDaemons });
  return { ...newJob, scheduleId: schedule.id, author: newJob.author ?? schedule.author ?? undefined };
}

const firedStatement = statement(`
  update ${tenant}.schedules
     set last_fired_at = now(),
         last_job_id = :jobId,
         updated_at = now()
   where id = :scheduleId`);

/** Enqueues its job once now, in addition to its times. */
export async function runScheduleNow(
  firing: Firing,
  tenant: Tenant,
  id: string,
  actor: string,
): Promise<{ schedule: Schedule; enqueued: Enqueued }> {
  const result = await firing.db.forTenant(tenant.schema).transaction(async (tx) => {
    const schedule = await lockSchedule(tx, tenant.schema, id);
    const newJob = await toScheduledJob(tx, firing, tenant, schedule);
    const clientRequestId = `schedule:${id}:now:${newId()}`;
    await firing.queueLimit.admit(tenant, [newJob], tx);
    const [enqueued] = await enqueueIn(tx, tenant.schema, [{ ...newJob, clientRequestId }], actor);
    if (enqueued === undefined) throw new Error('nothing was enqueued');
    await firedStatement.query(tx, tenant.schema, { scheduleId: id, jobId: enqueued.job.id });
    await recordEvent(tx, tenant.schema, {
      type: 'schedule.fired',
      actor,
      jobId: enqueued.job.id,
      targetId: enqueued.job.targetId ?? undefined,
      data: { schedule_id: id, name: schedule.name, by_hand: true },
    });
    return { schedule: await getSchedule(tx, tenant.schema, id), enqueued };
  });
  firing.signals?.jobsWritten(tenant, [result.enqueued]);
  return result;
}
