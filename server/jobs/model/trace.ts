// Spans around enqueueing and running, through the OpenTelemetry API: without an SDK in the process
// they do nothing. The producer's `traceparent` stays on the job, so that a run, hours later and on
// another machine, belongs to the trace of the request.
import {
  context,
  isSpanContextValid,
  ProxyTracerProvider,
  ROOT_CONTEXT,
  type Span,
  type SpanContext,
  SpanKind,
  SpanStatusCode,
  type Tracer,
  trace,
} from '@opentelemetry/api';
import { errorMessage } from '../../kernel/errors.ts';
import type { Job } from './job.ts';

/** Runs `put` in a producer span. `put` gets the traceparent to store on the jobs, if there is one. */
export async function withEnqueueSpan<T>(
  about: { tenant: string; type: string; count: number; traceparent?: string | undefined },
  put: (traceparent: string | undefined) => Promise<T>,
): Promise<T> {
  const options = {
    kind: SpanKind.PRODUCER,
    attributes: { 'leasehold.tenant': about.tenant, 'leasehold.job.type': about.type, 'leasehold.jobs': about.count },
  };
  const span = tracer().startSpan(`enqueue ${about.type}`, options, parentOf(about.traceparent));
  return within(span, () => put(traceparentOf(span.spanContext()) ?? valid(about.traceparent)));
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
  // Thousands of jobs a second pass here, and most daemons have no SDK.
  if (!isTracing()) return run();
  const options = {
    kind: SpanKind.CONSUMER,
    attributes: {
      'leasehold.tenant': tenant,
      'leasehold.job.id': job.id,
      'leasehold.job.type': job.type,
      'leasehold.job.attempt': job.attempt,
      'leasehold.queue': job.queue,
      ...(job.targetId !== null && { 'leasehold.target': job.targetId }),
    },
  };
  const span = tracer().startSpan(`run ${job.type}`, options, parentOf(job.traceparent));
  return within(span, async () => {
    const value = await run();
    const failure = failureOf(value);
    if (failure !== undefined) markFailed(span, failure);
    return value;
  });
}

function isTracing(): boolean {
  const provider = trace.getTracerProvider();
  return !(provider instanceof ProxyTracerProvider) || provider.getDelegateTracer('leasehold') !== undefined;
}

function markFailed(span: Span, message: string): void {
  span.setStatus({ code: SpanStatusCode.ERROR, message });
}

/** Parses the W3C header into a span context; undefined if it is invalid. @internal */
export function parseTraceparent(header: string | null | undefined): SpanContext | undefined {
  const match = /^00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})$/.exec(header ?? '');
  if (!match) return undefined;
  const [, traceId = '', spanId = '', flags = '00'] = match;
  const found = { traceId, spanId, traceFlags: Number.parseInt(flags, 16) & 1, isRemote: true };
  return isSpanContextValid(found) ? found : undefined;
}

function traceparentOf(span: SpanContext): string | undefined {
  if (!isSpanContextValid(span)) return undefined;
  return `00-${span.traceId}-${span.spanId}-0${span.traceFlags & 1}`;
}

function valid(header: string | undefined): string | undefined {
  return parseTraceparent(header) === undefined ? undefined : header;
}

function parentOf(traceparent: string | null | undefined) {
  const parent = parseTraceparent(traceparent);
  return parent === undefined ? context.active() : trace.setSpanContext(ROOT_CONTEXT, parent);
}

async function within<T>(span: Span, work: () => Promise<T>): Promise<T> {
  try {
    return await context.with(trace.setSpan(context.active(), span), work);
  } catch (error) {
    markFailed(span, errorMessage(error));
    throw error;
  } finally {
    span.end();
  }
}

// Looked up each time, because an SDK may be registered after this module was loaded.
function tracer(): Tracer {
  return trace.getTracer('leasehold');
}
