// Runs the code of a durable step or a phase: its tries, its time limit, and the error of code whose time is up.
import type { Job } from '../jobs/model/job.ts';
import type { JobErrorCode } from '../jobs/model/job-errors.ts';
import { backoffMs, defaultBackoff } from '../kernel/backoff.ts';
import { maxTimerMs } from '../kernel/limits.ts';
import type { RetryOptions } from './durable-context.ts';
import { isRecoverable } from './job-error.ts';
import type { DurableEffects } from './step-store.ts';
import { JobStopped, type Stopping, type StopReason, sleep, throwIfMustStop, throwIfStopped } from './stop-reason.ts';

// The time that code has to end after its signal was aborted.
const defaultGraceMs = 5000;

export interface TriedCode<T> {
  kind: 'step' | 'phase';
  name: string;
  /** The signal is aborted when the handler must stop, or when the time of this try is up. */
  run(signal: AbortSignal): T | Promise<T>;
  retry?: RetryOptions | undefined;
  timeoutSeconds?: number | undefined;
  stopping: Stopping;
  effects: DurableEffects;
  /** For the codes that the job retries by itself. */
  job?: Pick<Job, 'retry'> | undefined;
  graceMs?: number | undefined;
  /** Called before another try. A rejection ends the tries. */
  beginAgain?(): Promise<void>;
  /** Ends code that has not ended after its time and the grace. By default the run is stopped. */
  giveUp?(reason: StopReason): void;
  /** A result that came after the time, within the grace, counts. */
  keepsLateResult?: boolean;
}

/** Rejects with the last error when no tries are left, and with `JobStopped` when the handler must stop. */
export async function tryStep<T>(code: TriedCode<T>): Promise<{ value: T; tries: number }> {
  const { kind, name, retry, stopping, effects, job = { retry: null } } = code;
  for (let tries = 1; ; tries++) {
    await throwIfMustStop(stopping);
    try {
      return { value: await tryOnce(code), tries };
    } catch (error) {
      throwIfStopped(stopping.signal);
      if (tries >= (retry?.attempts ?? 1) || !isRecoverable(error, job, retry)) throw error;
      const delayMs = backoffMs({ ...defaultBackoff, ...retry }, tries, Math.random());
      effects.log('warn', `${kind} ${name} failed and is retried`, { tries, delay_ms: delayMs, error: String(error) });
      await sleep(delayMs, stopping);
      await code.beginAgain?.();
    }
  }
}

async function tryOnce<T>(code: TriedCode<T>): Promise<T> {
  const { kind, name, stopping, effects, timeoutSeconds: seconds, graceMs = defaultGraceMs } = code;
  if (seconds === undefined) return code.run(stopping.signal);
  const limit = new AbortController();
  const reason: StopReason = { kind: 'timedOut', afterSeconds: seconds, phase: name };
  // Code that does not end is fenced off with its attempt, because a second try must not run at the same time.
  const giveUp = code.giveUp ?? (() => void effects.steps.timeOut(name, seconds).catch(() => {}));
  let timer = setTimeout(
    () => {
      limit.abort(new JobStopped(reason));
      timer = setTimeout(() => giveUp(reason), graceMs);
    },
    Math.min(seconds * 1000, maxTimerMs),
  );
  try {
    const value = await code.run(AbortSignal.any([stopping.signal, limit.signal]));
    if (!limit.signal.aborted || code.keepsLateResult) return value;
  } catch (error) {
    if (!limit.signal.aborted) throw error;
  } finally {
    clearTimeout(timer);
  }
  const what = kind === 'step' ? 'Step' : 'Phase';
  throw Object.assign(new Error(`${what} ${name} ran longer than ${seconds} s.`), {
    code: 'TIMEOUT' satisfies JobErrorCode,
  });
}
