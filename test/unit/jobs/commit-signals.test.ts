import { expect, it } from 'vitest';
import { CommitSignals } from '../../../server/jobs/commit-signals.ts';
import type { Enqueued } from '../../../server/jobs/enqueue/enqueue.ts';
import type { Job } from '../../../server/jobs/model/job.ts';
import type { Tenant } from '../../../server/tenants/tenant.ts';

const [createdAt, runAt] = ['2026-01-01T00:00:00Z', '2026-01-01T00:00:05Z'];

function enqueued(job: Partial<Job>, kind: 'created' | 'replayed' = 'created'): Enqueued {
  return { kind, job: { targetId: null, createdAt, runAt, ...job } as Job };
}

function workOf(jobs: Enqueued[]) {
  const signals = new CommitSignals();
  let work: { isLater: boolean; dueInMs: number | undefined } | undefined;
  signals.onWorkAvailable((_, given) => {
    work = given;
  });
  signals.workAvailable({} as Tenant, { enqueued: jobs });
  return work;
}

it('scheduled jobs cannot be claimed before the first of them is due', () => {
  const work = workOf([enqueued({ status: 'PENDING' }), enqueued({ status: 'PENDING' })]);
  expect(work).toMatchObject({ isLater: true, dueInMs: 5000 });
});

it('reports any other job as claimable now', () => {
  const pending = enqueued({ status: 'PENDING' });
  expect(workOf([])).toMatchObject({ isLater: false, dueInMs: undefined });
  expect(workOf([pending, enqueued({ status: 'QUEUED' })])).toMatchObject({ isLater: false });
  // Its lane may have had others that were due.
  expect(workOf([enqueued({ status: 'PENDING', targetId: 'door' })])).toMatchObject({ isLater: false });
  expect(workOf([enqueued({ status: 'PENDING' }, 'replayed')])).toMatchObject({ isLater: false });
});
