// The contract between an attempt and the code that runs its handler: what the code is given, what it reports through
// its context while it runs, and how it ends.

import type { DurableRun } from '../../durable/database/enqueue-children.ts';
import type { DurableEffects } from '../../durable/step-store.ts';
import type { StopReason } from '../../durable/stop-reason.ts';
import type { Job, JobError } from '../../jobs/model/job.ts';
import type { Config } from '../../kernel/config.ts';
import type { JsonText } from '../../kernel/json.ts';
import type { Logger } from '../../kernel/logger.ts';

export type HandlerEnd =
  | { kind: 'completed'; result: unknown; resultText?: JsonText | undefined }
  | { kind: 'partial'; result: unknown; resultText?: JsonText | undefined; error?: JobError }
  | { kind: 'failed'; error: JobError; recoverable: boolean };

/** For a thread, which cannot ask the heartbeat itself. */
export interface LeaseTrust {
  /** By `monotonicMs()`, which all threads share. Undefined: the lease does not expire. */
  trustedUntilMs?(): number;
}

export interface HandlerRun extends DurableRun, LeaseTrust {
  job: Job;
  logger: Logger;
  config: Config;
  /** Aborted with a StopReason when the handler must stop. */
  signal: AbortSignal;
  /** Aborted when the grace is over: a thread is terminated; code in this process is left running. */
  kill: AbortSignal;
  /** Aborts the signal now if the lease has expired, e.g. while the process was suspended. */
  check?(): void;
  /** Stops this attempt. */
  stop(reason: StopReason): void;
}

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

/** What a handler does through its context. A daemon writes it to the tenant's schema; the test kit keeps it in memory. */
export interface Effects extends DurableEffects {
  progress(percent: number, message: string | undefined, phase: PhaseScope | undefined): void;
  /** Rejects if the lease is lost. */
  assertLease(): Promise<LeaseAssertion>;
  checkpoint(state: unknown): Promise<void>;
  /** Resolves when everything reported so far is stored. */
  flush(): Promise<void>;
}

/** Overall progress from the phase's place and its own progress. */
export function overallProgress(phasePercent: number, phase: Pick<PhaseScope, 'index' | 'count'> | undefined): number {
  return phase === undefined ? phasePercent : Math.round((phase.index * 100 + phasePercent) / phase.count);
}
