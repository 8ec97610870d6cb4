import { beforeAll, expect, test } from 'vitest';
import { statsRoutes } from '../../../../server/http/resources/stats.ts';
import { findExpiredLeases, recoverLease } from '../../../../server/jobs/finish/recover.ts';
import { Metrics } from '../../../../server/stats/metrics.ts';
import { useApp } from '../../../support/http/app.ts';
import { addJobs, claim, expireLease, finish } from '../../../support/jobs.ts';
import { addTenant, useTenant } from '../../../support/postgres/database.ts';
import { createTasks } from '../../../support/tasks.ts';

const context = useTenant();
const metrics = new Metrics({ perTenant: true, version: '1' });
const app = useApp(context, () => ({ routes: [statsRoutes()] }));
let key: string;

beforeAll(async () => {
  key = await app.keyFor(context.tenant.id, ['read']);
  await addJobs(context, [{}, {}, {}, { queue: 'mail', remote: true }]);
  const { jobs } = await claim(context, { limit: 2 });
  await finish(context, jobs[0]!);
  await expireLease(context, jobs[1]!.leaseId!);
  const first = '00000000-0000-0000-0000-000000000000';
  for (const lease of await findExpiredLeases(context.db, context.schema, 0, first, 10)) {
    await recoverLease(context.db, context.schema, lease, { actor: 'sweeper:t', graceSeconds: 0, tokenLimit: 0 });
  }
  const { statistics } = createTasks(context.db, [context.tenant], { metrics }).tasks;
  statistics.wake(context.tenant.slug);
  // The first run creates the follower, the second one counts.
  await statistics.runOnce();
  await statistics.runOnce();
});

const get = (path: string) => app.request('GET', path, { key });

test('the snapshot has counts by status and by queue', async () => {
  const snapshot = await get('/api/stats/snapshot');
  expect(snapshot.status).toBe(200);
  expect(snapshot.body).toMatchObject({
    jobs: { queued: 2, running: 0, failed_last_24h: 1 },
    leases: { active: 0, expired_last_24h: 1 },
  });
  expect(snapshot.body.oldest_queued_seconds).toBeGreaterThan(0);
  const mail = await get('/api/stats/snapshot?queue=mail');
  expect(mail.body.jobs.queued).toBe(1);
  expect(mail.body.oldest_queued_seconds).toBeGreaterThan(0);
  expect((await get('/api/stats/snapshot?queue=default')).body.oldest_queued_seconds).toBeGreaterThan(0);
  expect((await get('/api/stats/snapshot?queue=other')).body.oldest_queued_seconds).toBe(0);
  const jobs = await get('/api/stats/jobs');
  expect(jobs.body).toMatchObject({ total: 4, counts: { QUEUED: 2, SUCCESS: 1, ERROR: 1, PAUSED: 0 } });
  const first = await get('/api/stats/queues?limit=1');
  expect(first.body.queues).toMatchObject([{ queue: 'default', counts: { QUEUED: 1 } }]);
  const second = await get(`/api/stats/queues?limit=1&cursor=${first.body.next_cursor}`);
  expect(second.body).toMatchObject({ queues: [{ queue: 'mail' }], next_cursor: null });
});

test('charts are returned, and refusals name the field', async () => {
  const chart = await get('/api/stats/timeseries?metric=enqueued&bucket=5m&range=1h');
  expect(chart.body).toMatchObject({ metric: 'enqueued', bucket: '5m' });
  expect(chart.body.points).toHaveLength(12);
  expect(chart.body.points.reduce((sum: number, p: { value: number }) => sum + p.value, 0)).toBe(4);
  expect(chart.body.points[0].ts).toMatch(/^\d{4}-\d\d-\d\dT\d\d:\d[05]:00Z$/);
  for (const bad of ['metric=nope', 'metric=queued&bucket=1s', 'metric=queued&range=99d', 'metric=queued&x=1', '']) {
    expect([bad, (await get(`/api/stats/timeseries?${bad}`)).status]).toEqual([bad, 400]);
  }
});

test('attempts whose lease expired are listed', async () => {
  const { body } = await get('/api/stats/zombies');
  expect(body.zombies).toMatchObject([{ owner: 'w1', attempt: 1, became_of: 'failed' }]);
});

test('metrics have queue depth and age, by tenant on request', async () => {
  const text = await metrics.registry.metrics();
  expect(text).toContain('leasehold_queue_jobs{tenant="acme",status="QUEUED"} 2');
  const [, oldest] = /leasehold_queue_oldest_seconds\{tenant="acme"\} ([\d.e-]+)/.exec(text) ?? [];
  expect(Number(oldest)).toBeGreaterThan(0);
});

test('another tenant sees none of it', async () => {
  const other = await addTenant(context.db, 'other');
  await app.deps.registry.refresh();
  const theirs = await app.keyFor(other.tenant.id, ['read']);
  const jobs = await app.request('GET', '/api/stats/jobs', { key: theirs });
  expect(jobs.body.total).toBe(0);
  expect((await app.request('GET', '/api/stats/zombies', { key: theirs })).body.zombies).toEqual([]);
});
