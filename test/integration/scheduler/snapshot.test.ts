// The numbers of the scheduler API are those of every other API.
import { expect, test } from 'vitest';
import { resumeJob } from '../../../server/jobs/actions/resume.ts';
import { useScheduler } from '../../support/http/scheduler.ts';
import { addJob, addJobs, claim, finish } from '../../support/jobs.ts';

const api = useScheduler();

test('snapshots and charts agree, for daemons and remote workers', async () => {
  const { db, schema } = api.tenant;
  await api.run();
  const { lease } = await api.run();
  await api.expire(lease.lease_id);
  await api.sweep();
  // Beside the remote ones a daemon's: one runs, one failed and runs again, one was lost, one waits.
  await addJobs(api.tenant, [{}, {}, {}]);
  const local = await claim(api.tenant, { limit: 3 });
  await finish(api.tenant, local.jobs[1]!, { kind: 'fail', error: { code: 'X', message: 'no' } });
  await resumeJob(db, schema, { jobId: local.jobs[1]!.id, actor: 'user:ann' });
  await claim(api.tenant, { limit: 1 });
  await addJob(api.tenant);
  await finish(api.tenant, local.jobs[2]!, { kind: 'fail', error: { code: 'LEASE_EXPIRED', message: 'lost' } });

  const { capacity: _, ...snapshot } = (await api.get('/stats/snapshot')).body;
  const expected = {
    jobs: { queued: 1, running: 3, failed_last_24h: 3 },
    leases: { active: 3, expired_last_24h: 2 },
  };
  expect(snapshot).toEqual(expected);
  const other = await api.app.request('GET', '/api/stats/snapshot', { key: api.key });
  expect(other.body).toMatchObject(expected);
  const values = async (metric: string): Promise<number[]> =>
    (await api.get(`/stats/timeseries?metric=${metric}&bucket=1m&range=24h`)).body.points.map(
      (point: { value: number }) => point.value,
    );
  const sum = (all: number[]) => all.reduce((a, b) => a + b, 0);
  expect((await values('queued')).at(-1)).toBe(1);
  expect((await values('running')).at(-1)).toBe(3);
  expect((await values('leases_active')).at(-1)).toBe(3);
  expect(sum(await values('failed'))).toBe(3);
  expect(sum(await values('leases_expired'))).toBe(2);
});
