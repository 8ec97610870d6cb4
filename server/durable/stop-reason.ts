// The reasons for which an attempt must stop. The attempt's signal is aborted with one of them; the handler sees a
// JobStopped error that carries it.
import type { Spent } from '../jobs/model/job-budget.ts';
import type { CancelDetail, StopRequest } from '../jobs/model/job-values.ts';
import type { AwaitedCalls, Waiting } from '../jobs/model/waiting.ts';
import { maxTimerMs } from '../kernel/limits.ts';

/** `by` has the author, reason and time of the stop request. */
export type StopReason =
  | { kind: 'paused'; by?: CancelDetail | undefined }
  | { kind: 'canceled'; by?: CancelDetail | undefined }
  | { kind: 'leaseLost' }
  | { kind: 'drained'; onDrain: 'pause' | 'requeue' }
  | { kind: 'timedOut'; afterSeconds: number; phase?: string | undefined }
  | ({ kind: 'budgetSpent' } & Spent)
  /** The handler waits for long: it runs again from the top when the wait is over. */
  | { kind: 'suspended'; waiting: Waiting; leftMs: number; awaited?: AwaitedCalls | undefined };

/** Undefined if no stop was requested. */
export function requestedStop({ cancelIntent, cancelDetail }: StopRequest): StopReason | undefined {
  if (cancelIntent === null) return undefined;
  return { kind: cancelIntent === 'pause' ? 'paused' : 'canceled', by: cancelDetail ?? undefined };
}

const messages: Record<StopReason['kind'], string> = {
  paused: 'The job was asked to pause',
  canceled: 'The job was canceled',
  leaseLost: 'The lease is no longer held',
  drained: 'The daemon is shutting down',
  timedOut: 'The time is up',
  budgetSpent: 'A budget of the job is spent',
  suspended: 'The job waits, and runs again when the wait is over',
};

/** The error with which waiting calls of a stopped handler reject, and the reason of its signal. */
export class JobStopped extends Error {
  readonly reason: StopReason;
  constructor(reason: StopReason) {
    super(messages[reason.kind]);
    // The name by which libraries distinguish an abort from a failure.
    this.name = 'AbortError';
    this.reason = reason;
  }
}

/** Returns the reason of an aborted signal; undefined if other code aborted it. */
export function stopReasonOf(signal: AbortSignal): StopReason | undefined {
  if (!signal.aborted) return undefined;
  const reason: unknown = signal.reason;
  if (reason instanceof JobStopped) return reason.reason;
  return isStopReason(reason) ? reason : undefined;
}

function isStopReason(value: unknown): value is StopReason {
  return typeof value === 'object' && value !== null && 'kind' in value && String(value.kind) in messages;
}

// Checks for calls of a handler that must stop, and sleeps that end with the stop.

export interface Stopping {
  readonly signal: AbortSignal;
  /** Aborts the signal now if the lease has expired, for example while the process was suspended. Never rejects. */
  check?(): void | Promise<void>;
}

export function stopped(signal: AbortSignal): JobStopped {
  return new JobStopped(stopReasonOf(signal) ?? { kind: 'canceled' });
}

export function throwIfStopped(signal: AbortSignal): void {
  if (signal.aborted) throw stopped(signal);
}

/**
 * Call it after an answer has arrived and before acting on it. The process may have been suspended since the server
 * answered, and another worker may have the job.
 */
export async function throwIfLeaseLost(stopping: Stopping): Promise<void> {
  await stopping.check?.();
  if (stopReasonOf(stopping.signal)?.kind === 'leaseLost') throw stopped(stopping.signal);
}

/** The same check before code begins, for any reason to stop. */
export async function throwIfMustStop(stopping: Stopping): Promise<void> {
  await stopping.check?.();
  throwIfStopped(stopping.signal);
}

export async function sleep(ms: number, stopping: Stopping): Promise<void> {
  for (let left = ms; left > maxTimerMs; left -= maxTimerMs) await wait(maxTimerMs, stopping);
  await wait(ms > maxTimerMs ? ms % maxTimerMs : ms, stopping);
}

function wait(ms: number, stopping: Stopping): Promise<void> {
  const { signal } = stopping;
  return new Promise((resolve, reject) => {
    if (signal.aborted) return reject(stopped(signal));
    const stop = () => {
      clearTimeout(timer);
      reject(stopped(signal));
    };
    const timer = setTimeout(async () => {
      // This timer may be the first code that runs after the process was suspended.
      await stopping.check?.();
      signal.removeEventListener('abort', stop);
      resolve();
    }, ms);
    signal.addEventListener('abort', stop, { once: true });
  });
}
