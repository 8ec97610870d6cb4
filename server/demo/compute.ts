// A job that computes without a pause: in a thread it blocks nobody, and can still be paused or canceled.
import { z } from 'zod';
import { defineJob } from '../worker/handlers/define-job.ts';

export const compute = defineJob({
  type: 'demo.compute',
  isolation: 'thread',
  payload: z.object({ limit: z.int().min(2).max(50_000_000).default(2_000_000) }),
  run({ payload }) {
    const composite = new Uint8Array(payload.limit + 1);
    let primes = 0;
    for (let n = 2; n <= payload.limit; n++) {
      if (composite[n] === 1) continue;
      primes += 1;
      for (let multiple = n * n; multiple <= payload.limit; multiple += n) composite[multiple] = 1;
    }
    return { primes };
  },
});
