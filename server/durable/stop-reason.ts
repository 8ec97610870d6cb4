// Why an attempt must stop. The attempt's signal is aborted with one of these; the handler sees a JobStopped error
// that carries it.
import type { Spent } from '../jobs/model/job-budget.ts';
import type { CancelDetail, StopRequest } from '../jobs/model/job-values.ts';
import type { AwaitedCalls, Waiting } from '../jobs/model/waiting.ts';
import { maxTimerMs } from '../kernel/limits.ts';

/** `by` is what the stop request says: who, why, when. */
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

/** The error with which waiting calls of a stopped handler reject; also the reason of its signal. */
export class JobStopped extends Error {
  readonly reason: StopReason;
  constructor(reason: StopReason) {
    super(messages[reason.kind]);
    // The name by which libraries tell an abort from a failure.
    this.name = 'AbortError';
    this.reason = reason;
  }
}

/** The reason behind an aborted signal; undefined if it was aborted by other code. */
export function stopReasonOf(signal: AbortSignal): StopReason | undefined {
  if (!signal.aborted) return undefined;
  const reason: unknown = signal.reason;
  if (reason instanceof JobStopped) return reason.reason;
  return isStopReason(reason) ? reason : undefined;
}

function isStopReason(value: unknown): value is StopReason {
  return typeof value === 'object' && value !== null && 'kind' in value && String(value.kind) in messages;
}

// What the calls of a handler do when it must stop, and sleeping until then.

export interface Stopping {
  readonly signal: AbortSignal;
  /** Aborts it now if the lease has expired, e.g. while the process was suspended. Never rejects. */
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
 * answered, and another worker may have the job by now.
 */
export async function throwIfLeaseLost(stopping: Stopping): Promise<void> {
  await stopping.check?.();
  if (stopReasonOf(stopping.signal)?.kind === 'leaseLost') throw stopped(stopping.signal);
}

/** The same before code begins: also for any other reason to stop. */
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
