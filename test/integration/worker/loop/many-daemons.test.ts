// Several daemons on one database: none holds what another could start now, and a wake-up does not make all of them
// claim. How lanes spread over processes is measured by W13 of the benchmark.
import { setTimeout as delay } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { defineJob } from '../../../../server/worker/handlers/define-job.ts';
import { startDaemon } from '../../../support/daemon/daemon.ts';
import { eventually } from '../../../support/eventually.ts';
import { addJobs } from '../../../support/jobs.ts';
import { useTenant } from '../../../support/postgres/database.ts';

const context = useTenant();
const computing = (type: string) =>
  defineJob({
    type,
    run: () => {
      const end = performance.now() + 10;
      while (performance.now() < end);
      return null;
    },
  });

async function isDone(): Promise<void> {
  const open = await context.db.query(`select 1 from ${context.schema}.jobs where status not in ('SUCCESS')`);
  expect(open).toEqual([]);
}

/** How many attempts of the type each daemon has started. */
async function sharesOf(type: string): Promise<number[]> {
  const rows = await context.db.query<{ count: number }>(
    `select count(*)::int as count from ${context.schema}.events e join ${context.schema}.jobs j on j.id = e.job_id
      where e.type = 'job.started' and j.type = $1 group by e.actor`,
    [type],
  );
  return rows.map(({ count }) => count);
}

test('next to other daemons, a daemon holds no more jobs that compute than it runs within a moment', async () => {
  const { db, schema } = context;
  await db.query(
    `insert into leasehold.daemons (id, incarnation, host, pid, version, job_types, last_beat_at)
     values ('idle', gen_random_uuid(), 'elsewhere', 1, 'test', '{limited}', now() + interval '1 hour')`,
  );
  await addJobs(
    context,
    Array.from({ length: 200 }, (_, n) => ({ type: 'limited', targetId: `limit-${n % 100}` })),
  );
  const env = { WORKER_ID: 'w1', WORKER_CONCURRENCY: '200', TENANT_CONCURRENCY: '200' };
  await startDaemon(context, { env, handlers: [computing('limited')] });
  await eventually(isDone);
  // A hundred heads and two hundred slots, but a job takes 10 ms of the event loop: the others are left to the peer.
  const [row] = await db.query<{ max: number }>(`select max(cardinality(job_ids)) as max from ${schema}.leases`);
  expect(row?.max).toBeLessThan(60);
  const requeued = await db.query(
    `select 1 from ${schema}.events e join ${schema}.jobs j on j.id = e.job_id
      where e.type = 'job.requeued' and j.type = 'limited'`,
  );
  expect(requeued).toEqual([]);
});

/** The value once it has stayed the same for ten reads: a daemon that has just started still claims once or twice. */
async function unchanging(read: () => Promise<string>): Promise<string> {
  let last = await read();
  for (let same = 0; same < 10; ) {
    await delay(50);
    const now = await read();
    same = now === last ? same + 1 : 0;
    last = now;
  }
  return last;
}

test('a job that this daemon can claim wakes no other daemon; a job without room does', async () => {
  const release: (() => void)[] = [];
  const wait = defineJob({
    type: 'wait',
    run: () => new Promise<null>((resolve) => release.push(() => resolve(null))),
  });
  const env = { WORKER_CONCURRENCY: '1', POLL_INTERVAL_SECONDS: '600' };
  const first = await startDaemon(context, { env: { ...env, WORKER_ID: 'w1' }, handlers: [wait] });
  const second = await startDaemon(context, { env: { ...env, WORKER_ID: 'w2' }, handlers: [wait] });
  const claims = async () => (await second.metrics.registry.getSingleMetricAsString('leasehold_claims_total')) ?? '';
  await eventually(async () => expect(await claims()).toMatch(/result="none"\} [1-9]/));
  const before = await unchanging(claims);
  await first.enqueue(context.tenant, [{ type: 'wait', payload: null, targetId: 'here' }], 'test');
  await eventually(() => expect(release).toHaveLength(1));
  expect(await claims()).toBe(before);
  await first.enqueue(context.tenant, [{ type: 'wait', payload: null, targetId: 'there' }], 'test');
  await eventually(() => expect(release).toHaveLength(2));
  for (const end of release) end();
  await eventually(isDone);
  expect((await sharesOf('wait')).sort()).toEqual([1, 1]);
});
