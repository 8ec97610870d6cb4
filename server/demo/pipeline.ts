// A pipeline of three phases that reports progress: the sample to pause, resume and cancel.
import { z } from 'zod';
import { defineJob, type JobContext } from '../worker/handlers/define-job.ts';

export const pipeline = defineJob({
  type: 'demo.pipeline',
  payload: z.object({
    items: z.int().min(1).max(10_000).default(30),
    seconds: z.number().min(0).max(3600).default(3).describe('How long the whole pipeline takes.'),
  }),
  phases: [
    {
      name: 'download',
      run: async (context) => {
        await spread(context, context.payload.seconds / 3);
        return { items: context.payload.items };
      },
    },
    {
      name: 'process',
      run: async (context) => {
        await spread(context, context.payload.seconds / 3);
        const items = context.phaseResult('download')?.items ?? 0;
        return { processed: items, checksum: items * 7 };
      },
    },
    {
      name: 'upload',
      run: async (context) => {
        await spread(context, context.payload.seconds / 3);
        await context.lease.assert();
        return { uploaded: context.phaseResult('process')?.processed ?? 0, fence: context.lease.fence };
      },
    },
  ],
});

/** Ten equal steps, each of which can be interrupted. */
async function spread(context: Pick<JobContext, 'sleep' | 'progress'>, seconds: number): Promise<void> {
  for (let step = 1; step <= 10; step++) {
    await context.sleep(seconds * 100);
    context.progress(step * 10, `step ${step} of 10`);
  }
}
