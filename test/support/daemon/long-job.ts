// A job whose handler runs until it is stopped, and tells that it has begun. A job is RUNNING a moment earlier, from its
// claim on; a drain in that moment requeues it instead of pausing it.
import { expect } from 'vitest';
import type { Job } from '../../../server/jobs/model/job.ts';
import { defineJob } from '../../../server/worker/handlers/define-job.ts';
import { eventually } from '../eventually.ts';
import { reread } from '../jobs.ts';
import type { TenantContext } from '../postgres/database.ts';

export const longJob = defineJob({
  type: 'test.long',
  async run({ progress, sleep }) {
    progress(1);
    await sleep(600_000);
  },
});

export async function untilBegun(context: TenantContext, job: Pick<Job, 'id'>): Promise<void> {
  await eventually(async () => expect(await reread(context, job)).toMatchObject({ status: 'RUNNING', progress: 1 }));
}
