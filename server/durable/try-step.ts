// Runs the code of one durable step: its tries, its time limit, and the error of a step whose time is up.
import type { JobErrorCode } from '../jobs/model/job-errors.ts';
import { backoffMs, defaultBackoff } from '../kernel/backoff.ts';
import { maxTimerMs } from '../kernel/limits.ts';
import type { StepContext, StepOptions } from './durable-context.ts';
import { isRecoverable } from './job-error.ts';
import type { DurableEffects } from './step-store.ts';
import { JobStopped, type Stopping, sleep, throwIfMustStop, throwIfStopped } from './stop-reason.ts';

// The time that code has to end after its signal was aborted.
const graceMs = 5000;

export interface StepParts {
  name: string;
  options: StepOptions;
  stopping: Stopping;
  effects: DurableEffects;
}

/** Rejects with the last error when no tries are left, and with `JobStopped` when the handler must stop. */
export async function tryStep<T>(
  run: (step: StepContext) => T | Promise<T>,
  parts: StepParts,
): Promise<{ value: T; tries: number }> {
  const { name, stopping, effects } = parts;
  const { retry } = parts.options;
  for (let tries = 1; ; tries++) {
    await throwIfMustStop(stopping);
    try {
      return { value: await tryOnce(run, parts), tries };
    } catch (error) {
      throwIfStopped(stopping.signal);
      if (tries >= (retry?.attempts ?? 1) || !isRecoverable(error, { retry: null }, retry)) throw error;
      const delayMs = backoffMs({ ...defaultBackoff, ...retry }, tries, Math.random());
      effects.log('warn', `step ${name} failed and is retried`, { tries, delay_ms: delayMs, error: String(error) });
      await sleep(delayMs, stopping);
    }
  }
}

async function tryOnce<T>(run: (step: StepContext) => T | Promise<T>, parts: StepParts): Promise<T> {
  const { name, stopping, effects } = parts;
  const seconds = parts.options.timeoutSeconds;
  if (seconds === undefined) return run({ signal: stopping.signal });
  const limit = new AbortController();
  const giveUp = () => void effects.steps.timeOut(name, seconds).catch(() => {});
  let timer = setTimeout(
    () => {
      limit.abort(new JobStopped({ kind: 'timedOut', afterSeconds: seconds, phase: name }));
      // Code that does not end is fenced off with its attempt, because a second try must not run at the same time.
      timer = setTimeout(giveUp, graceMs);
    },
    Math.min(seconds * 1000, maxTimerMs),
  );
  try {
    const value = await run({ signal: AbortSignal.any([stopping.signal, limit.signal]) });
    if (!limit.signal.aborted) return value;
  } catch (error) {
    if (!limit.signal.aborted) throw error;
  } finally {
    clearTimeout(timer);
  }
  throw Object.assign(new Error(`Step ${name} ran longer than ${seconds} s.`), {
    code: 'TIMEOUT' satisfies JobErrorCode,
  });
}
