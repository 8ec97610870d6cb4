// /api/schedules: cron schedules that enqueue jobs.

import { z } from 'zod';
import { readLiveDaemons } from '../../daemon-registry/live-daemons.ts';
import type { Database } from '../../database/database.ts';
import type { CommitSignals } from '../../jobs/commit-signals.ts';
import type { QueueLimit } from '../../jobs/enqueue/enqueue-limits.ts';
import { jobRequest, toNewJob } from '../../jobs/enqueue/job-request.ts';
import type { JobTypes } from '../../jobs/enqueue/job-types.ts';
import { Pace } from '../../kernel/clock.ts';
import { Problem } from '../../kernel/errors.ts';
import { invalidFields, nameField } from '../../kernel/fields.ts';
import {
  createSchedule,
  deleteSchedule,
  pauseSchedule,
  resumeSchedule,
  updateSchedule,
} from '../../schedules/change-schedule.ts';
import { findCronError, nextTimes } from '../../schedules/cron.ts';
import { runScheduleNow } from '../../schedules/fire-schedules.ts';
import {
  databaseNow,
  getSchedule,
  listSchedules,
  missedPolicies,
  type Schedule,
  type ScheduledJob,
} from '../../schedules/schedule.ts';
import type { Tenant } from '../../tenants/tenant.ts';
import { paged, pageQuery, pageSchema } from '../request/paging.ts';
import { RouteGroup, reply } from '../route.ts';
import { toApi } from '../to-api.ts';
import { jobSchema, jobToApi } from './jobs/job-schema.ts';

export interface ScheduleDependencies {
  db: Database;
  jobTypes: JobTypes;
  queueLimit: QueueLimit;
  /** A schedule has changed and its next time may be near. */
  onChange?(tenant: Tenant): void;
  signals: CommitSignals;
}

const time = z.iso.datetime({ offset: true });
const cron = z.string().min(1).max(200).describe('Five fields, or six with seconds in front, e.g. `0 8 * * MON-FRI`.');
const timezone = z
  .string()
  .min(1)
  .max(100)
  .describe('e.g. `Europe/Berlin`; daylight saving time is taken into account.');
const missed = z
  .enum(missedPolicies)
  .describe('Which times to make up for after no daemon was running: none, the latest one, or all (at most 100).');

/** The enqueue request of each firing. The schedule sets its time and idempotency key. */
const scheduledJob = jobRequest
  .omit({ run_at: true, client_request_id: true, after: true })
  .meta({ id: 'ScheduledJob' });

const previewBody = z.strictObject({ cron, timezone: timezone.default('UTC') });

const createScheduleBody = z.strictObject({
  name: nameField(),
  cron,
  timezone: timezone.default('UTC'),
  job: scheduledJob,
  missed: missed.default('latest'),
  author: nameField().optional(),
});

const updateScheduleBody = z.strictObject({
  name: nameField().optional(),
  cron: cron.optional(),
  timezone: timezone.optional(),
  job: scheduledJob.optional(),
  missed: missed.optional(),
});

const scheduleSchema = z
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

/** The number of next times that are shown. */
const shownRuns = 5;

const params = z.strictObject({ id: z.string().max(100) });
const answers = { 200: scheduleSchema };

export function scheduleRoutes(deps: ScheduleDependencies): RouteGroup {
  const group = new RouteGroup('Schedules');
  addReads(group);
  addChanges(group, deps);
  addActions(group, deps);
  return group;
}

function addReads(group: RouteGroup): void {
  group.route({
    method: 'get',
    path: '/api/schedules',
    summary: 'List schedules by name',
    access: 'read',
    query: z.strictObject(pageQuery()),
    answers: { 200: pageSchema('schedules', scheduleSchema) },
    problems: ['INVALID_CURSOR'],
    handle: async ({ tenant, db, query }) => {
      const list = { name: `schedules:${tenant.id}`, position: ['text'] } as const;
      const page = await paged(list, query, async ([after = ''], limit) => {
        const { schedules, next } = await listSchedules(db, tenant.schema, { after, limit });
        return { rows: schedules, next: next === undefined ? undefined : [next] };
      });
      const now = await databaseNow(db);
      const pace = new Pace();
      const schedules: ReturnType<typeof scheduleToApi>[] = [];
      // Computing the next times of a schedule takes milliseconds.
      for (const schedule of page.rows) {
        schedules.push(scheduleToApi(schedule, now));
        await pace.pause();
      }
      return { schedules, next_cursor: page.next_cursor };
    },
  });
  group.route({
    method: 'get',
    path: '/api/schedules/{id}',
    summary: 'Read a schedule and its next five runs',
    access: 'read',
    params,
    answers,
    problems: ['NOT_FOUND'],
    handle: async ({ tenant, db, params: { id } }) => show(db, await getSchedule(db, tenant.schema, id)),
  });
  group.route({
    method: 'post',
    path: '/api/schedules/preview',
    summary: 'Show the next five times of a cron expression',
    access: 'read',
    body: previewBody,
    answers: { 200: z.strictObject({ next_runs: z.array(z.iso.datetime({ offset: true })) }) },
    handle: async ({ db, body: { cron, timezone } }) => {
      const error = findCronError(cron, timezone);
      if (error) throw invalidFields([error]);
      return { next_runs: nextTimes(cron, timezone, await databaseNow(db), shownRuns) };
    },
  });
}

function addChanges(group: RouteGroup, deps: ScheduleDependencies): void {
  group.route({
    method: 'post',
    path: '/api/schedules',
    summary: 'Create a schedule',
    description: 'Each of its times enqueues its job exactly once, however many daemons run.',
    access: 'enqueue',
    body: createScheduleBody,
    answers: { 201: scheduleSchema },
    problems: ['ALREADY_EXISTS', 'UNKNOWN_JOB_TYPE', 'TENANT_SUSPENDED'],
    handle: async ({ tenant, db, body, actor }) => {
      await checkJob(deps, tenant, body.job);
      const schedule = await createSchedule(db, tenant.schema, body, actor);
      deps.onChange?.(tenant);
      return reply(201, await show(db, schedule), { Location: `/api/schedules/${schedule.id}` });
    },
  });
  group.route({
    method: 'patch',
    path: '/api/schedules/{id}',
    summary: 'Change a schedule',
    access: 'enqueue',
    params,
    body: updateScheduleBody,
    answers,
    problems: ['NOT_FOUND', 'ALREADY_EXISTS', 'UNKNOWN_JOB_TYPE', 'TENANT_SUSPENDED'],
    handle: async ({ tenant, db, params: { id }, body, actor }) => {
      if (body.job !== undefined) await checkJob(deps, tenant, body.job);
      const schedule = await updateSchedule(db, tenant.schema, id, body, actor);
      deps.onChange?.(tenant);
      return show(db, schedule);
    },
  });
  group.route({
    method: 'delete',
    path: '/api/schedules/{id}',
    summary: 'Delete a schedule; its jobs are kept',
    access: 'enqueue',
    params,
    answers: { 204: null },
    problems: ['NOT_FOUND'],
    handle: async ({ tenant, db, params: { id }, actor }) => {
      await deleteSchedule(db, tenant.schema, id, actor);
      return reply(204);
    },
  });
}

function addActions(group: RouteGroup, deps: ScheduleDependencies): void {
  for (const [verb, act, summary] of [
    ['pause', pauseSchedule, 'Pause a schedule'],
    ['resume', resumeSchedule, 'Resume a schedule; it continues with its next time from now'],
  ] as const) {
    group.route({
      method: 'post',
      path: `/api/schedules/{id}/${verb}`,
      summary,
      access: 'control',
      params,
      answers,
      problems: ['NOT_FOUND'],
      handle: async ({ tenant, db, params: { id }, actor }) => {
        const schedule = await act(db, tenant.schema, id, actor);
        deps.onChange?.(tenant);
        return show(db, schedule);
      },
    });
  }
  group.route({
    method: 'post',
    path: '/api/schedules/{id}/run',
    summary: 'Enqueue its job now, in addition to its times',
    access: 'enqueue',
    params,
    answers: { 201: z.strictObject({ schedule: scheduleSchema, job: jobSchema }) },
    problems: ['NOT_FOUND', 'UNKNOWN_JOB_TYPE', 'TENANT_SUSPENDED', 'QUEUE_FULL'],
    handle: async ({ tenant, db, params: { id }, actor }) => {
      const { schedule, enqueued } = await runScheduleNow(deps, tenant, id, actor);
      return reply(201, { schedule: await show(db, schedule), job: jobToApi(enqueued.job, { phases: [] }) });
    },
  });
}

function scheduleToApi(schedule: Schedule, now: string): z.input<typeof scheduleSchema> {
  const paused = schedule.pausedAt !== null;
  return toApi(scheduleSchema, schedule, {
    paused,
    next_at: paused ? null : schedule.nextAt,
    next_runs: nextTimes(schedule.cron, schedule.timezone, now, shownRuns),
  });
}

async function show(db: Database, schedule: Schedule) {
  return scheduleToApi(schedule, await databaseNow(db));
}

/** Refuses a job that could never be enqueued. Fields are named as in the body of the request. */
async function checkJob({ db, jobTypes }: ScheduleDependencies, tenant: Tenant, job: ScheduledJob): Promise<void> {
  try {
    await toNewJob(job, { tenant, jobTypes, liveDaemons: () => readLiveDaemons(db) });
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    const { field, errors, ...rest } = error.extra as { field?: string; errors?: { field: string; message: string }[] };
    if (errors !== undefined) throw invalidFields(errors.map((e) => ({ ...e, field: `job.${e.field}` })));
    throw new Problem(error.code, error.message, { ...rest, ...(field !== undefined && { field: `job.${field}` }) });
  }
}
