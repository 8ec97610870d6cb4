// Converts a thrown value into the error that is stored with the job.

import type { Job, JobError } from '../../jobs/model/job.ts';
import type { JobErrorCode } from '../../jobs/model/job-errors.ts';
import { findJsonViolation } from '../../kernel/json.ts';
import { storableText } from '../attempt/storable.ts';
import { traceOf } from './error-trace.ts';
import { dispositionOf } from './handler-errors.ts';
import type { RetryOptions } from './job-context.ts';

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

/** Whether a failure is retried: by the error's own class, then the job's policy, then the type's. */
export function isRecoverable(error: unknown, job: Pick<Job, 'retry'>, retry: RetryOptions | undefined): boolean {
  const says = dispositionOf(error);
  if (says !== undefined) return says === 'recoverable';
  const { code } = toJobError(error);
  if (job.retry?.codes?.includes(code)) return true;
  if (retry?.on === 'any') return true;
  return Array.isArray(retry?.on) && retry.on.includes(code);
}
