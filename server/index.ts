// The package `leasehold`: what the authors of jobs import. Nothing here opens a connection.
export { z } from 'zod';
export type {
  ChildOptions,
  EnqueuedChild,
  RetryOptions,
  SleepOptions,
  StepContext,
  StepOptions,
} from './durable/durable-context.ts';
export { Fatal, type HandlerErrorOptions, Recoverable, SkipPhase } from './durable/handler-errors.ts';
export { JobStopped, type StopReason } from './durable/stop-reason.ts';
export { defineJob, type JobDefinition, type JobOptions, type PhaseDefinition } from './worker/handlers/define-job.ts';
export type { JobContext, JobInfo, Lease } from './worker/handlers/job-context.ts';
