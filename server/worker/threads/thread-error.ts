// Converts errors to messages between threads and back.

import type { JobErrorCode } from '../../jobs/model/job-errors.ts';
import { JobStopped } from '../attempt/stop-reason.ts';
import { traceOf } from '../handlers/error-trace.ts';
import { dispositionOf, Fatal, Recoverable, SkipPhase } from '../handlers/handler-errors.ts';
import { toJobError } from '../handlers/job-error.ts';
import type { SentError } from './thread-messages.ts';

export function sendError(error: unknown): SentError {
  const { code, message, details } = toJobError(error);
  return {
    message,
    trace: traceOf(error),
    code: code === ('HANDLER_ERROR' satisfies JobErrorCode) ? undefined : code,
    details: details as Record<string, unknown> | undefined,
    disposition: dispositionOf(error),
    stopped: error instanceof JobStopped ? error.reason : undefined,
  };
}

export function receiveError(sent: SentError): Error {
  if (sent.stopped !== undefined) return new JobStopped(sent.stopped);
  const options = {
    ...(sent.code !== undefined && { code: sent.code }),
    ...(sent.details !== undefined && { details: sent.details }),
  };
  return Object.assign(create(sent.disposition, sent.message), options, sent.trace);
}

function create(disposition: string | undefined, message: string): Error {
  switch (disposition) {
    case 'recoverable':
      return new Recoverable(message);
    case 'fatal':
      return new Fatal(message);
    case 'skipPhase':
      return new SkipPhase(message);
    default:
      return new Error(message);
  }
}
