// A job in the API: its schemas, and the mapping to them.
import { z } from 'zod';
import { maxShownPhases, type ShownPhases } from '../../../jobs/attempt/phases.ts';
import { retryRequest } from '../../../jobs/enqueue/job-request.ts';
import { holdOf } from '../../../jobs/model/hold.ts';
import { holdKinds, type Job, priorities, withoutTrace } from '../../../jobs/model/job.ts';
import type { Phase } from '../../../jobs/model/job-values.ts';
import { statuses } from '../../../jobs/model/states.ts';
import { unlessNever, waitKinds } from '../../../jobs/model/waiting.ts';
import { toApi } from '../../to-api.ts';

/** Parameters in the paths of routes. */
export const jobParams = z.strictObject({ job_id: z.string() });
export const targetParams = z.strictObject({ target_id: z.string() });
export const targetJobParams = z.strictObject({ target_id: z.string(), job_id: z.string() });

const time = z.iso.datetime({ offset: true });
const json = z.unknown();

export const jobErrorSchema = z
  .looseObject({
    code: z.string(),
    message: z.string(),
    name: z.string().optional().describe('The class of the error.'),
    stack: z.string().optional().describe('Not in lists.'),
    cause: z.unknown().optional().describe('The error that caused it, with name, stack and cause.'),
  })
  .meta({ id: 'JobError' });

const phaseSchema = z
  .strictObject({
    name: z.string(),
    kind: z
      .enum(['phase', 'step', 'sleep', 'event', 'children', 'question'])
      .describe('`phase` of a type with phases; the others are durable calls of `run`, in their order.'),
    status: z.enum(['pending', 'running', 'completed', 'partial', 'failed', 'skipped', 'cancelled']),
    progress: z.number(),
    message: z.string().nullable(),
    result: json,
    error: jobErrorSchema.nullable(),
    attempt: z.int(),
    started_at: time.nullable(),
    finished_at: time.nullable(),
    waits_until: time.nullable().describe('Until when a sleep lasts, or a wait at most.'),
  })
  .meta({ id: 'Phase' });

export const jobHoldSchema = z
  .strictObject({
    kind: z
      .enum(holdKinds)
      .describe(
        '`user`: a person paused it. `drain`: a shutdown paused it. `budget`: it used more than a budget or its token limit allows. `error`: it failed. ' +
          '`handler`: its handler did not stop and still runs.',
      ),
    reason: z.string().nullable(),
    author: z.string().nullable().describe('Who paused it: the given author, else the key or the daemon.'),
    since: time.nullable(),
    handler: z
      .enum(['running', 'terminated'])
      .nullable()
      .describe('`running`: the handler had not stopped when this was written. `terminated`: its thread was ended.'),
  })
  .meta({ id: 'JobHold' });

const waitingSchema = z
  .strictObject({
    kind: z.enum(waitKinds),
    step: z.string().optional().describe('The durable call that waits; of kind `turn` that of its parent.'),
    until: time.optional().describe('When the job wakes by itself; without it no time wakes it.'),
    event: z.string().optional().describe('The event from outside that it waits for.'),
    match: z.record(z.string(), z.unknown()).optional().describe('What the data of the event must contain.'),
    question: z.string().optional().describe('The question that a person has to answer.'),
    lane: z.enum(['released']).optional().describe('The job has left its lane until it wakes.'),
    jobs: z.int().optional().describe('How many children or other jobs it waits for in all.'),
    not_before: time.optional().describe('Of kind `after`: it is not queued before this time.'),
    title: z
      .string()
      .optional()
      .describe('The title of the question: in lists of jobs, in a job and in the head of a lane.'),
    unfinished: z
      .int()
      .optional()
      .describe(
        'How many of its `jobs` have not ended, in the same places; left out if they are more than 1000, or many in a long page.',
      ),
  })
  .meta({ id: 'JobWaiting' });

/** The fields of a job in a lane. */
export const laneJobSchema = z
  .strictObject({
    id: z.uuid(),
    type: z.string(),
    status: z.enum(statuses),
    priority: z.enum(priorities),
    created_at: time,
    run_at: time.nullable().describe('Null: no time wakes it.'),
    held_since: time.nullable(),
    lease_owner: z.string().nullable(),
    error: jobErrorSchema.nullable(),
    hold: jobHoldSchema.nullable(),
    waiting: waitingSchema.nullable().describe('What a WAITING job waits for.'),
  })
  .meta({ id: 'LaneJob' });

export const jobSummarySchema = z
  .strictObject({
    id: z.uuid(),
    type: z.string(),
    queue: z.string(),
    target_id: z.string().nullable(),
    status: z.enum(statuses),
    priority: z.enum(priorities),
    error: jobErrorSchema.nullable().describe('The last failure; of a paused job, why it paused.'),
    hold: jobHoldSchema.nullable().describe('Why it holds its lane, if it does.'),
    attempts: z.int().describe('All attempts.'),
    attempts_since_resume: z.int().describe('Attempts since the last resume; `max_attempts` limits these.'),
    max_attempts: z.int(),
    progress: z.number().nullable(),
    progress_message: z.string().nullable(),
    usage: z.strictObject({
      tokens: z.int(),
      token_limit: z.int().nullable(),
      units: z.record(z.string(), z.number()).describe('What it used of other units.'),
      budget: z.record(z.string(), z.number()).describe('What it may use of other units.'),
    }),
    lease_owner: z.string().nullable(),
    lease_id: z
      .uuid()
      .nullable()
      .describe('Of the current holder, or else of the last one; read it under /api/scheduler/lease/{lease_id}.'),
    lease_expires_at: time.nullable(),
    heartbeat_at: time.nullable().describe('When the holder last renewed its lease. Null: the job has no holder.'),
    cancel_requested: z.boolean(),
    cancel_intent: z.enum(['pause', 'cancel']).nullable(),
    cancel_detail: z.looseObject({}).nullable().describe('Who requested the stop, why and when.'),
    run_at: time.nullable().describe('When it may start or wake. Null: it waits for others, and no time wakes it.'),
    created_at: time,
    started_at: time.nullable().describe('Start of the last attempt.'),
    finished_at: time.nullable(),
    updated_at: time,
    held_since: time.nullable().describe('PAUSED, ERROR or WAITING since.'),
    waiting: waitingSchema.nullable().describe('What a WAITING job waits for.'),
    expires_at: time.nullable(),
    stale_at: time.nullable(),
    on_error: z.enum(['block', 'continue']),
    on_drain: z.enum(['pause', 'requeue']).nullable(),
    retry: retryRequest.nullable(),
    timeout_seconds: z.number().nullable(),
    cost_units: z.int(),
    constraints: z.record(z.string(), z.unknown()).nullable(),
    remote: z.boolean().describe('Only remote workers may claim it.'),
    webhook_url: z.string().nullable(),
    webhook_sent: z.boolean(),
    client_request_id: z.string().nullable(),
    author: z.string().nullable(),
    traceparent: z.string().nullable(),
    parent_id: z.uuid().nullable(),
    schedule_id: z.uuid().nullable(),
    payload: json.optional(),
    result: json.optional(),
  })
  .meta({ id: 'JobSummary' });

export const jobSchema = jobSummarySchema
  .extend({
    payload: json,
    result: json,
    checkpoint: json.describe('What the handler last stored with `checkpoint`; null: nothing.'),
    phases: z.array(phaseSchema).describe(`The last ${maxShownPhases}, and fewer if their results are large.`),
    phases_total: z
      .int()
      .optional()
      .describe('How many phases and durable calls the job has, if `phases` are not all.'),
  })
  .meta({ id: 'Job' });

export function jobToApi(job: Job, { phases, total }: ShownPhases): z.input<typeof jobSchema> {
  return {
    ...jobSummaryToApi(job),
    error: job.error,
    payload: job.payload,
    result: job.result ?? null,
    checkpoint: job.checkpoint ?? null,
    phases: phases.map(phaseToApi),
    ...(total !== undefined && { phases_total: total }),
  };
}

export function jobSummaryToApi(job: Job): z.input<typeof jobSummarySchema> {
  return toApi(jobSummarySchema, job, {
    error: job.error && withoutTrace(job.error),
    hold: holdOf(job) ?? null,
    attempts: job.attempt,
    attempts_since_resume: job.attempt - job.attemptFloor,
    usage: { tokens: job.tokensUsed, token_limit: job.tokenLimit, units: job.usage ?? {}, budget: job.budget ?? {} },
    run_at: unlessNever(job.runAt),
    cancel_detail: job.cancelDetail as Record<string, unknown> | null,
    retry: job.retry && toApi(retryRequest, job.retry),
    // Undefined if the query did not read the documents.
    result: job.payload === undefined ? undefined : (job.result ?? null),
  });
}

function phaseToApi(phase: Phase): z.input<typeof phaseSchema> {
  return toApi(phaseSchema, phase, { result: phase.result ?? null });
}
