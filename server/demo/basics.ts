// Small sample jobs: one that answers at once, one that takes its time, one that fails, one that burns tokens.
import { z } from 'zod';
import { defineJob } from '../worker/handlers/define-job.ts';
import { Fatal, Recoverable } from '../worker/handlers/handler-errors.ts';

/** Returns its payload. */
export const echo = defineJob({
  type: 'demo.echo',
  run: (context) => context.payload,
});

/** Takes `seconds`, tells its progress, and stops when asked. */
export const sleep = defineJob({
  type: 'demo.sleep',
  payload: z.object({ seconds: z.number().min(0).max(86_400).default(10) }),
  async run({ payload, progress, sleep }) {
    // At most ten reports, at least one a second for short jobs.
    const steps = Math.max(1, Math.min(10, Math.ceil(payload.seconds)));
    for (let step = 1; step <= steps; step++) {
      await sleep((payload.seconds * 1000) / steps);
      progress((step * 100) / steps, `slept ${((payload.seconds * step) / steps).toFixed(1)} s`);
    }
    return { slept: payload.seconds };
  },
});

/** Fails the first `times` attempts, then succeeds. */
export const fail = defineJob({
  type: 'demo.fail',
  payload: z.object({
    times: z.int().min(0).max(1000).default(1),
    recoverable: z.boolean().default(true),
  }),
  retry: { attempts: 3, kind: 'fixed', delaySeconds: 1 },
  run({ payload, job, log }) {
    if (job.attempt > payload.times) return { attempts: job.attempt };
    log.warn('failing as asked', { attempt: job.attempt, times: payload.times });
    const message = `failing on purpose, attempt ${job.attempt} of ${payload.times}`;
    throw payload.recoverable ? new Recoverable(message) : new Fatal(message);
  },
});

/** Reports `tokens` in ten parts; above the job's limit it is stopped. */
export const tokens = defineJob({
  type: 'demo.tokens',
  payload: z.object({ tokens: z.int().min(0).max(1_000_000_000).default(1000) }),
  async run({ payload, addUsage, progress, sleep }) {
    const part = Math.ceil(payload.tokens / 10);
    let used = 0;
    for (let step = 1; used < payload.tokens; step++) {
      const now = Math.min(part, payload.tokens - used);
      await addUsage({ tokens: now });
      used += now;
      progress(step * 10, `${used} tokens`);
      await sleep(50);
    }
    return { used };
  },
});
