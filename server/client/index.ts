// The package `leasehold/client`: the API from Node, browsers and edge runtimes. Imports nothing of the daemon at run
// time, and nothing here opens a connection.

export { LeaseholdClient } from './client.ts';
export {
  ConnectionError,
  type FieldError,
  JobFailedError,
  LeaseholdError,
  ProblemError,
  WaitTimeoutError,
} from './client-errors.ts';
export {
  type Enqueued,
  type EnqueueResult,
  type JobRequest,
  jobRequest,
  type ManyOptions,
  type SingleOptions,
} from './enqueue-requests.ts';
export type { SendOptions, StreamMessage, StreamOptions } from './events.ts';
export type * from './generated/api-options.ts';
export type * from './generated/api-types.ts';
export type { InputOf, JobId, JobReference, ResultOf } from './job-reference.ts';
export type { ActionOptions, JobHandle, JobWithResult, ResumeOptions, WaitOptions } from './jobs.ts';
export type { List, Page } from './pages.ts';
export type { QuestionAnswer } from './questions.ts';
export type { CallOptions, ClientOptions, RequestOptions } from './transport.ts';
