// The messages between the daemon and the thread of an isolated handler. Plain data only.
import type { WantedEvent } from '../../jobs/attempt/event-waits.ts';
import type { StepCall, StepEnd, WaitEnd } from '../../jobs/attempt/steps.ts';
import type { ErrorTrace } from '../../jobs/model/job.ts';
import type { Units } from '../../jobs/model/job-budget.ts';
import type { AwaitedCalls, Waiting } from '../../jobs/model/waiting.ts';
import type { AskedQuestion } from '../../jobs/questions/question-request.ts';
import type { ChildrenRequest, LogLevel, PhaseScope } from '../attempt/handler-run.ts';
import type { StopReason } from '../attempt/stop-reason.ts';
import type { ChildOptions, JobInfo } from '../handlers/job-context.ts';

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
}

export type ToHandler =
  | RunMessage
  | { kind: 'stop'; reason: StopReason }
  | { kind: 'answer'; call: number; value?: unknown; error?: SentError };

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
  | { effect: 'enqueue'; key: string; type: string; payload: unknown; options: ChildOptions }
  | { effect: 'checkpoint'; state: unknown }
  | { effect: 'loadSteps' }
  | { effect: 'saveSteps'; ends: readonly StepEnd[] }
  | { effect: 'timeOutStep'; name: string; seconds: number }
  | { effect: 'openSleep'; step: StepCall; end: WaitEnd }
  | { effect: 'children'; children: ChildrenRequest }
  | { effect: 'openEventWait'; step: StepCall; wanted: WantedEvent }
  | { effect: 'suspend'; waiting: Waiting; leftMs: number; awaited: AwaitedCalls | undefined }
  | { effect: 'openQuestion'; step: StepCall; question: AskedQuestion }
  | { effect: 'closeQuestions' };

/** Whether the thread can take another job. */
export interface ThreadHealth {
  heapUsedBytes: number;
  /** Timers that the handler left running: their errors would be attributed to the next job. */
  leftovers: number;
}

/** An error as it travels: what the job's error and the retry policy need. */
export interface SentError {
  message: string;
  trace: ErrorTrace;
  code?: string | undefined;
  details?: Record<string, unknown> | undefined;
  disposition?: string | undefined;
  stopped?: StopReason | undefined;
}
