// How schedules look over HTTP.
import { z } from 'zod';
import { jobRequest } from '../../jobs/enqueue/job-request.ts';
import { nameField } from '../../kernel/fields.ts';
import { nextTimes } from '../../schedules/cron.ts';
import { missedPolicies, type Schedule } from '../../schedules/schedule.ts';

const time = z.iso.datetime({ offset: true });
const cron = z.string().min(1).max(200).describe('Five fields, or six with seconds in front, e.g. `0 8 * * MON-FRI`.');
const timezone = z.string().min(1).max(100).describe('e.g. `Europe/Berlin`; clock changes are taken into account.');
const missed = z
  .enum(missedPolicies)
  .describe('What to do about runs that no daemon was there for: none, the latest one, or all (at most 100).');

/** The enqueue request of each firing. Times and idempotency are the schedule's business. */
const scheduledJob = jobRequest.omit({ run_at: true, client_request_id: true }).meta({ id: 'ScheduledJob' });

export const previewBody = z.strictObject({ cron, timezone: timezone.default('UTC') });

export const createScheduleBody = z.strictObject({
  name: nameField(),
  cron,
  timezone: timezone.default('UTC'),
  job: scheduledJob,
  missed: missed.default('latest'),
  author: nameField().optional(),
});

export const updateScheduleBody = z.strictObject({
  name: nameField().optional(),
  cron: cron.optional(),
  timezone: timezone.optional(),
  job: scheduledJob.optional(),
  missed: missed.optional(),
});

export const scheduleSchema = z
  .strictObject({
    id: z.string(),
    name: z.string(),
    cron: z.string(),
    timezone: z.string(),
    job: z.record(z.string(), z.unknown()),
    missed,
    paused: z.boolean(),
    paused_at: time.nullable(),
    paused_by: z.string().nullable(),
    next_at: time.nullable().describe('When it fires next; null while it is paused.'),
    next_runs: z.array(time).describe('The next five times, from now.'),
    last_fired_at: time.nullable(),
    last_job_id: z.string().nullable(),
    author: z.string().nullable(),
    created_at: time,
    updated_at: time,
  })
  .meta({ id: 'Schedule' });

/** How many coming times are shown. */
export const shownRuns = 5;

export function scheduleToApi(schedule: Schedule, now: string): z.input<typeof scheduleSchema> {
  const { id, name, cron, timezone, job, missed, pausedAt, nextAt } = schedule;
  return {
    id,
    name,
    cron,
    timezone,
    job,
    missed,
    paused: pausedAt !== null,
    paused_at: pausedAt,
    paused_by: schedule.pausedBy,
    next_at: pausedAt === null ? nextAt : null,
    next_runs: nextTimes(cron, timezone, now, shownRuns),
    last_fired_at: schedule.lastFiredAt,
    last_job_id: schedule.lastJobId,
    author: schedule.author,
    created_at: schedule.createdAt,
    updated_at: schedule.updatedAt,
  };
}
