// Converts a thrown value into the error that is stored with the job.
import type { ErrorCause, ErrorTrace, Job, JobError } from '../jobs/model/job.ts';
import type { JobErrorCode } from '../jobs/model/job-errors.ts';
import { findJsonViolation } from '../kernel/json/json-violations.ts';
import type { RetryOptions } from './durable-context.ts';
import { dispositionOf } from './handler-errors.ts';
import { storableText } from './storable.ts';

const codePattern = /^[A-Z][A-Z0-9_]{0,63}$/;

export function toJobError(error: unknown): JobError {
  const given = (typeof error === 'object' && error !== null ? error : {}) as Record<string, unknown>;
  const code =
    typeof given.code === 'string' && codePattern.test(given.code)
      ? given.code
      : ('HANDLER_ERROR' satisfies JobErrorCode);
  const details = storableDetails(given.details);
  return { code, message: messageOf(error, given), ...(details !== undefined && { details }), ...traceOf(error) };
}

function messageOf(error: unknown, given: Record<string, unknown>): string {
  const text = typeof given.message === 'string' ? given.message : describe(error);
  const name = typeof given.name === 'string' && given.name !== '' ? given.name : 'Error';
  return storableText(text === '' ? name : text);
}

function describe(error: unknown): string {
  try {
    return typeof error === 'object' && error !== null ? (JSON.stringify(error) ?? 'unknown error') : String(error);
  } catch {
    return 'an error that cannot be shown';
  }
}

function storableDetails(details: unknown): object | undefined {
  if (typeof details !== 'object' || details === null || findJsonViolation(details) !== undefined) return undefined;
  try {
    const text = JSON.stringify(details);
    return text.length > 16_384 ? undefined : (JSON.parse(text) as object);
  } catch {
    return undefined;
  }
}

/** True if a failure is retried: by the error's own class, then the job's policy, then the type's. */
export function isRecoverable(error: unknown, job: Pick<Job, 'retry'>, retry: RetryOptions | undefined): boolean {
  const says = dispositionOf(error);
  if (says !== undefined) return says === 'recoverable';
  const { code } = toJobError(error);
  if (job.retry?.codes?.includes(code)) return true;
  if (retry?.on === 'any') return true;
  return Array.isArray(retry?.on) && retry.on.includes(code);
}

// Name, stack and causes of a thrown value, as plain JSON that Postgres can hold, bounded in bytes.

// An error with its surroundings stays below 32 kB, because it is stored with the job, its phase and the event.
const maxTraceBytes = 16_384;
// Some sixty frames.
const maxStackBytes = 6144;
const maxMessage = 1000;
const maxCauses = 5;
const maxAggregated = 5;

interface Budget {
  bytes: number;
}

export function traceOf(error: unknown): ErrorTrace {
  return trace(error, { bytes: maxTraceBytes }, 0);
}

function trace(error: unknown, budget: Budget, depth: number): ErrorTrace {
  if (typeof error !== 'object' || error === null) return {};
  try {
    // A getter of a strange error may throw.
    const given = error as { stack?: unknown; cause?: unknown; errors?: unknown };
    const name = nameOf(error);
    const stack = typeof given.stack === 'string' ? spend(shortStack(given.stack), maxStackBytes, budget) : undefined;
    const cause = given.cause === undefined ? undefined : causeOf(given.cause, budget, depth + 1);
    const errors = Array.isArray(given.errors)
      ? given.errors.slice(0, maxAggregated).flatMap((one) => causeOf(one, budget, depth + 1) ?? [])
      : [];
    return {
      ...(name !== undefined && { name }),
      ...(stack !== undefined && { stack }),
      ...(cause !== undefined && { cause }),
      ...(errors.length > 0 && { errors }),
    };
  } catch {
    return {};
  }
}

function causeOf(error: unknown, budget: Budget, depth: number): ErrorCause | undefined {
  if (depth > maxCauses || error === null) return undefined;
  const given = (typeof error === 'object' ? error : {}) as { message?: unknown; code?: unknown };
  const text = typeof given.message === 'string' ? given.message : String(error);
  const message = spend(text, maxMessage, budget);
  if (message === undefined) return undefined;
  const code = typeof given.code === 'string' ? spend(given.code, 64, budget) : undefined;
  return { message, ...(code !== undefined && { code }), ...trace(error, budget, depth) };
}

/** Returns the name, or that of the constructor for subclasses that set none. */
function nameOf(error: object): string | undefined {
  const { name } = error as { name?: unknown };
  const made = error instanceof Error ? error.constructor.name : '';
  const known = typeof name === 'string' && name !== '' && name !== 'Error' ? name : made || name;
  return typeof known === 'string' && known !== '' ? storableText(known, 200) : undefined;
}

/** Cuts the message: a dumped response would leave no room for the stack frames after it. */
function shortStack(stack: string): string {
  const frames = stack.search(/\n\s+at /);
  return frames > maxMessage ? `${stack.slice(0, maxMessage)}…${stack.slice(frames)}` : stack;
}

/** Cuts the text to its own limit and the total budget; undefined if nothing is left. */
function spend(text: string, maxBytes: number, budget: Budget): string | undefined {
  const room = Math.min(maxBytes, budget.bytes);
  if (room <= 0) return undefined;
  let kept = storableText(text, room);
  // Measured as JSON, because quotes, control characters and other alphabets take more than one byte.
  for (let bytes = jsonBytes(kept); bytes > room + 8; bytes = jsonBytes(kept)) {
    kept = storableText(kept, Math.max(0, Math.floor((kept.length * room) / bytes) - 1));
  }
  budget.bytes -= jsonBytes(kept);
  return kept;
}

function jsonBytes(text: string): number {
  return Buffer.byteLength(JSON.stringify(text));
}
