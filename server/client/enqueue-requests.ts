// Enqueues one job or many. Each call has an idempotency key, created once, so however often it is sent, a job exists
// once.

import { ProblemError } from './client-errors.ts';
import type { EnqueueOptions } from './generated/api-options.ts';
import type { BatchAnswer, Job, JobSummary } from './generated/api-types.ts';
import type { InputOf, JobReference, ResultOf } from './job-reference.ts';
import type { JobHandle } from './jobs.ts';
import { type CallOptions, randomKey, type Transport, toBody } from './transport.ts';

export interface SingleOptions extends EnqueueOptions, CallOptions {
  /**
   * The same key and request create one job, also across calls and processes. The default is a new key for each call.
   */
  idempotencyKey?: string | undefined;
  /** Sent as `traceparent`, stored with the job and passed to its handler. */
  traceparent?: string | undefined;
}

export interface ManyOptions extends CallOptions {
  idempotencyKey?: string | undefined;
  /** Enqueues all jobs or none; at most 1,000 jobs. */
  atomic?: boolean | undefined;
  traceparent?: string | undefined;
}

export interface Enqueued<R = unknown> extends JobHandle<R> {
  /** False if an earlier request with the same key made it. */
  readonly created: boolean;
  readonly job: Job;
}

/** One job of `enqueueMany`, created by `jobRequest`. */
export interface JobRequest<R = unknown> {
  readonly type: string;
  readonly payload: unknown;
  readonly options?: (EnqueueOptions & { idempotencyKey?: string | undefined }) | undefined;
  readonly types?: { readonly result: R };
}

export type EnqueueResult<R = unknown> =
  | (JobHandle<R> & { readonly ok: true; readonly created: boolean; readonly job: JobSummary })
  | { readonly ok: false; readonly error: ProblemError };

const maxJobs = 1000;
// The daemon accepts 8 MB; a part of it is kept for the other fields.
const maxBytes = 7 * 1_048_576;

export function jobRequest<J extends JobReference>(
  job: J,
  payload: InputOf<J>,
  options?: JobRequest['options'],
): JobRequest<ResultOf<J>>;
export function jobRequest<J extends JobReference>(
  type: J['type'],
  payload: InputOf<J>,
  options?: JobRequest['options'],
): JobRequest<ResultOf<J>>;
export function jobRequest(job: JobReference | string, payload: unknown, options?: JobRequest['options']): JobRequest {
  return { type: typeof job === 'string' ? job : job.type, payload, options };
}

export async function enqueueOne(
  transport: Transport,
  type: string,
  payload: unknown,
  options: SingleOptions,
): Promise<Enqueued> {
  const { idempotencyKey = randomKey(), traceparent, signal, timeoutMs, retryForMs, ...fields } = options;
  const { status, body } = await transport.request<Job>('POST', '/api/jobs', {
    body: { type, payload, ...toBody(fields) },
    headers: headersOf(idempotencyKey, traceparent),
    repeatable: true,
    signal,
    timeoutMs,
    retryForMs,
  });
  return { id: body.id, created: status === 201, job: body };
}

export async function enqueueMany(
  transport: Transport,
  requests: readonly JobRequest[],
  options: ManyOptions,
): Promise<EnqueueResult[]> {
  const { idempotencyKey = randomKey(), traceparent, atomic = false, ...call } = options;
  if (atomic && requests.length > maxJobs) {
    throw new RangeError(`an atomic batch has at most ${maxJobs} jobs, not ${requests.length}`);
  }
  const results: EnqueueResult[] = [];
  const batches = batchesOf(requests);
  if (atomic && batches.length > 1) throw new RangeError('the jobs are too large for one atomic batch of 8 MB');
  for (const [number, jobs] of batches.entries()) {
    const { body } = await transport.request<BatchAnswer>('POST', '/api/jobs/batch', {
      ...call,
      body: `{"atomic":${atomic},"jobs":[${jobs.join(',')}]}`,
      headers: headersOf(number === 0 ? idempotencyKey : `${idempotencyKey}/${number}`, traceparent),
      repeatable: true,
    });
    results.push(...body.results.map(toResult));
  }
  return results;
}

/** Returns the jobs as JSON, in batches that the daemon accepts. */
function batchesOf(requests: readonly JobRequest[]): string[][] {
  const batches: string[][] = [];
  let batch: string[] = [];
  let bytes = 0;
  for (const { type, payload, options = {} } of requests) {
    const { idempotencyKey, ...fields } = options;
    const text = JSON.stringify({ type, payload, ...toBody(fields), client_request_id: idempotencyKey });
    const size = byteLength(text);
    if (batch.length === maxJobs || (batch.length > 0 && bytes + size > maxBytes)) {
      batches.push(batch);
      batch = [];
      bytes = 0;
    }
    batch.push(text);
    bytes += size + 1;
  }
  if (batch.length > 0) batches.push(batch);
  return batches;
}

/** Bytes in UTF-8; an upper bound is enough. */
function byteLength(text: string): number {
  return /^[\x00-\x7f]*$/.test(text) ? text.length : text.length * 3;
}

function toResult({ status, job, error }: BatchAnswer['results'][number]): EnqueueResult {
  if (job !== undefined) return { ok: true, id: job.id, created: status === 201, job };
  return { ok: false, error: new ProblemError(status, error ?? {}) };
}

function headersOf(idempotencyKey: string, traceparent: string | undefined): Record<string, string> {
  const headers = { 'idempotency-key': idempotencyKey };
  return traceparent === undefined ? headers : { ...headers, traceparent };
}
