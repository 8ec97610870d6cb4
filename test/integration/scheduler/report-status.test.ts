// Reports of a worker on a job that runs, beside its heartbeats.
import { expect, test } from 'vitest';
import { releaseLease } from '../../../server/scheduler/release-lease.ts';
import { heartbeat } from '../../../server/scheduler/worker-lease.ts';
import { useScheduler, workerId } from '../../support/http/scheduler.ts';

const api = useScheduler();
const unknown = '0197c2d0-0000-7000-8000-000000000000';

test('a running job accepts reports of its worker, by lease or by name', async () => {
  const { job, lease } = await api.run();
  const report = (body: object) => api.post(`/jobs/${job.job_id}/status`, { state: 'RUNNING', ...body });
  const named = await report({ worker_id: workerId, progress: 0.07, note: 'step 1' });
  expect(named).toMatchObject({ status: 200, body: { job: { progress: 0.07, note: 'step 1' } } });
  const fenced = await report({ lease_id: lease.lease_id, progress: 0.5 });
  expect(fenced.body.job).toMatchObject({ progress: 0.5, note: 'step 1' });
  expect((await report({ worker_id: workerId })).status).toBe(200);
  const nobody = await report({ progress: 0.9, note: 'from whom?' });
  expect(nobody).toMatchObject({ status: 400, body: { code: 'INVALID_FIELD', field: 'lease_id' } });
  expect((await report({ worker_id: 'somebody-else', progress: 0.9 })).status).toBe(409);
  expect(await report({ lease_id: unknown, progress: 0.9 })).toMatchObject({
    status: 409,
    body: { code: 'LEASE_LOST' },
  });
  expect((await api.get(`/jobs/${job.job_id}`)).body.job).toMatchObject({ progress: 0.5, note: 'step 1' });
  const { body } = await api.get(`/jobs/${job.job_id}/events`);
  const reported = body.events.filter((event: { type: string }) => event.type === 'JOB_PROGRESS');
  expect(reported.map((event: { data: object }) => event.data)).toMatchObject([
    { progress: 7, message: 'step 1' },
    { progress: 50, message: 'step 1' },
  ]);
});

test('a daily budget stops remote jobs that use its unit, and a person is asked', async () => {
  const { db, schema } = api.tenant;
  const rules = { tokenLimit: 0, budgets: { daily: { unit: 'cents', limit: 100, per: 'day' as const } } };
  const [first, second, free] = [await api.run(), await api.run(), await api.run()];
  const beat = async ({ job, lease }: typeof first, cents: number) => {
    const holder = { jobId: job.job_id, leaseId: lease.lease_id, workerId };
    const { job: now } = await heartbeat(db, schema, { ...holder, usage: { cents }, rules });
    return now.cancelRequested;
  };
  expect(await beat(first, 60)).toBe(false);
  expect(await beat(second, 50)).toBe(true);
  expect(await beat(free, 0)).toBe(false);
  const release = { result: null, error: undefined, metrics: undefined, recoverable: true, requeue: false, rules };
  const end = ({ job, lease }: typeof first, status: 'SUCCEEDED' | 'CANCELED') =>
    releaseLease(db, schema, { jobId: job.job_id, leaseId: lease.lease_id, workerId, status, ...release });
  expect((await end(second, 'CANCELED')).job).toMatchObject({ status: 'ERROR', error: { code: 'BUDGET_SPENT' } });
  const asked = await db.query(`select status from ${schema}.questions where job_id = $1`, [second.job.job_id]);
  expect(asked).toEqual([{ status: 'open' }]);
  expect((await end(first, 'SUCCEEDED')).job.status).toBe('SUCCESS');
  expect((await end(free, 'CANCELED')).job.status).toBe('CANCELED');
});
