// The input and the result of a test run. Types only, because the declarations of the package use them.
import type { InputOf, JobReference, ResultOf } from '../client/job-reference.ts';
import type { ChildOptions } from '../durable/durable-context.ts';
import type { StopReason } from '../durable/stop-reason.ts';
import type { JobError } from '../jobs/model/job-values.ts';

/** `J` is the definition, which types the payload and the results of phases. */
export interface TestOptions<J extends JobReference = JobReference> {
  payload?: InputOf<J>;
  attempt?: number;
  targetId?: string;
  /** The checkpoint of an earlier attempt. */
  checkpoint?: unknown;
  /** Results of phases that count as completed: `runHandler` does not run them again. */
  phaseResults?: ResultOf<J> extends Record<string, unknown> ? ResultOf<J> : Record<string, unknown>;
  /** Results of durable steps that count as completed: their code does not run. */
  stepResults?: Record<string, unknown>;
  /**
   * Answers by the name or the title of the question: `{ approve: true, action: 'Approve' }`. With `timeout` nobody
   * answers.
   */
  answers?: Record<string, Record<string, unknown> | 'timeout'>;
  /** The result of a child that the handler waits for; null by default. */
  childResult?(child: { type: string; payload: unknown }, position: number, call: string): unknown;
  /**
   * Data of events from outside, by name, in the order in which they arrive. A wait for an event that is not given
   * times out if it has a time limit; otherwise the handler is stopped as `suspended`.
   */
  events?: Record<string, readonly unknown[]>;
  tokensUsed?: number;
  tokenLimit?: number;
  /** Limits of other units. */
  budget?: Record<string, number>;
  /** Abort it to stop the handler; its reason may be a StopReason, by default `{ kind: 'canceled' }`. */
  signal?: AbortSignal;
}

export interface TestRun<R = unknown> extends Remembered {
  status: 'completed' | 'partial' | 'failed' | 'skipped' | 'stopped';
  /** Undefined if the run failed or was stopped. */
  result: R | undefined;
  error: JobError | undefined;
  /** True if the job would be retried, provided that attempts are left. */
  recoverable: boolean;
  stoppedBy: StopReason | undefined;
  phases: Record<string, PhaseEndStatus>;
}

export type PhaseEndStatus = 'completed' | 'partial' | 'failed' | 'skipped' | 'stopped' | 'lost';

export interface Remembered {
  /** All reports; a daemon would write only some of them. */
  progress: { percent: number; overall: number; message?: string | undefined; phase?: string | undefined }[];
  logs: { level: 'info' | 'warn' | 'error'; message: string; data?: Record<string, unknown> | undefined }[];
  tokensUsed: number;
  /** Usage of other units. */
  usage: Record<string, number>;
  children: { id: string; type: string; payload: unknown; options: ChildOptions }[];
  checkpoint: unknown;
  /** The number of lease assertions. */
  leaseAsserts: number;
  /** Results of durable steps, by name. */
  steps: Record<string, unknown>;
  /** Questions that the handler asked. */
  questions: { name: string; title: string; assignees: string[]; schema: Record<string, unknown> }[];
  /** Events that the handler waited for; `match` is not compared here. */
  eventWaits: { name: string; event: string; match: object | null; timeoutSeconds: number | null }[];
  /** Durable sleeps. They return at once, without waiting. */
  sleeps: { name: string; ms?: number; until?: string }[];
}
