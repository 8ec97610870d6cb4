// The errors of the client. All extend LeaseholdError; an aborted call throws the reason of its signal.
import type { ProblemCode } from '../kernel/errors.ts';
import type { Job } from './generated/api-types.ts';

export class LeaseholdError extends Error {
  override name = 'LeaseholdError';
}

export interface FieldError {
  field: string;
  message: string;
}

/** The daemon refused the request (RFC 9457). `code` is for programs, `detail` for people. */
export class ProblemError extends LeaseholdError {
  override name = 'ProblemError';
  readonly status: number;
  readonly code: ProblemCode | (string & {});
  readonly title: string;
  readonly detail: string;
  /** Each field that was refused, and why. */
  readonly errors: readonly FieldError[];
  readonly requestId: string | undefined;
  /** The number of times that the request was sent. */
  readonly attempts: number;
  /** The whole answer, with the additional fields of its code, such as `known_types`. */
  readonly body: Readonly<Record<string, unknown>>;

  constructor(status: number, body: Record<string, unknown>, attempts = 1) {
    const text = (name: string) => (typeof body[name] === 'string' ? body[name] : undefined);
    const detail = text('detail') ?? `The server answered ${status}.`;
    super(detail);
    this.status = status;
    this.code = text('code') ?? `HTTP_${status}`;
    this.title = text('title') ?? `HTTP ${status}`;
    this.detail = detail;
    this.errors = Array.isArray(body.errors) ? (body.errors as FieldError[]) : fieldOf(text('field'), detail);
    this.requestId = text('request_id');
    this.attempts = attempts;
    this.body = body;
  }
}

/** There was no answer, or only a part of one. */
export class ConnectionError extends LeaseholdError {
  override name = 'ConnectionError';
  /** True if the request may have taken effect. It was repeated only if repeating it was safe. */
  readonly mayHaveHappened: boolean;
  readonly attempts: number;

  constructor(message: string, options: { cause?: unknown; mayHaveHappened: boolean; attempts: number }) {
    super(message, { cause: options.cause });
    this.mayHaveHappened = options.mayHaveHappened;
    this.attempts = options.attempts;
  }
}

/** The job that was waited for is in ERROR or CANCELED. */
export class JobFailedError extends LeaseholdError {
  override name = 'JobFailedError';
  readonly job: Job;

  constructor(job: Job) {
    const why = job.error === null ? '' : `: ${job.error.message}`;
    super(`Job ${job.id} (${job.type}) is ${job.status}${why}`);
    this.job = job;
  }
}

/** The timeout of a wait has passed. The job is not changed. */
export class WaitTimeoutError extends LeaseholdError {
  override name = 'WaitTimeoutError';
}

function fieldOf(field: string | undefined, message: string): FieldError[] {
  return field === undefined ? [] : [{ field, message }];
}
