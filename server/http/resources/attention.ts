// /api/attention: everything that needs a person now, in one response.
import { z } from 'zod';
import type { Database } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { countOpenQuestions, listQuestions } from '../../jobs/questions/read-questions.ts';
import {
  countHolds,
  maxCounted,
  readDisabledAddresses,
  readFailedSchedules,
  readFailingTypes,
  readHolds,
  readLostWorkers,
  readWaitingBehind,
} from '../../stats/attention.ts';
import { RouteGroup } from '../route.ts';
import { jobErrorSchema, jobSummarySchema, jobSummaryToApi } from './jobs/job-schema.ts';
import { questionSchema, questionToApi } from './questions.ts';

// A person reads a dozen; /api/questions lists all of them.
const shownQuestions = 12;

const time = z.iso.datetime({ offset: true });

const heldCounts = {
  paused: z.int().describe(`Jobs that are PAUSED; ${maxCounted + 1} when there are more than ${maxCounted}.`),
  error: z.int().describe('Jobs in ERROR, counted the same way.'),
};

const holdsSchema = z.strictObject({
  ...heldCounts,
  newest: z.array(
    z.strictObject({
      job: jobSummarySchema.describe('Its error has the stack.'),
      waiting: z.int().describe('Jobs that wait behind it; 1001 means more than 1000.'),
      oldest_waiting_at: time.nullable(),
    }),
  ),
});

const questionsSchema = z.strictObject({
  open: z.int().describe('Questions that wait for an answer, counted the same way.'),
  newest: z.array(questionSchema),
});

const attentionSchema = z
  .strictObject({
    holds: holdsSchema,
    questions: questionsSchema,
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
    lost_workers: z
      .array(z.strictObject({ owner: z.string(), attempts: z.int(), last_at: time, last_job_id: z.uuid() }))
      .describe('Of the last day: who went silent while it held leases.'),
    disabled_webhooks: z.array(z.strictObject({ url: z.string(), deliveries: z.int(), since: time })),
  })
  .meta({ id: 'Attention' });

export function attentionRoutes(): RouteGroup {
  const group = new RouteGroup('Statistics');
  group.route({
    method: 'get',
    path: '/api/attention',
    summary:
      'What needs a person: holds, open questions, failing types, failed and missed schedules, lost workers, disabled webhooks',
    access: 'read',
    answers: { 200: attentionSchema },
    handle: async ({ tenant, db }) => {
      const { schema } = tenant;
      const [counts, newest, questions, types, schedules, lost, webhooks] = await Promise.all([
        countHolds(db, schema),
        newestHolds(db, schema),
        openQuestions(db, schema),
        readFailingTypes(db, schema),
        readFailedSchedules(db, schema),
        readLostWorkers(db, schema),
        readDisabledAddresses(db, schema),
      ]);
      return {
        holds: { ...counts, newest },
        questions,
        failing_types: types,
        failed_schedules: schedules,
        lost_workers: lost,
        disabled_webhooks: webhooks,
      };
    },
  });
  group.route({
    method: 'get',
    path: '/api/attention/count',
    summary: 'How many jobs and questions wait for a person',
    access: 'read',
    answers: {
      200: z.strictObject({
        ...heldCounts,
        questions: questionsSchema.shape.open,
        questions_of_holds: z
          .int()
          .describe('Of these, asked about a job that a budget has stopped: it is in ERROR and counted there, too.'),
      }),
    },
    handle: async ({ tenant, db }) => {
      const [holds, questions] = await Promise.all([
        countHolds(db, tenant.schema),
        countOpenQuestions(db, tenant.schema, maxCounted + 1),
      ]);
      return { ...holds, questions: questions.open, questions_of_holds: questions.ofHolds };
    },
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

async function openQuestions(db: Database, schema: Schema) {
  const [{ open }, { questions: newest }] = await Promise.all([
    countOpenQuestions(db, schema, maxCounted + 1),
    listQuestions(db, schema, { status: 'open' }, { limit: shownQuestions }),
  ]);
  return { open, newest: newest.map(questionToApi) };
}
