// The schemas of the durable calls of remote workers.
import { z } from 'zod';
import { uniqueRequest } from '../../../jobs/enqueue/job-request.ts';
import { afterField } from '../../../jobs/flows/after-request.ts';
import { priorities } from '../../../jobs/model/job.ts';
import { questionRequest } from '../../../jobs/questions/question-request.ts';
import { nameField, pathNameField, targetIdField, timeField } from '../../../kernel/fields.ts';
import { maxSeconds } from '../../../kernel/limits.ts';
import { heartbeatBody } from './scheduler-schemas.ts';

const isoTime = z.iso.datetime({ offset: true });
const maxCalls = 32_767;
const maxChildren = 10_000;
const callName = z.string().min(1).max(200);
const errorSchema = z.looseObject({ code: z.string().max(200), message: z.string().max(10_000) });

const holder = heartbeatBody.pick({ job_id: true, worker_id: true });
const place = {
  name: callName.describe('Identifies the call among the durable calls of the job.'),
  position: z.int().min(0).max(maxCalls).default(0).describe('Its place in the order of calls of this run, from 0.'),
  parallel: z
    .boolean()
    .default(true)
    .describe('Another durable call of the run was open, or the worker counts no places: the order is not compared.'),
};
const suspends = {
  suspend: z
    .boolean()
    .default(true)
    .describe('If it has to wait: end the attempt. With false the wait is only stored; `suspend` follows.'),
  release_lane: z.boolean().default(false).describe('The job leaves its lane while it waits.'),
};

export const askBody = holder.extend(place).extend(suspends).extend(questionRequest.shape);

export const sleepBody = holder.extend({
  ...place,
  ...suspends,
  until: timeField().optional(),
  seconds: z.number().min(0).max(maxSeconds).optional().describe('Instead of `until`, by the clock of the database.'),
});

export const eventBody = holder.extend({
  ...place,
  ...suspends,
  event: pathNameField(),
  match: z.record(z.string(), z.unknown()).optional().describe('Fields that the data of the event must have.'),
  timeout_seconds: z.number().min(0).max(maxSeconds).optional(),
});

/**
 * Above what jobs with few or small results have, and few enough to be parsed and written without blocking the event
 * loop. Workers that read in parts have no such limit.
 */
export const maxUnpagedBytes = 4_194_304;

export const callsBody = holder.extend({
  after: z
    .string()
    .max(200)
    .optional()
    .describe(
      'In parts of about half a megabyte: the calls whose names come after this one, in the order of names; empty for the first part. Without it all, in the order of calls, and 413 if they have more than 4 MB.',
    ),
});

export const stepsBody = holder.extend({
  steps: z
    .array(
      z.strictObject({
        ...place,
        status: z.enum(['completed', 'failed', 'pending']).describe('`pending`: it failed before, and runs again.'),
        result: z.unknown().optional(),
        error: errorSchema.optional(),
        tries: z.int().min(0).max(1000).default(1),
        ms: z.number().min(0).default(0).describe('How long it took.'),
      }),
    )
    .min(1)
    .max(1000),
});

const child = {
  job_type: nameField(),
  payload: z.unknown().optional(),
  addon_id: nameField()
    .optional()
    .describe('The queue of remote workers that run it: any type. Without it as elsewhere.'),
  target_id: targetIdField().optional(),
  priority: z.enum(priorities).optional(),
  run_at: timeField().optional(),
  max_attempts: z.int().min(1).max(100).optional(),
};

export const enqueueBody = holder.extend({
  ...child,
  key: z
    .string()
    .min(1)
    .max(250)
    .describe('Tells the child from its siblings: a repeated request gets the same child.'),
  unique: uniqueRequest.optional(),
  after: afterField.optional(),
});

export const childrenBody = holder.extend({
  ...place,
  ...suspends,
  on_failure: z
    .enum(['stop', 'continue'])
    .default('stop')
    .describe('`stop`: the call ends with the first child that does not succeed.'),
  concurrency: z.int().min(1).max(maxChildren).optional().describe('How many may be unfinished at once.'),
  jobs: z
    .array(z.strictObject({ ...child, key: z.string().min(1).max(100).optional() }))
    .max(maxChildren)
    .optional()
    .describe('The children to enqueue. Not needed when the call is repeated.'),
  job_ids: z
    .array(z.guid())
    .max(maxChildren)
    .optional()
    .describe('Instead of `jobs`: children that were enqueued before.'),
});

export const suspendBody = holder.extend({
  call: callName.describe('The stored wait that people are shown.'),
  calls: z.array(callName).max(1000).optional().describe('All waits but sleeps; by default `call`.'),
  until: timeField().optional().describe('When the first of all waits is over; by default the end of `call`.'),
  release_lane: suspends.release_lane,
});

const ended = '`waiting` and `stopped`: the lease has ended; `stopped` if a person or a budget has stopped the job.';
const waited = z
  .enum(['over', 'open', 'waiting', 'stopped'])
  .describe(`\`open\`: stored, and the lease goes on. ${ended}`);
const waits = { until: isoTime.nullable(), left_ms: z.number().nullable().describe('Until then.') };

export const suspendAnswer = z.strictObject({ status: z.enum(['waiting', 'stopped']).describe(ended) });
export const sleepAnswer = z.strictObject({ status: waited, ...waits });
export const eventAnswer = z.strictObject({
  status: waited,
  ...waits,
  event: z
    .strictObject({ id: z.string(), name: z.string(), data: z.unknown(), received_at: isoTime })
    .nullable()
    .describe('Null when the time was over without one.'),
});
export const askAnswer = z.strictObject({
  status: z
    .enum(['waiting', 'open', 'stopped', 'answered', 'failed'])
    .describe(`The next worker asks the same and gets the answer. ${ended}`),
  question_id: z.string().nullable(),
  expires_at: isoTime.nullable(),
  left_ms: z.number().nullable(),
  answer: z.record(z.string(), z.unknown()).nullable(),
  action: z.string().nullable(),
  error: z.looseObject({ code: z.string(), message: z.string() }).nullable().describe('Nobody answered in time.'),
});
export const enqueueAnswer = z.strictObject({
  job_id: z.uuid(),
  unique: z
    .enum(['skipped', 'replaced', 'debounced'])
    .nullable()
    .describe('What was done to the job that holds the key.'),
});

const childEnd = {
  job_id: z.string(),
  job_type: z.string().nullable(),
  status: z.string().nullable().describe('Null: it was deleted.'),
  error: z.looseObject({ code: z.string(), message: z.string() }).nullable(),
};
export const childrenAnswer = z.strictObject({
  status: waited,
  total: z.int(),
  unfinished: z.int(),
  failed: z.strictObject(childEnd).nullable().describe('The first that did not succeed.'),
  children: z
    .array(z.strictObject({ ...childEnd, result: z.unknown() }))
    .nullable()
    .describe('In the order of the call, once all have ended.'),
});
const requested = {
  cancel_intent: z
    .enum(['pause', 'cancel'])
    .nullable()
    .describe('Somebody has asked for a stop: begin no further call, and release with CANCELED.'),
};
export const stepsAnswer = z.strictObject({ stored: z.int(), ...requested });
export const callsAnswer = z.strictObject({
  ...requested,
  calls: z
    .array(
      z.strictObject({
        name: z.string(),
        kind: z.enum(['phase', 'step', 'sleep', 'event', 'children', 'question']),
        position: z.int(),
        parallel: z.boolean(),
        status: z.string(),
        result: z.unknown(),
        error: z.looseObject({ code: z.string(), message: z.string() }).nullable(),
        ...waits,
      }),
    )
    .describe('What earlier runs of the job have stored.'),
  next: z.string().nullable().describe('With `after`: there is more, after this name.'),
});
