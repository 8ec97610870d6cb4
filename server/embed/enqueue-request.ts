// What a program passes to `enqueue`, and how it becomes the request that clients send over HTTP.
import { type JobRequest, jobRequest } from '../jobs/enqueue/job-request.ts';
import type { Priority } from '../jobs/model/job.ts';
import { invalidFields, parseFields } from '../kernel/fields.ts';
import { findJsonViolation } from '../kernel/json.ts';
import type { JobDefinition } from '../worker/handlers/define-job.ts';
import type { CallerTransaction } from './caller-transaction.ts';

/** A job type by its definition, which types the payload, or by its name. */
export type JobRef = string | Pick<JobDefinition, 'type'>;

/** What a job of this definition is enqueued with. */
export type InputOf<J> = J extends { types?: { input: infer I } } ? I : unknown;

export interface EnqueueOptions {
  /** A transaction of yours: a `pg` client after BEGIN, or the transaction of drizzle, Kysely or postgres.js. */
  tx?: CallerTransaction | undefined;
  /** The lane to stand in. Without one the job runs beside all others. */
  targetId?: string | undefined;
  priority?: Priority | undefined;
  queue?: string | undefined;
  /** Not before this time. */
  runAt?: Date | string | undefined;
  maxAttempts?: number | undefined;
  retry?: JobRequest['retry'];
  timeoutSeconds?: number | undefined;
  /** If it has not started by then, it fails with EXPIRED. */
  expiresInSeconds?: number | undefined;
  tokenLimit?: number | undefined;
  costUnits?: number | undefined;
  constraints?: Record<string, unknown> | undefined;
  onError?: 'block' | 'continue' | undefined;
  onDrain?: 'pause' | 'requeue' | undefined;
  webhookUrl?: string | undefined;
  /** The same key enqueues the job once; a repetition returns the first job. */
  idempotencyKey?: string | undefined;
  /** Who asks for it, for people who read its history. */
  author?: string | undefined;
}

/** One of several jobs for `enqueueMany`. */
export type JobItem<J extends JobRef> = { job: J; payload: InputOf<J> } & Omit<EnqueueOptions, 'tx'>;

export interface JobHandle {
  id: string;
  tenant: string;
  type: string;
  /** A job with this idempotency key existed already, and is this one. */
  replayed: boolean;
}

export function toJobRequest(job: JobRef, payload: unknown, options: EnqueueOptions): JobRequest {
  const { runAt } = options;
  return parseFields(jobRequest, {
    type: typeof job === 'string' ? job : job.type,
    payload: toJson(payload),
    target_id: options.targetId,
    priority: options.priority,
    queue: options.queue,
    run_at: runAt instanceof Date ? runAt.toISOString() : runAt,
    max_attempts: options.maxAttempts,
    retry: options.retry,
    timeout_seconds: options.timeoutSeconds,
    expires_in_seconds: options.expiresInSeconds,
    token_limit: options.tokenLimit,
    cost_units: options.costUnits,
    constraints: options.constraints,
    on_error: options.onError,
    on_drain: options.onDrain,
    webhook_url: options.webhookUrl,
    client_request_id: options.idempotencyKey,
    author: options.author,
  });
}

/** The payload as the handler will get it: dates as text, undefined left out. */
function toJson(payload: unknown): unknown {
  if (payload === undefined) return undefined;
  let json: unknown;
  try {
    json = JSON.parse(JSON.stringify(payload) ?? 'null');
  } catch (error) {
    throw invalidFields([{ field: 'payload', message: `is not JSON: ${(error as Error).message}` }]);
  }
  const violation = findJsonViolation(json);
  if (violation) throw invalidFields([{ ...violation, field: ['payload', violation.field].filter(Boolean).join('.') }]);
  return json;
}
