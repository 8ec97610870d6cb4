// What a program passes to `enqueue` and `sendEvent`, and how it becomes the request that clients send over HTTP.
import { type JobRequest, jobRequest } from '../jobs/enqueue/job-request.ts';
import { eventName, type SentEvent, sentEvent } from '../jobs/received/receive-event.ts';
import { invalidFields, parseFields } from '../kernel/fields.ts';
import { findJsonViolation } from '../kernel/json.ts';
import type { EnqueueOptions, JobRef } from './api.ts';

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
    retry: toRetryRequest(options.retry),
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
    after: options.after?.map((one) => (typeof one === 'string' ? one : { job: one.job, on_failure: one.onFailure })),
    unique: options.unique,
  });
}

function toRetryRequest(retry: EnqueueOptions['retry']): JobRequest['retry'] {
  if (retry === undefined) return undefined;
  const { kind, delaySeconds, maxDelaySeconds, jitter, codes } = retry;
  return { kind, delay_seconds: delaySeconds, max_delay_seconds: maxDelaySeconds, jitter, codes };
}

/** The value as the handler will get it: dates as text, undefined left out. */
function toJson(value: unknown, field = 'payload'): unknown {
  if (value === undefined) return undefined;
  let json: unknown;
  try {
    json = JSON.parse(JSON.stringify(value) ?? 'null');
  } catch (error) {
    throw invalidFields([{ field, message: `is not JSON: ${(error as Error).message}` }]);
  }
  const violation = findJsonViolation(json);
  if (violation) throw invalidFields([{ ...violation, field: [field, violation.field].filter(Boolean).join('.') }]);
  return json;
}

export function toSentEvent(name: string, data: unknown, id: string | undefined): SentEvent {
  return { name: parseFields(eventName, name, 'name'), ...parseFields(sentEvent, { data: toJson(data, 'data'), id }) };
}
