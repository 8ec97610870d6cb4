// The schemas of the scheduler API: jobs, leases, results, and the bodies of its requests.

import { z } from 'zod';
import { uniqueRequest } from '../../../jobs/enqueue/job-request.ts';
import { afterField } from '../../../jobs/flows/after-request.ts';
import { priorities } from '../../../jobs/model/job.ts';
import { nameField, targetIdField, timeField } from '../../../kernel/fields.ts';
import { maxInt4 } from '../../../kernel/limits.ts';
import { finalStatuses, jobStates, leaseStates } from '../../../scheduler/api-names.ts';
import { unitAmounts } from '../../../tenants/named-settings.ts';

const isoTime = z.iso.datetime({ offset: true });
const name = nameField();
const workerId = name.describe('The id of the worker: the same in every request about a job.');
const units = z.int().min(1).max(maxInt4);
const share = z.number().min(0).max(1);
const note = z.string().max(2000);

const constraintsSchema = z.record(z.string().max(200), z.union([z.boolean(), z.number(), z.string().max(200)])).meta({
  id: 'Constraints',
  description: 'Only `X_required: true` is enforced: it needs a worker with `X_available`. Everything else is a hint.',
});

export const jobIntentSchema = z
  .strictObject({
    job_id: z.uuid(),
    addon_id: z.string().describe("The job's queue."),
    job_type: z.string(),
    priority: z.enum(priorities),
    cost_units: units,
    constraints: constraintsSchema,
    payload: z.unknown(),
    state: z.enum(jobStates),
    created_at: isoTime,
    updated_at: isoTime,
    claimed_by: z.string().nullable(),
    claim_expires_at: isoTime.nullable(),
    lease_id: z.uuid().nullable(),
    attempts: z.int(),
    max_attempts: z.int(),
    next_retry_at: isoTime.nullable(),
    target_id: z.string().nullable(),
    tokens_used: z.int(),
    usage: z.record(z.string(), z.number()).describe('What the job used of other units, over all attempts.'),
    token_limit: z.int().nullable(),
    cancel_requested: z.boolean().describe('Stop, then release with CANCELED.'),
    cancel_intent: z.enum(['pause', 'cancel']).nullable(),
    progress: share.nullable(),
    note: z.string().nullable(),
  })
  .meta({ id: 'JobIntent' });

export const leaseSchema = z
  .strictObject({
    lease_id: z.uuid(),
    kind: z.enum(['in_process', 'remote']),
    job_id: z.uuid().describe('The first job, if the lease has several.'),
    job_ids: z.array(z.uuid()).describe('A daemon may claim several jobs under one lease; a remote lease has one.'),
    addon_id: z.string().nullable(),
    cost_units: z.int().min(0),
    ttl_sec: z.number(),
    state: z.enum(leaseStates),
    granted_at: isoTime,
    last_heartbeat_at: isoTime,
    expires_at: isoTime,
    worker_id: z.string(),
    released_at: isoTime.nullable(),
    release_status: z.enum(finalStatuses).nullable(),
    metrics: z.unknown(),
  })
  .meta({ id: 'Lease' });

export const jobResultSchema = z
  .strictObject({
    job_id: z.uuid(),
    status: z.enum(finalStatuses),
    result_data: z.unknown(),
    error: z.looseObject({ code: z.string(), message: z.string() }).nullable(),
    started_at: isoTime.nullable(),
    finished_at: isoTime.nullable(),
    attempts: z.int(),
  })
  .meta({ id: 'JobResult' });

export const oneJob = z.strictObject({ job: jobIntentSchema });
export const oneLease = z.strictObject({ lease: leaseSchema });

export const submitBody = z.strictObject({
  addon_id: name,
  job_type: name,
  priority: z.enum(priorities).default('NORMAL'),
  cost_units: units.default(1),
  constraints: constraintsSchema.nullish(),
  payload: z.unknown().optional(),
  client_request_id: name.nullish().describe('Repeated requests with the same id create one job.'),
  target_id: targetIdField()
    .nullish()
    .describe('The lane of the job. Without one it runs in parallel with all others.'),
  max_attempts: z.int().min(1).max(100).default(1),
  token_limit: z.int().min(0).nullish().describe('Maximum tokens over all attempts; 0 means no limit.'),
  budget: unitAmounts
    .optional()
    .describe('How much the job may use of each unit, over all attempts: `{ "cents": 500 }`; 0 means no limit.'),
  unique: uniqueRequest.optional(),
  after: afterField.optional(),
});

export const maxWaitSeconds = 60;

export const claimBody = z.strictObject({
  addon_id: name,
  worker_id: workerId,
  limit: z.int().min(1).max(100).default(1).describe('With more than 1 the response has `jobs`.'),
  accept_job_types: z.array(name).max(1000).nullish(),
  max_cost_units: units.nullish(),
  constraints_capabilities: z.record(z.string().max(200), z.unknown()).nullish(),
  wait_sec: z.number().min(0).default(0).describe(`How long to wait for work; at most ${maxWaitSeconds} seconds.`),
});

export const statusBody = z.strictObject({
  state: z.enum(jobStates).describe('PREPARING or LEASE_PENDING; RUNNING reports progress; QUEUED releases the claim.'),
  note: note.nullish(),
  progress: share.nullish(),
  worker_id: workerId.optional(),
  lease_id: z.guid().optional().describe('Reports on a RUNNING job need this or worker_id.'),
});

export const leaseRequestBody = z.strictObject({
  job_id: z.guid(),
  addon_id: name.optional(),
  job_type: name.optional(),
  cost_units: units.optional().describe('Raises the cost of the job; a smaller value does not lower it.'),
  priority: z.enum(priorities).optional().describe('Ignored: the priority of the job counts.'),
  constraints: constraintsSchema.nullish(),
  ttl_sec: z.number().min(1).max(3600).default(30),
  worker_id: workerId.optional().describe('Checked if given.'),
  request_id: z
    .string()
    .min(1)
    .max(100)
    .optional()
    .describe('The same when the request is repeated. Another request of the worker for the job is refused then.'),
});

export const heartbeatBody = z.strictObject({
  job_id: z.guid(),
  worker_id: workerId,
  progress: share.nullish(),
  message: note.nullish(),
  usage: unitAmounts
    .nullish()
    .describe('What the job used of other units over all attempts: `{ "cents": 12 }`. Absolute, like `tokens_used`.'),
  tokens_used: z
    .int()
    .min(0)
    .nullish()
    .describe('Tokens of the job over all attempts. Above its limit the response requests a stop, and the job fails.'),
});

export const spentSchema = z
  .strictObject({
    unit: z.string(),
    used: z.number(),
    limit: z.number(),
    budget: z.string().optional().describe('Of the settings of the tenant.'),
    per: z.enum(['job', 'day', 'target_day']),
  })
  .meta({ id: 'SpentBudget' });

export const releaseBody = z.strictObject({
  job_id: z.guid(),
  worker_id: workerId,
  status: z.enum(finalStatuses),
  result_data: z.unknown().optional(),
  error: z
    .union([
      z.string().max(10_000),
      z.looseObject({
        code: name.optional(),
        message: z.string().max(10_000).optional(),
        name: z.string().optional().describe('The class of the error.'),
        stack: z.string().optional().describe('The stack trace; long ones are cut.'),
      }),
    ])
    .nullish(),
  metrics: z.record(z.string().max(200), z.unknown()).nullish(),
  recoverable: z.boolean().default(true).describe('False: FAILED is final, even if attempts are left.'),
  close_questions: z
    .boolean()
    .default(false)
    .describe('With SUCCEEDED: withdraws the questions that the run has left open.'),
  requeue: z
    .boolean()
    .default(false)
    .describe('With CANCELED: the worker is shutting down; the job is requeued and the attempt does not count.'),
});

export const eventSchema = z.strictObject({
  ts: isoTime,
  type: z.string(),
  data: z.record(z.string(), z.unknown()),
});
export const stateQuery = z.enum(jobStates);
export const timeQuery = timeField();
export const idParams = <N extends string>(param: N) =>
  z.strictObject({ [param]: z.string().max(200) } as Record<N, z.ZodString>);
