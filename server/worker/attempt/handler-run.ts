// The contract between an attempt and the code that runs its handler: the input of the code, its reports while it runs,
// and its result.

import type { DurableRun } from '../../durable/database/enqueue-children.ts';
import type { DurableEffects } from '../../durable/step-store.ts';
import type { StopReason } from '../../durable/stop-reason.ts';
import type { StepGroupCommit } from '../../jobs/attempt/step-group-commit.ts';
import type { Job, JobError } from '../../jobs/model/job.ts';
import type { Config } from '../../kernel/config.ts';
import type { JsonText } from '../../kernel/json/json-text.ts';
import type { Logger } from '../../kernel/logger.ts';

export type HandlerEnd =
  | { kind: 'completed'; result: unknown; resultText?: JsonText | undefined }
  | { kind: 'partial'; result: unknown; resultText?: JsonText | undefined; error?: JobError }
  | { kind: 'failed'; error: JobError; recoverable: boolean };

/** How long the lease and its stop requests may be trusted, for a thread, which cannot ask the heartbeat itself. */
export interface LeaseTrust {
  /** By `monotonicMs()`, which all threads share. Undefined if the lease does not expire. */
  trustedUntilMs?(): number;
  /** Until when a handler may begin, by the same clock. Then its stop requests are read again. */
  startUntilMs?(): number;
  /** Reads them, and stops the attempt if it was asked to. Never rejects. */
  readStopRequests?(): Promise<void>;
  /** The handler has got its thread. */
  begin?(): void;
}

export interface HandlerRun extends DurableRun, LeaseTrust {
  job: Job;
  stepCommits: StepGroupCommit;
  logger: Logger;
  config: Config;
  /** Aborted with a StopReason when the handler must stop. */
  signal: AbortSignal;
  /** Aborted when the grace period is over. A thread is terminated; code in this process keeps running. */
  kill: AbortSignal;
  /** Aborts the signal now if the lease has expired, for example while the process was suspended. */
  check?(): void;
  /** Stops this attempt. */
  stop(reason: StopReason): void;
}

/** The position of the phase that reports; undefined for a job without phases. */
export interface PhaseScope {
  name: string;
  index: number;
  count: number;
}

/** The time until which an assertion holds, by the process's own clock. */
export interface LeaseAssertion {
  validUntilMs: number;
}

/**
 * The effects of a handler through its context. A daemon writes them to the tenant's schema; the test kit keeps them in
 * memory.
 */
export interface Effects extends DurableEffects {
  progress(percent: number, message: string | undefined, phase: PhaseScope | undefined): void;
  /** Rejects if the lease is lost. */
  assertLease(): Promise<LeaseAssertion>;
  checkpoint(state: unknown): Promise<void>;
  /** Resolves when everything reported so far is stored. */
  flush(): Promise<void>;
}

/** Computes the overall progress from the position of the phase and its own progress. */
export function overallProgress(phasePercent: number, phase: Pick<PhaseScope, 'index' | 'count'> | undefined): number {
  return phase === undefined ? phasePercent : Math.round((phase.index * 100 + phasePercent) / phase.count);
}
