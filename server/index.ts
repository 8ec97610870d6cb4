// The package `leasehold`: what the authors of jobs import. Nothing here opens a connection.
export { z } from 'zod';
export { JobStopped, type StopReason } from './worker/attempt/stop-reason.ts';
export { defineJob, type JobDefinition, type JobOptions, type PhaseDefinition } from './worker/handlers/define-job.ts';
export { Fatal, type HandlerErrorOptions, Recoverable, SkipPhase } from './worker/handlers/handler-errors.ts';
export type {
  ChildOptions,
  EnqueuedChild,
  JobContext,
  JobInfo,
  Lease,
  RetryOptions,
  SleepOptions,
  StepContext,
  StepOptions,
} from './worker/handlers/job-context.ts';
