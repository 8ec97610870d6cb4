// How an error crosses the border of a thread and is the same on the other side.
import { dispositionOf, Fatal, Recoverable, SkipPhase } from './handler-errors.ts';
import { toJobError } from './job-error.ts';
import { JobStopped } from './stop-reason.ts';
import type { SentError } from './thread-messages.ts';

export function sendError(error: unknown): SentError {
  const { code, message, details } = toJobError(error);
  return {
    name: error instanceof Error ? error.name : 'Error',
    message,
    code: code === 'HANDLER_ERROR' ? undefined : code,
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
  switch (sent.disposition) {
    case 'recoverable':
      return new Recoverable(sent.message, options);
    case 'fatal':
      return new Fatal(sent.message, options);
    case 'skipPhase':
      return new SkipPhase(sent.message, options);
    default:
      return Object.assign(new Error(sent.message), { name: sent.name, ...options });
  }
}
