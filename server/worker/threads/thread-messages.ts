// The messages between the daemon and the thread of an isolated handler. Plain data only.

import type { ChildOptions } from '../../durable/durable-context.ts';
import { dispositionOf, Fatal, Recoverable, SkipPhase } from '../../durable/handler-errors.ts';
import { toJobError, traceOf } from '../../durable/job-error.ts';
import type { ChildrenRequest, LogLevel } from '../../durable/step-store.ts';
import { JobStopped, type StopReason } from '../../durable/stop-reason.ts';
import type { WantedEvent } from '../../jobs/attempt/event-waits.ts';
import type { StepChange } from '../../jobs/attempt/save-steps.ts';
import type { StepCall, WaitEnd } from '../../jobs/attempt/steps.ts';
import type { ErrorTrace } from '../../jobs/model/job.ts';
import type { Units } from '../../jobs/model/job-budget.ts';
import type { JobErrorCode } from '../../jobs/model/job-errors.ts';
import type { AwaitedCalls, Waiting } from '../../jobs/model/waiting.ts';
import type { AskedQuestion } from '../../jobs/questions/question-request.ts';
import type { PhaseScope } from '../attempt/handler-run.ts';
import type { JobInfo } from '../handlers/job-context.ts';

export interface RunMessage {
  kind: 'run';
  file: string;
  type: string;
  job: JobInfo;
  leaseId: string;
  payload: unknown;
  checkpoint: unknown;
  phase: PhaseScope | undefined;
  results: Readonly<Record<string, unknown>>;
  /** How long the lease may be trusted, by `monotonicMs()`. Undefined if it does not expire. */
  trustedUntilMs: number | undefined;
  /** Until when the handler may begin without another read of its stop requests, by the same clock. */
  startUntilMs: number | undefined;
}

export type ToHandler =
  | RunMessage
  | { kind: 'stop'; reason: StopReason }
  | { kind: 'answer'; call: number; value?: unknown; error?: SentError; trustedUntilMs: number | undefined };

export type FromHandler =
  | { kind: 'progress'; percent: number; message: string | undefined }
  | { kind: 'log'; level: LogLevel; message: string; data: Record<string, unknown> | undefined }
  | { kind: 'partial'; reason: string }
  | { kind: 'call'; call: number; request: HandlerCall }
  | { kind: 'done'; result: unknown; health: ThreadHealth }
  | { kind: 'failed'; error: SentError; health: ThreadHealth };

/** Effects that return a value. */
export type HandlerCall =
  | { effect: 'addUsage'; usage: Units }
  | { effect: 'assertLease' }
  | { effect: 'checkLease' }
  | { effect: 'readStopRequests' }
  | { effect: 'enqueue'; key: string; type: string; payload: unknown; options: ChildOptions }
  | { effect: 'checkpoint'; state: unknown }
  | { effect: 'loadSteps' }
  | { effect: 'saveSteps'; changes: readonly StepChange[] }
  | { effect: 'stop'; reason: StopReason }
  | { effect: 'timeOutStep'; name: string; seconds: number }
  | { effect: 'openSleep'; step: StepCall; end: WaitEnd }
  | { effect: 'children'; children: ChildrenRequest }
  | { effect: 'openEventWait'; step: StepCall; wanted: WantedEvent }
  | { effect: 'suspend'; waiting: Waiting; leftMs: number; awaited: AwaitedCalls | undefined }
  | { effect: 'openQuestion'; step: StepCall; question: AskedQuestion }
  | { effect: 'closeQuestions' };

/** True if the thread can take another job. */
export interface ThreadHealth {
  heapUsedBytes: number;
  /** The handler left timers running, whose errors would be attributed to the next job. */
  leftovers: number;
}

/** An error as data: the fields that the job's error and the retry policy need. */
interface SentError {
  message: string;
  trace: ErrorTrace;
  code?: string | undefined;
  details?: Record<string, unknown> | undefined;
  disposition?: string | undefined;
  stopped?: StopReason | undefined;
}

// Converts errors to messages between threads and back.
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
