// The contract between an attempt and the code that runs its handler: what the code is given, what it reports through
// its context while it runs, and how it ends.

import type { Database } from '../../database/database.ts';
import type { EventWait, WantedEvent } from '../../jobs/attempt/event-waits.ts';
import type { OpenWait, StepCall, StepEnd, StoredStep, WaitEnd } from '../../jobs/attempt/steps.ts';
import type { Enqueued, NewJob } from '../../jobs/enqueue/enqueue.ts';
import type { JobTypes } from '../../jobs/enqueue/job-types.ts';
import type { ChildEnd, ChildPolicy, ChildrenState } from '../../jobs/flows/fenced-children.ts';
import type { Job, JobError } from '../../jobs/model/job.ts';
import type { Units } from '../../jobs/model/job-budget.ts';
import type { AwaitedCalls, Waiting } from '../../jobs/model/waiting.ts';
import type { QuestionState } from '../../jobs/questions/ask.ts';
import type { AskedQuestion } from '../../jobs/questions/question-request.ts';
import type { Config } from '../../kernel/config.ts';
import type { Logger } from '../../kernel/logger.ts';
import type { Tenant } from '../../tenants/tenant.ts';
import type { ChildJob, ChildOptions, EnqueuedChild } from '../handlers/job-context.ts';
import type { StopReason } from './stop-reason.ts';

export type HandlerEnd =
  | { kind: 'completed'; result: unknown }
  | { kind: 'partial'; result: unknown; error?: JobError }
  | { kind: 'failed'; error: JobError; recoverable: boolean };

export interface HandlerRun {
  db: Database;
  tenant: Tenant;
  job: Job;
  leaseId: string;
  logger: Logger;
  config: Config;
  /** Aborted with a StopReason when the handler must stop. */
  signal: AbortSignal;
  /** Aborted when the grace is over: a thread is terminated; code in this process is left running. */
  kill: AbortSignal;
  /** For children: checks their payloads and fills in the defaults of their types. */
  jobTypes: JobTypes;
  /** Refuses children beyond the tenant's queue limit. */
  admit(children: NewJob[]): Promise<void>;
  /** Children were enqueued: wakes the workers. */
  onEnqueued?(enqueued: readonly Enqueued[]): void;
  /** The job waits for others from now on. */
  onDependencies?(): void;
  /** Aborts the signal now if the lease has expired, e.g. while the process was suspended. */
  check?(): void;
  /** Stops this attempt. */
  stop(reason: StopReason): void;
}

export type LogLevel = 'info' | 'warn' | 'error';

/** Which of how many phases reports; undefined for a job without phases. */
export interface PhaseScope {
  name: string;
  index: number;
  count: number;
}

/** Until when an assertion holds, by the process's own clock. */
export interface LeaseAssertion {
  validUntilMs: number;
}

export interface ChildrenRequest {
  call: StepCall;
  /** What the call waits for, if no earlier run has stored it: new children, or those that the run has enqueued. */
  open?: { jobs: ChildJob[] } | { ids: readonly string[] } | undefined;
  onFailure: ChildPolicy;
  concurrency?: number | undefined;
}

export interface ChildrenAnswer extends ChildrenState {
  /** In the order of the call, once it can end. */
  ends?: ChildEnd[] | undefined;
}

/** Where the durable calls of a handler are kept. Every method rejects if the lease is lost. */
export interface StepStore {
  /** Those of earlier runs. */
  load(): Promise<StoredStep[]>;
  save(ends: readonly StepEnd[]): Promise<void>;
  openSleep(call: StepCall, end: WaitEnd): Promise<OpenWait>;
  children(request: ChildrenRequest): Promise<ChildrenAnswer>;
  /** Stops the run; its job becomes WAITING. */
  suspend(waiting: Waiting, leftMs: number, awaited?: AwaitedCalls): Promise<void>;
  /** Stores that the call waits for the event, unless it has come. */
  openEventWait(call: StepCall, wanted: WantedEvent): Promise<EventWait>;
  /** Stores the question, or reads what became of it. */
  openQuestion(call: StepCall, question: AskedQuestion): Promise<QuestionState>;
  /** Closes the questions that the run has left open. */
  closeQuestions(): Promise<void>;
  /** The code of a step did not end when its time was up: stops the run. */
  timeOut(name: string, seconds: number): Promise<void>;
}

/** What a handler does through its context. A daemon writes it to the tenant's schema; the test kit keeps it in memory. */
export interface Effects {
  readonly steps: StepStore;
  progress(percent: number, message: string | undefined, phase: PhaseScope | undefined): void;
  /** Aborts the signal if the job has exceeded a budget. */
  addUsage(usage: Units): void | Promise<void>;
  log(level: LogLevel, message: string, data: Record<string, unknown> | undefined): void;
  /** Rejects if the lease is lost. */
  assertLease(): Promise<LeaseAssertion>;
  /** `key` tells the child from its siblings over all attempts. */
  enqueue(key: string, type: string, payload: unknown, options: ChildOptions): Promise<EnqueuedChild>;
  checkpoint(state: unknown): Promise<void>;
  /** Resolves when everything reported so far is stored. */
  flush(): Promise<void>;
}

/** Overall progress from the phase's place and its own progress. */
export function overallProgress(phasePercent: number, phase: Pick<PhaseScope, 'index' | 'count'> | undefined): number {
  return phase === undefined ? phasePercent : Math.round((phase.index * 100 + phasePercent) / phase.count);
}
