// The package `leasehold/worker`: runs jobs in another process or on another machine, over HTTP. Nothing here opens a
// connection before `run`.
export type {
  ChildJob,
  ChildOptions,
  ChildOutcome,
  EnqueuedChild,
  ReceivedEvent,
  StepContext,
  StepOptions,
} from '../durable/durable-context.ts';
export { Fatal, type HandlerErrorOptions, Recoverable } from '../durable/handler-errors.ts';
export {
  type Ask,
  type Handler,
  type RemoteAnswer,
  type RemoteJob,
  type RemoteQuestion,
  Stopped,
  type Work,
  type WorkerOptions,
} from './work.ts';
export { LeaseholdWorker } from './worker.ts';
