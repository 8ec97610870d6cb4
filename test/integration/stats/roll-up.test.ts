import { expect, test } from 'vitest';
import { cancelJob } from '../../../server/jobs/actions/pause-and-cancel.ts';
import { resumeJob } from '../../../server/jobs/actions/resume.ts';
import { readCounts, readOldestSeconds, readQueueCounts, readSnapshot } from '../../../server/stats/read-counts.ts';
import { rollUpOnce } from '../../../server/stats/roll-up.ts';
import { type MetricName, readTimeseries } from '../../../server/stats/timeseries.ts';
import { addJob, addJobs, claim, finish } from '../../support/jobs.ts';
import { useTenantPerTest } from '../../support/postgres/database.ts';

const context = useTenantPerTest();

async function rollUp(where = context, limit?: number): Promise<void> {
  for (let i = 0; i < 1000; i++) if ((await rollUpOnce(where.db, where.schema, limit)).complete) return;
  throw new Error('the rollup never came to an end');
}

async function series(metric: MetricName, where = context, bucket = '1m', range = '10m', queue?: string) {
  const { points } = await readTimeseries(where.db, where.schema, { metric, bucket, range, queue });
  return points.map((point) => point.value);
}
const sum = (values: number[]) => values.reduce((a, b) => a + b, 0);

/** Jobs that ended in every way, counted. */
async function countedLife(): Promise<void> {
  await addJobs(context, [{}, {}, {}, { queue: 'mail' }, { queue: 'mail' }, { runAt: '2999-01-01T00:00:00Z' }]);
  const { jobs } = await claim(context, { limit: 4 });
  await finish(context, jobs[0]!);
  await finish(context, jobs[1]!, { kind: 'fail', error: { code: 'HANDLER_ERROR', message: 'no' } });
  await finish(context, jobs[2]!, { kind: 'fail', error: { code: 'LEASE_EXPIRED', message: 'lost' } });
  const by = { actor: 'user:ann' };
  await resumeJob(context.db, context.schema, { ...by, jobId: jobs[1]!.id });
  await cancelJob(context.db, context.schema, { ...by, jobId: jobs[2]!.id });
  await rollUp(context, 3);
  await rollUp();
}

test('counts follow every change of status, and equal those of a scan', async () => {
  await countedLife();
  const scanned = await context.db.query<{ status: string; count: number }>(
    `select status, count(*)::int as count from ${context.schema}.jobs group by 1`,
  );
  const counts = await readCounts(context.db, context.schema);
  for (const { status, count } of scanned) expect([status, counts[status as 'QUEUED']]).toEqual([status, count]);
  expect(sum(Object.values(counts))).toBe(6);
  expect(counts).toMatchObject({ QUEUED: 2, RUNNING: 1, SUCCESS: 1, CANCELED: 1, PENDING: 1, ERROR: 0 });
  expect(await readSnapshot(context.db, context.schema)).toEqual({
    jobs: { queued: 3, running: 1, failed_last_24h: 2 },
    leases: { active: 1, expired_last_24h: 1 },
  });
  const queues = await readQueueCounts(context.db, context.schema, { limit: 10 });
  expect(queues.map((q) => [q.queue, sum(Object.values(q.counts))])).toEqual([
    ['default', 4],
    ['mail', 2],
  ]);
  expect(await readOldestSeconds(context.db, context.schema)).toBeGreaterThan(0);
});

test('charts have every point, counts at the end of each bucket, and only their queue', async () => {
  await countedLife();
  for (const [metric, expected] of [
    ['enqueued', 6],
    ['started', 4],
    ['succeeded', 1],
    ['failed', 2],
    ['canceled', 1],
    ['leases_expired', 1],
  ] as const) {
    const values = await series(metric);
    expect([metric, values.length, sum(values)]).toEqual([metric, 10, expected]);
  }
  expect((await series('queued')).at(-1)).toBe(3);
  expect((await series('running')).at(-1)).toBe(1);
  expect((await series('leases_active')).at(-1)).toBe(1);
  expect((await series('queued'))[0]).toBe(0);
  expect(sum(await series('enqueued', context, '1m', '10m', 'mail'))).toBe(2);
  expect(sum(await series('enqueued', context, '1d', '31d'))).toBe(6);
  expect((await series('run_p95')).length).toBe(10);
  expect(sum(await series('wait_p50'))).toBeGreaterThan(0);
});

test('a chart shows the counts of the past', async () => {
  const where = context;
  await addJobs(where, [{}, {}, {}]);
  const { jobs } = await claim(where, { limit: 2 });
  await finish(where, jobs[0]!);
  // Enqueued an hour ago, begun half an hour ago, ended just now.
  for (const [type, ago] of [
    ['job.enqueued', '60 minutes'],
    ['job.started', '30 minutes'],
  ]) {
    await where.db.query(`update ${where.schema}.events set at = at - $2::interval where type = $1`, [type, ago]);
  }
  await where.db.query(
    `update ${where.schema}.jobs set run_at = run_at - interval '60 minutes', started_at = started_at - interval '30 minutes'`,
  );
  await rollUp(where);
  const queued = await series('queued', where, '10m', '2h');
  const running = await series('running', where, '10m', '2h');
  expect(queued[0]).toBe(0);
  expect(Math.max(...queued)).toBe(3);
  expect(queued.at(-1)).toBe(1);
  expect(Math.max(...running)).toBe(2);
  expect(running.at(-1)).toBe(1);
  const wait = Math.max(...(await series('wait_p50', where, '10m', '2h')));
  const run = Math.max(...(await series('run_p50', where, '10m', '2h')));
  expect(wait).toBeGreaterThan(1200);
  expect(wait).toBeLessThan(2700);
  expect(run).toBeGreaterThan(1200);
  expect(run).toBeLessThan(2700);
});

test('bounds of bucket and range are refused by name', async () => {
  const ask = (bucket: string, range: string) => series('queued', context, bucket, range);
  await expect(ask('1s', '1h')).rejects.toMatchObject({ code: 'INVALID_FIELD', extra: { field: 'query.bucket' } });
  await expect(ask('2d', '4d')).rejects.toMatchObject({ code: 'INVALID_FIELD' });
  await expect(ask('1h', '30m')).rejects.toMatchObject({ extra: { field: 'query.range' } });
  await expect(ask('1h', '400d')).rejects.toMatchObject({ extra: { field: 'query.range' } });
  await expect(ask('1m', '31d')).rejects.toMatchObject({ extra: { field: 'query.bucket' } });
  expect(await ask('1d', '31d')).toHaveLength(31);
});

test('concurrent roll-ups count every event once', async () => {
  const where = context;
  for (let i = 0; i < 20; i++) await addJob(where);
  await Promise.all(Array.from({ length: 6 }, () => rollUp(where, 4).catch(() => {})));
  await rollUp(where, 4);
  expect(sum(await series('enqueued', where))).toBe(20);
  expect((await readCounts(where.db, where.schema)).QUEUED).toBe(20);
});
