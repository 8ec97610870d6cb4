// The store of the durable calls of a run: in the tenant's schema, behind messages or HTTP, or in the memory of a test.
import type { EventWait, WantedEvent } from '../jobs/attempt/event-waits.ts';
import type { StepChange } from '../jobs/attempt/save-steps.ts';
import type { OpenWait, StepCall, StoredStep, WaitEnd } from '../jobs/attempt/steps.ts';
import type { ChildEnd, ChildPolicy, ChildrenState } from '../jobs/flows/fenced-children.ts';
import type { Units } from '../jobs/model/job-budget.ts';
import type { AwaitedCalls, Waiting } from '../jobs/model/waiting.ts';
import type { QuestionState } from '../jobs/questions/ask.ts';
import type { AskedQuestion } from '../jobs/questions/question-request.ts';
import type { ChildJob, ChildOptions, EnqueuedChild } from './durable-context.ts';
import type { StopReason } from './stop-reason.ts';

export interface ChildrenRequest {
  call: StepCall;
  /**
   * The children that the call waits for, if no earlier run has stored them: new ones, or those that the run has
   * enqueued.
   */
  open?: { jobs: ChildJob[] } | { ids: readonly string[] } | undefined;
  onFailure: ChildPolicy;
  concurrency?: number | undefined;
}

export interface ChildrenAnswer extends ChildrenState {
  /** In the order of the call, as soon as it can end. */
  ends?: ChildEnd[] | undefined;
}

/** The stored calls of earlier runs, and a stop that was requested since the run began. */
export interface LoadedCalls {
  steps: StoredStep[];
  stop?: StopReason | undefined;
}

/** The store of a handler's durable calls. Every method rejects if the lease is lost. */
export interface StepStore {
  load(): Promise<LoadedCalls>;
  /** Returns the stop that was requested. No further call begins then, and no phase was started. */
  save(changes: readonly StepChange[]): Promise<StopReason | undefined>;
  /** Stops the run as it was requested. */
  stop(reason: StopReason): Promise<void>;
  openSleep(call: StepCall, end: WaitEnd): Promise<OpenWait>;
  children(request: ChildrenRequest): Promise<ChildrenAnswer>;
  /** Stops the run; its job becomes WAITING. */
  suspend(waiting: Waiting, leftMs: number, awaited?: AwaitedCalls): Promise<void>;
  /** Stores that the call waits for the event, unless the event has arrived. */
  openEventWait(call: StepCall, wanted: WantedEvent): Promise<EventWait>;
  /** Stores the question, or reads its state. */
  openQuestion(call: StepCall, question: AskedQuestion): Promise<QuestionState>;
  /** Closes the questions that the run has left open. */
  closeQuestions(): Promise<void>;
  /** The code of a step did not end in time, so the run is stopped. */
  timeOut(name: string, seconds: number): Promise<void>;
}

export type LogLevel = 'info' | 'warn' | 'error';

/** The effects of a run through its durable calls. */
export interface DurableEffects {
  readonly steps: StepStore;
  /** Aborts the signal if the job has exceeded a budget. */
  addUsage(usage: Units): void | Promise<void>;
  log(level: LogLevel, message: string, data: Record<string, unknown> | undefined): void;
  /** `key` distinguishes the child from its siblings over all attempts. */
  enqueue(key: string, type: string, payload: unknown, options: ChildOptions): Promise<EnqueuedChild>;
}
