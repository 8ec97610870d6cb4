// Jobs that wait for others, without a daemon: `const { follow, family, suspend } = flowsOf(context)`.
import { expect } from 'vitest';
import { queueDueJobs } from '../../server/jobs/finish/due-jobs.ts';
import type { Dependency } from '../../server/jobs/flows/dependencies.ts';
import { openChildren } from '../../server/jobs/flows/fenced-children.ts';
import { followDependencies } from '../../server/jobs/flows/follow-dependencies.ts';
import type { Job } from '../../server/jobs/model/job.ts';
import { addJob, claim, finish, reread } from './jobs.ts';
import type { TenantContext } from './postgres/database.ts';

export const call = { name: 'all', position: 0, parallel: false };
const waiting = { kind: 'children', step: 'all', jobs: 1 } as const;

export function after(job: Job, more: Partial<Dependency> = {}): Dependency {
  return { id: job.id, onFailure: 'hold', succeeded: false, ...more };
}

export function flowsOf(context: TenantContext) {
  async function start(type: string): Promise<Job> {
    const { jobs } = await claim(context, { types: [type] });
    return jobs[0] as Job;
  }
  return {
    start,
    /** Everything that the follower can do now. */
    async follow(): Promise<void> {
      for (;;) {
        const followed = await followDependencies(context.db, context.schema);
        await queueDueJobs(context.db, context.schema, 'test');
        if (followed === undefined || (followed.complete && followed.handled === 0)) return;
      }
    },
    statusOf: async (job: Pick<Job, 'id'>) => (await reread(context, job)).status,
    /** A parent that runs, with a child that runs. */
    async family(): Promise<{ parent: Job; child: Job }> {
      const types = { parent: crypto.randomUUID(), child: crypto.randomUUID() };
      await addJob(context, { type: types.parent });
      const parent = await start(types.parent);
      await addJob(context, { type: types.child, parentId: parent.id });
      const child = await start(types.child);
      const held = { jobId: parent.id, leaseId: parent.leaseId as string };
      const options = { onFailure: 'stop' } as const;
      expect(await openChildren(context.db, context.schema, held, call, [child.id], options)).toBe(true);
      return { parent, child };
    },
    suspend: (parent: Job) => finish(context, parent, { kind: 'suspend', waiting, leftMs: 1e9 }),
  };
}
