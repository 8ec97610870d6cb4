// /api/attention: what needs a person now, in one answer.
import { z } from 'zod';
import type { Database } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import {
  countHolds,
  maxCounted,
  readDisabledAddresses,
  readFailedSchedules,
  readFailingTypes,
  readHolds,
  readWaitingBehind,
} from '../../stats/attention.ts';
import { RouteGroup } from '../route.ts';
import { jobErrorSchema, jobSummarySchema, jobSummaryToApi } from './job-schema.ts';

const time = z.iso.datetime({ offset: true });

const holdsSchema = z.strictObject({
  paused: z.int().describe(`Jobs that are PAUSED; ${maxCounted + 1} when there are more than ${maxCounted}.`),
  error: z.int().describe('Jobs in ERROR, counted the same way.'),
  newest: z.array(
    z.strictObject({
      job: jobSummarySchema.describe('Its error has the stack.'),
      waiting: z.int().describe('Jobs in line behind it; 1001 when there are more than 1000.'),
      oldest_waiting_at: time.nullable(),
    }),
  ),
});

const attentionSchema = z
  .strictObject({
    holds: holdsSchema,
    failing_types: z.array(
      z.strictObject({
        type: z.string(),
        count: z.int(),
        last_job_id: z.uuid(),
        last_at: time.nullable(),
        error: jobErrorSchema.nullable(),
      }),
    ),
    failed_schedules: z.array(z.strictObject({ id: z.string(), name: z.string(), at: time, message: z.string() })),
    disabled_webhooks: z.array(z.strictObject({ url: z.string(), deliveries: z.int(), since: time })),
  })
  .meta({ id: 'Attention' });

export function attentionRoutes({ db }: { db: Database }): RouteGroup {
  const group = new RouteGroup('Statistics');
  group.route({
    method: 'get',
    path: '/api/attention',
    summary: 'What needs a person: holds, failing types, failed schedules, disabled webhooks',
    access: 'read',
    answers: { 200: attentionSchema },
    handle: async ({ tenant }) => {
      const { schema } = tenant;
      const [counts, newest, types, schedules, webhooks] = await Promise.all([
        countHolds(db, schema),
        newestHolds(db, schema),
        readFailingTypes(db, schema),
        readFailedSchedules(db, schema),
        readDisabledAddresses(db, schema),
      ]);
      return {
        holds: { ...counts, newest },
        failing_types: types,
        failed_schedules: schedules,
        disabled_webhooks: webhooks,
      };
    },
  });
  group.route({
    method: 'get',
    path: '/api/attention/count',
    summary: 'How many jobs wait for a person',
    access: 'read',
    answers: { 200: holdsSchema.pick({ paused: true, error: true }) },
    handle: ({ tenant }) => countHolds(db, tenant.schema),
  });
  return group;
}

async function newestHolds(db: Database, schema: Schema) {
  const jobs = await readHolds(db, schema);
  const targets = jobs.flatMap((job) => (job.targetId === null ? [] : [job.targetId]));
  const waiting = await readWaitingBehind(db, schema, [...new Set(targets)]);
  return jobs.map((job) => {
    const line = job.targetId === null || !job.laneHead ? undefined : waiting.get(job.targetId);
    return {
      job: { ...jobSummaryToApi(job), error: job.error },
      waiting: line?.waiting ?? 0,
      oldest_waiting_at: line?.oldest ?? null,
    };
  });
}
