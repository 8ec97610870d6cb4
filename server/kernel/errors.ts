// The catalogue of errors that clients see. Code throws `problem(code, detail)`; the HTTP layer maps the code to a
// status. Nothing here depends on Express.

const catalogue = {
  BAD_REQUEST: { status: 400, title: 'The request is not valid' },
  INVALID_FIELD: { status: 400, title: 'A field of the request is not valid' },
  INVALID_JSON: { status: 400, title: 'The body is not valid JSON' },
  INVALID_CURSOR: { status: 400, title: 'The cursor is not one of this list' },
  UNKNOWN_JOB_TYPE: { status: 400, title: 'No handler or worker knows this job type' },
  UNAUTHORIZED: { status: 401, title: 'A valid API key is needed' },
  FORBIDDEN: { status: 403, title: 'The key lacks the scope for this' },
  TENANT_SUSPENDED: { status: 403, title: 'The tenant is suspended' },
  NOT_FOUND: { status: 404, title: 'Not found' },
  METHOD_NOT_ALLOWED: { status: 405, title: 'The method is not allowed here' },
  CONFLICT: { status: 409, title: 'The request conflicts with the present state' },
  QUESTION_CLOSED: { status: 409, title: 'The question was answered, expired or canceled' },
  INVALID_TRANSITION: { status: 409, title: 'The job cannot do this in its present status' },
  LEASE_LOST: { status: 409, title: 'The lease is no longer held' },
  IDEMPOTENCY_CONFLICT: { status: 409, title: 'The idempotency key was used with another request' },
  ALREADY_EXISTS: { status: 409, title: 'It exists already' },
  PAYLOAD_TOO_LARGE: { status: 413, title: 'The body is larger than allowed' },
  UNSUPPORTED_MEDIA_TYPE: { status: 415, title: 'The body must be application/json' },
  TOO_MANY_REQUESTS: { status: 429, title: 'Too many requests' },
  QUEUE_FULL: { status: 429, title: 'The tenant has as many waiting jobs as it may' },
  INTERNAL: { status: 500, title: 'Something went wrong on our side' },
  DATABASE_RIGHTS_MISSING: { status: 500, title: 'The role of the daemon lacks a right in the database' },
  DATABASE_UNAVAILABLE: { status: 503, title: 'The database cannot be used at present' },
  OVERLOADED: { status: 503, title: 'The server is busy; try again soon' },
  TARGET_LOCKED: { status: 503, title: 'The target is locked by another transaction' },
  DRAINING: { status: 503, title: 'The server is shutting down' },
} as const;

export type ProblemCode = keyof typeof catalogue;

export class Problem extends Error {
  readonly code: ProblemCode;
  /** Additional members of the response, such as `{ status: 'RUNNING' }` or `{ field: 'priority' }`. */
  readonly extra: Record<string, unknown>;
  constructor(code: ProblemCode, detail: string, extra: Record<string, unknown> = {}) {
    super(detail);
    this.name = 'Problem';
    this.code = code;
    this.extra = extra;
  }
  get httpStatus(): number {
    return catalogue[this.code].status;
  }
  get title(): string {
    return catalogue[this.code].title;
  }
}

export function problem(code: ProblemCode, detail: string, extra?: Record<string, unknown>): Problem {
  return new Problem(code, detail, extra);
}

/** A program cannot start. The message is for the person who started it and is shown without a stack. */
export class StartError extends Error {
  override name = 'StartError';
}

export function assertNever(value: never): never {
  throw new Error(`unexpected value ${JSON.stringify(value)}`);
}

export function errorMessage(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
