// What the calls of a handler do when it must stop, and sleeping until then.

import { maxTimerMs } from '../../kernel/limits.ts';
import { JobStopped, stopReasonOf } from './stop-reason.ts';

export interface Stopping {
  readonly signal: AbortSignal;
  /** Aborts it now if the lease has expired, e.g. while the process was suspended. */
  check?(): void;
}

export function stopped(signal: AbortSignal): JobStopped {
  return new JobStopped(stopReasonOf(signal) ?? { kind: 'canceled' });
}

export function throwIfStopped(signal: AbortSignal): void {
  if (signal.aborted) throw stopped(signal);
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
    const timer = setTimeout(() => {
      // This timer may be the first code that runs after the process was suspended.
      stopping.check?.();
      signal.removeEventListener('abort', stop);
      resolve();
    }, ms);
    signal.addEventListener('abort', stop, { once: true });
  });
}
