// Capacity is never exceeded by concurrent requests, and every request is served in the end.
import { expect, test } from 'vitest';
import { claimWithinCapacity } from '../../../server/scheduler/claim-within-capacity.ts';
import { useScheduler, workerId } from '../../support/http/scheduler.ts';
import { addJob, addJobs, finish } from '../../support/jobs.ts';
import { staysOpen } from '../../support/postgres/database.ts';

const api = useScheduler();
type Given = Record<string, unknown>;
const claimed = async (given: Given) => {
  const addon_id = given.addon_id ?? 'visuals';
  const { job_id } = await api.submit({ addon_id, ...given });
  await api.claim({ addon_id });
  return job_id as string;
};
const ask = async (job_id: string) => (await api.post('/lease/request', { job_id })).body;
const release = async (job_id: string, lease_id: string) =>
  expect(
    (await api.post(`/lease/${lease_id}/release`, { job_id, worker_id: workerId, status: 'SUCCEEDED' })).status,
  ).toBe(200);
const inProcess = (limit = 100) =>
  claimWithinCapacity(api.tenant.db, api.tenant.schema, { owner: 'daemon', limit, leaseSeconds: 15 });
const used = async () => (await api.get('/stats/snapshot')).body.capacity.used;

test('many concurrent workers, and daemons, never exceed the total', async () => {
  await api.capacity({ capacity_units: 70 });
  const ids = await Promise.all(Array.from({ length: 12 }, () => claimed({ cost_units: 15 })));
  await addJobs(
    api.tenant,
    Array.from({ length: 4 }, () => ({ costUnits: 15 })),
  );
  const [local, ...answers] = await Promise.all([inProcess(), ...ids.map(ask), inProcess()]);
  const granted = answers.filter((answer) => answer.approved === true).length;
  const last = answers.at(-1) as Awaited<ReturnType<typeof inProcess>>;
  const running = granted + (local?.jobs.length ?? 0) + last.jobs.length;
  expect(running * 15).toBeLessThanOrEqual(70);
  expect(await used()).toBe(running * 15);
});

test('a claim of a daemon within a capacity says that it skipped locked jobs', async () => {
  await api.capacity({ capacity_units: 70 });
  const { db, schema } = api.tenant;
  const [locked] = await addJobs(api.tenant, [{ costUnits: 1 }]);
  const held = await db.transaction(async (tx) => {
    await tx.query(`select 1 from ${schema}.jobs where id = $1 for update`, [locked!.id]);
    return inProcess();
  }, staysOpen);
  expect(held.hasSkipped).toBe(true);
  expect(held.jobs.map(({ id }) => id)).not.toContain(locked!.id);
  const next = await inProcess();
  expect(next.jobs.map(({ id }) => id)).toContain(locked!.id);
  expect(next.hasSkipped).toBe(false);
  for (const job of [...held.jobs, ...next.jobs]) await finish(api.tenant, job);
});

test('one job is claimed once, however many workers ask', async () => {
  for (let i = 0; i < 5; i++) await api.submit({ addon_id: 'race' });
  const jobs = await Promise.all(
    Array.from({ length: 20 }, (_, i) => api.claim({ addon_id: 'race', worker_id: `w${i}` })),
  );
  const ids = jobs.filter(Boolean).map((job) => job.job_id);
  expect(ids).toHaveLength(5);
  expect(new Set(ids).size).toBe(5);
});

test('the lease of one job is granted once, however many workers ask', async () => {
  await api.capacity({ capacity_units: 100 });
  const id = await claimed({ cost_units: 10 });
  const answers = await Promise.all(Array.from({ length: 8 }, () => api.post('/lease/request', { job_id: id })));
  expect(new Set(answers.map((answer) => answer.body.lease?.lease_id)).size).toBe(1);
  expect(await used()).toBe(10);
});

test('a queue has its own capacity inside the total', async () => {
  await api.capacity({ capacity_units: 100, queue_capacity_units: { small: 10 } });
  expect((await ask(await claimed({ addon_id: 'small', cost_units: 10 }))).approved).toBe(true);
  expect(await ask(await claimed({ addon_id: 'small', cost_units: 5 }))).toMatchObject({
    approved: false,
    reason: 'Capacity exceeded: used=10, requested=5, capacity=10',
  });
  expect((await ask(await claimed({ addon_id: 'large', cost_units: 50 }))).approved).toBe(true);
});

test('with capacities of queues only, the snapshot shows their sum', async () => {
  await api.capacity({ queue_capacity_units: { small: 10, large: 50 } });
  expect((await ask(await claimed({ addon_id: 'small', cost_units: 10 }))).approved).toBe(true);
  expect((await ask(await claimed({ addon_id: 'unlimited', cost_units: 30 }))).approved).toBe(true);
  expect((await ask(await claimed({ addon_id: 'small', cost_units: 5 }))).approved).toBe(false);
  expect((await api.get('/stats/snapshot')).body.capacity).toEqual({ total: 60, used: 10, reserved: 5 });
});

test('a large waiting job is not overtaken by smaller ones of its priority', async () => {
  await api.capacity({ capacity_units: 70 });
  const first = await claimed({ cost_units: 40 });
  const { lease } = await ask(first);
  const big = await claimed({ cost_units: 50 });
  expect((await ask(big)).approved).toBe(false);
  const small = await claimed({ cost_units: 10 });
  expect(await ask(small)).toMatchObject({
    approved: false,
    reason: 'Capacity exceeded: used=40, requested=10, capacity=70, reserved=50',
  });
  expect((await api.get('/stats/snapshot')).body.capacity).toEqual({ total: 70, used: 40, reserved: 50 });
  await addJob(api.tenant, { costUnits: 5 });
  expect((await inProcess()).jobs).toEqual([]);
  await release(first, lease.lease_id);
  expect((await ask(big)).approved).toBe(true);
  expect((await ask(small)).approved).toBe(true);
  expect((await inProcess()).jobs).toHaveLength(1);
});

test('a job of higher priority takes over the reservation, one of lower priority does not', async () => {
  await api.capacity({ capacity_units: 70 });
  const first = await claimed({ cost_units: 60 });
  const { lease } = await ask(first);
  const low = await claimed({ cost_units: 20, priority: 'LOW' });
  expect((await ask(low)).approved).toBe(false);
  const urgentSmall = await claimed({ cost_units: 10, priority: 'URGENT' });
  expect((await ask(urgentSmall)).approved).toBe(true);
  const urgent = await claimed({ cost_units: 60, priority: 'URGENT' });
  expect((await ask(urgent)).approved).toBe(false);
  await release(first, lease.lease_id);
  expect((await ask(low)).approved).toBe(false);
  expect((await ask(urgent)).approved).toBe(true);
});

test('the reservation of a worker that gave up expires; a job that can never fit reserves nothing', async () => {
  await api.capacity({ capacity_units: 70 });
  expect((await ask(await claimed({ cost_units: 40 }))).approved).toBe(true);
  expect((await ask(await claimed({ cost_units: 71 }))).approved).toBe(false);
  expect((await api.get('/stats/snapshot')).body.capacity.reserved).toBe(0);
  expect((await ask(await claimed({ cost_units: 60 }))).approved).toBe(false);
  const small = await claimed({ cost_units: 10 });
  expect((await ask(small)).approved).toBe(false);
  const { db, schema } = api.tenant;
  await db.query(`update ${schema}.capacities set reserved_until = now() - interval '1 second'`);
  expect((await ask(small)).approved).toBe(true);
});

test('daemons claim in order within the capacity, and reserve for a large job', async () => {
  await api.capacity({ capacity_units: 20, queue_capacity_units: { narrow: 5 } });
  const jobs = await addJobs(api.tenant, [
    { costUnits: 99 },
    { costUnits: 10 },
    { queue: 'narrow', costUnits: 4 },
    { queue: 'narrow', costUnits: 4 },
    { costUnits: 5 },
    { costUnits: 15 },
    { costUnits: 1 },
  ]);
  const first = await inProcess();
  expect(first.jobs.map((job) => jobs.findIndex((j) => j.id === job.id))).toEqual([1, 2, 4]);
  expect((await ask(await claimed({ cost_units: 1 }))).approved).toBe(false);
  for (const job of first.jobs) await finish(api.tenant, job);
  const second = await inProcess();
  expect(second.jobs.map((job) => jobs.findIndex((j) => j.id === job.id))).toEqual([3, 5, 6]);
});

test('a cost raised by the worker counts from then on', async () => {
  await api.capacity({ capacity_units: 70 });
  const id = await claimed({ cost_units: 5 });
  const answer = await api.post('/lease/request', { job_id: id, cost_units: 30 });
  expect(answer.body.lease.cost_units).toBe(30);
  expect(await used()).toBe(30);
  const modest = await claimed({ cost_units: 50 });
  expect((await api.post('/lease/request', { job_id: modest, cost_units: 1 })).body.approved).toBe(false);
});
