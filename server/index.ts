// The package `leasehold`: what the authors of jobs import. Nothing here opens a connection.
export { z } from 'zod';
export { JobStopped, type StopReason } from './worker/attempt/stop-reason.ts';
export {
  type ChildOptions,
  defineJob,
  type JobContext,
  type JobDefinition,
  type JobInfo,
  type JobOptions,
  type Lease,
  type PhaseDefinition,
  type RetryOptions,
  type SleepOptions,
  type StepContext,
  type StepOptions,
} from './worker/handlers/define-job.ts';
export { Fatal, type HandlerErrorOptions, Recoverable, SkipPhase } from './worker/handlers/handler-errors.ts';
