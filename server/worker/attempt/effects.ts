// What a handler does through its context in one attempt. A daemon writes it to the tenant's schema; the test kit keeps
// it in memory.
import type { ChildOptions } from '../handlers/define-job.ts';

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

export interface Effects {
  progress(percent: number, message: string | undefined, phase: PhaseScope | undefined): void;
  /** Aborts the signal if the job has exceeded its limit. */
  addUsage(tokens: number): void | Promise<void>;
  log(level: LogLevel, message: string, data: Record<string, unknown> | undefined): void;
  /** Rejects if the lease is lost. */
  assertLease(): Promise<LeaseAssertion>;
  /** `key` tells the child from its siblings over all attempts. */
  enqueue(key: string, type: string, payload: unknown, options: ChildOptions): Promise<{ id: string }>;
  checkpoint(state: unknown): Promise<void>;
  /** Resolves when everything reported so far is stored. */
  flush(): Promise<void>;
}

/** Overall progress from the phase's place and its own progress. */
export function overallProgress(phasePercent: number, phase: Pick<PhaseScope, 'index' | 'count'> | undefined): number {
  return phase === undefined ? phasePercent : Math.round((phase.index * 100 + phasePercent) / phase.count);
}
