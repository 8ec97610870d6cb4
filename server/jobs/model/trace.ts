// Spans around enqueueing and running, through the OpenTelemetry API: without an SDK in the process they do nothing.
// The producer's `traceparent` stays on the job, so that a run, hours later and on another machine, belongs to the
// trace of the request.
import { createRequire } from 'node:module';
import type { Context, Span, SpanContext } from '@opentelemetry/api';
import { errorMessage } from '../../kernel/errors.ts';
import type { Job } from './job.ts';

/** Runs `put` in a producer span. `put` gets the traceparent to store on the jobs, if there is one. */
export async function withEnqueueSpan<T>(
  about: { tenant: string; type: string; count: number; traceparent?: string | undefined },
  put: (traceparent: string | undefined) => Promise<T>,
): Promise<T> {
  const api = findApi();
  if (api === undefined) return put(valid(about.traceparent));
  const options = {
    kind: api.SpanKind.PRODUCER,
    attributes: { 'leasehold.tenant': about.tenant, 'leasehold.job.type': about.type, 'leasehold.jobs': about.count },
  };
  const span = tracerOf(api).startSpan(`enqueue ${about.type}`, options, parentOf(api, about.traceparent));
  return within(api, span, () => put(traceparentOf(span.spanContext()) ?? valid(about.traceparent)));
}

/**
 * Runs one attempt in a consumer span, a child of the span that enqueued the job. `failureOf` returns the failure of a
 * run that did not throw.
 */
export function withJobSpan<T>(
  job: Pick<Job, 'id' | 'type' | 'queue' | 'targetId' | 'attempt' | 'traceparent'>,
  tenant: string,
  run: () => Promise<T>,
  failureOf: (value: T) => string | undefined = () => undefined,
): Promise<T> {
  const api = findApi();
  if (api === undefined) return run();
  const options = {
    kind: api.SpanKind.CONSUMER,
    attributes: {
      'leasehold.tenant': tenant,
      'leasehold.job.id': job.id,
      'leasehold.job.type': job.type,
      'leasehold.job.attempt': job.attempt,
      'leasehold.queue': job.queue,
      ...(job.targetId !== null && { 'leasehold.target': job.targetId }),
    },
  };
  const span = tracerOf(api).startSpan(`run ${job.type}`, options, parentOf(api, job.traceparent));
  return within(api, span, async () => {
    const value = await run();
    const failure = failureOf(value);
    if (failure !== undefined) markFailed(api, span, failure);
    return value;
  });
}

type Api = typeof import('@opentelemetry/api');

/** The object through which all copies of the API in a process find the SDK. */
const registry = Symbol.for('opentelemetry.js.api.1');
// The metrics load the API in this form; an import would load its fifty modules a second time.
const require = createRequire(import.meta.url);

/**
 * Returns undefined without an SDK, which is found each time, because it may be registered at any time. Thousands of
 * jobs a second pass here.
 */
function findApi(): Api | undefined {
  const registered = (globalThis as { [registry]?: { trace?: unknown } })[registry];
  return registered?.trace === undefined ? undefined : (require('@opentelemetry/api') as Api);
}

function markFailed({ SpanStatusCode }: Api, span: Span, message: string): void {
  span.setStatus({ code: SpanStatusCode.ERROR, message });
}

/** Parses the W3C header into a span context; undefined if it is invalid. @internal */
export function parseTraceparent(header: string | null | undefined): SpanContext | undefined {
  const match = /^00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})$/.exec(header ?? '');
  if (!match) return undefined;
  const [, traceId = '', spanId = '', flags = '00'] = match;
  const found = { traceId, spanId, traceFlags: Number.parseInt(flags, 16) & 1, isRemote: true };
  return isValid(found) ? found : undefined;
}

/** An id of zeros means that there is none. */
function isValid({ traceId, spanId }: SpanContext): boolean {
  return /[^0]/.test(traceId) && /[^0]/.test(spanId);
}

function traceparentOf(span: SpanContext): string | undefined {
  if (!isValid(span)) return undefined;
  return `00-${span.traceId}-${span.spanId}-0${span.traceFlags & 1}`;
}

function valid(header: string | undefined): string | undefined {
  return parseTraceparent(header) === undefined ? undefined : header;
}

function parentOf({ context, trace, ROOT_CONTEXT }: Api, traceparent: string | null | undefined): Context {
  const parent = parseTraceparent(traceparent);
  return parent === undefined ? context.active() : trace.setSpanContext(ROOT_CONTEXT, parent);
}

async function within<T>(api: Api, span: Span, work: () => Promise<T>): Promise<T> {
  const { context, trace } = api;
  try {
    return await context.with(trace.setSpan(context.active(), span), work);
  } catch (error) {
    markFailed(api, span, errorMessage(error));
    throw error;
  } finally {
    span.end();
  }
}

function tracerOf({ trace }: Api) {
  return trace.getTracer('leasehold');
}
