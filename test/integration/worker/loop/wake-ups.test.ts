// Bugs that other queues had with lanes that never open again and workers that never claim again.
import { expect, test } from 'vitest';
import { Database } from '../../../../server/database/database.ts';
import { claimJobs } from '../../../../server/jobs/claim/claim.ts';
import { queueDueJobs } from '../../../../server/jobs/finish/due-jobs.ts';
import { createLogger } from '../../../../server/kernel/logger.ts';
import { defineJob } from '../../../../server/worker/handlers/define-job.ts';
import { startDaemon } from '../../../support/daemon/daemon.ts';
import { startLoop } from '../../../support/daemon/loop.ts';
import { eventually } from '../../../support/eventually.ts';
import { addJob, addJobs, claim, finish, reread } from '../../../support/jobs.ts';
import { checkInvariants } from '../../../support/model/invariants.ts';
import { endOtherConnections, staysOpen, useTenantPerTest } from '../../../support/postgres/database.ts';

const context = useTenantPerTest();
async function unfinished(): Promise<number> {
  const [row] = await context.db.query<{ n: number }>(
    `select count(*)::int as n from ${context.schema}.jobs where status not in ('SUCCESS', 'CANCELED')`,
  );
  return row?.n ?? -1;
}

test('an enqueue that races with the end of the last job of its lane is never missed', async () => {
  const lanes = ['race-1', 'race-2', 'race-3'];
  const producers = lanes.flatMap((targetId) =>
    [1, 2].map(async () => {
      for (let n = 0; n < 25; n++) await addJob(context, { targetId });
    }),
  );
  let producing = true;
  const consumers = [1, 2].map(async () => {
    // Takes one at a time, so that lanes run empty again and again.
    const until = performance.now() + 180_000;
    while (producing || (await unfinished()) > 0) {
      if (performance.now() > until) throw new Error(`${await unfinished()} jobs were left behind`);
      const { jobs } = await claim(context, { limit: 2 });
      await Promise.all(jobs.map((job) => finish(context, job)));
    }
  });
  await Promise.all(producers);
  producing = false;
  await Promise.all(consumers);
  await checkInvariants(context);
});

test('lanes stay serial and in order although the loop claims ahead', async () => {
  const running = new Map<string, number>();
  const order: string[] = [];
  let max = 0;
  const quick = defineJob({
    type: 'quick',
    run: async ({ job }) => {
      const lane = job.targetId as string;
      running.set(lane, (running.get(lane) ?? 0) + 1);
      max = Math.max(max, running.get(lane) as number);
      order.push(job.id);
      await new Promise((resolve) => setImmediate(resolve));
      running.set(lane, (running.get(lane) as number) - 1);
    },
  });
  const given = Array.from({ length: 300 }, (_, n) => ({ type: 'quick', targetId: `serial-${n % 3}` }));
  const jobs = await addJobs(context, given);
  await startDaemon(context, { handlers: [quick] });
  await startDaemon(context, { handlers: [quick] });
  await eventually(async () => expect(await unfinished()).toBe(0));
  expect(max).toBe(1);
  for (const lane of [0, 1, 2]) {
    const expected = jobs.filter((_job, n) => n % 3 === lane).map((job) => job.id);
    expect(order.filter((id) => expected.includes(id))).toEqual(expected);
  }
  await checkInvariants(context);
});

test('a draining daemon does not claim the jobs that it requeued', async () => {
  let isLong = true;
  const long = defineJob({ type: 'long', run: ({ sleep }) => (isLong ? sleep(600_000) : undefined) });
  const daemon = await startDaemon(context, { handlers: [long], env: { WORKER_ID: 'leaving' } });
  const job = await addJob(context, { type: 'long', onDrain: 'requeue' });
  await eventually(async () => expect((await reread(context, job)).status).toBe('RUNNING'));
  const drained = daemon.workers.drain(0);
  daemon.workers.wake(context.tenant.slug);
  await drained;
  daemon.workers.wake(context.tenant.slug);
  await daemon.enqueue(context.tenant, [{ type: 'demo.echo', payload: {} }], 'test');
  expect(await reread(context, job)).toMatchObject({ status: 'QUEUED', attempt: 0, leaseOwner: null });
  expect(await unfinished()).toBe(2);
  await daemon.stop(0);
  isLong = false;
  await startDaemon(context, { handlers: [long] });
  await eventually(async () => expect(await unfinished()).toBe(0));
});

test('a worker whose connections all died claims, renews and sweeps again', async () => {
  await startDaemon(context);
  await eventually(async () => {
    const job = await addJob(context);
    await eventually(async () => expect((await reread(context, job)).status).toBe('SUCCESS'));
  });
  for (let round = 0; round < 3; round++) {
    await endOtherConnections(context.db);
    const job = await addJob(context, { targetId: 'again' });
    const lost = await addJob(context, { type: 'nobody-runs-this', maxAttempts: 1 });
    await claimLost(lost.id);
    await eventually(async () => expect((await reread(context, job)).status).toBe('SUCCESS'));
    // The recovery task lives on as well.
    await eventually(async () => expect((await reread(context, lost)).status).toBe('ERROR'));
  }
});

async function claimLost(jobId: string): Promise<void> {
  const request = { owner: 'gone', limit: 10, leaseSeconds: 0.2, types: ['nobody-runs-this'] };
  expect((await claimJobs(context.db, context.schema, request)).jobs.map((job) => job.id)).toContain(jobId);
}

test('jobs claimed ahead behind long ones are requeued once, not repeatedly', async () => {
  const release: (() => void)[] = [];
  let slow = false;
  const mixed = defineJob({
    type: 'mixed',
    run: () => (slow ? new Promise<void>((resolve) => release.push(resolve)) : undefined),
  });
  await startDaemon(context, { handlers: [mixed], env: { WORKER_CONCURRENCY: '2', TENANT_CONCURRENCY: '2' } });
  await addJobs(
    context,
    Array.from({ length: 50 }, () => ({ type: 'mixed' })),
  );
  await eventually(async () => expect(await unfinished()).toBe(0));
  slow = true;
  const jobs = await addJobs(
    context,
    Array.from({ length: 20 }, () => ({ type: 'mixed' })),
  );
  await eventually(() => expect(release).toHaveLength(2));
  const waiting = async () =>
    (await Promise.all(jobs.map((job) => reread(context, job)))).filter((j) => j.status === 'QUEUED').length;
  await eventually(async () => expect(await waiting()).toBe(18));
  const requeued = async () => {
    const [row] = await context.db.query<{ n: number }>(
      `select count(*)::int as n from ${context.schema}.events where type = 'job.requeued' and job_id = any($1)`,
      [jobs.map((job) => job.id)],
    );
    return row?.n;
  };
  const once = await requeued();
  // Another wake-up claims nothing that could not start.
  await addJob(context, { type: 'demo.echo', runAt: new Date(Date.now() + 3_600_000).toISOString() });
  await eventually(async () => expect(await waiting()).toBe(18));
  expect(await requeued()).toBe(once);
  slow = false;
  for (const go of release) go();
  await eventually(async () => {
    for (const job of jobs) expect((await reread(context, job)).status).toBe('SUCCESS');
  });
});

test('more due jobs than one batch are all queued, without waiting for a poll', async () => {
  const daemon = await startDaemon(context, { env: { POLL_INTERVAL_SECONDS: '3600' } });
  const runAt = new Date(Date.now() + 1500).toISOString();
  const given = Array.from({ length: 1100 }, () => ({ type: 'demo.echo', payload: {}, runAt }));
  await daemon.enqueue(context.tenant, given, 'test');
  await daemon.enqueue(
    context.tenant,
    [{ type: 'demo.echo', payload: {}, runAt: new Date(Date.now() + 2500).toISOString() }],
    'test',
  );
  await eventually(async () => expect(await unfinished()).toBe(0));
  expect(await queueDueJobs(context.db, context.schema, 'test')).toBe(0);
});

test('a job that was locked when the loop claimed is claimed again, without another wake-up', async () => {
  const { db, schema } = context;
  const [free, locked] = await addJobs(context, [{}, {}]);
  let skipping = 0;
  const { loop, ran } = startLoop(context, {
    ...{ leaseSeconds: 60, heartbeatSeconds: 20 },
    sendClaim: async (_tenant, request) => {
      const claimed = await claimJobs(db, schema, request);
      if (claimed.hasSkipped) skipping += 1;
      return claimed;
    },
  });
  await db.transaction(async (tx) => {
    await tx.query(`select 1 from ${schema}.jobs where id = $1 for update`, [locked!.id]);
    loop.wake();
    await eventually(() => expect(skipping).toBeGreaterThan(2));
    await eventually(() => expect(ran).toEqual([free!.id]));
  }, staysOpen);
  await eventually(() => expect(ran).toEqual([free!.id, locked!.id]));
});

test('a statement that never answers leaves no dead client in the pool', async () => {
  const db = new Database({ url: context.url, poolMax: 1, logger: createLogger('silent'), statementTimeoutMs: 500 });
  // On a busy machine a new connection takes longer than that at times.
  const answers = () => eventually(async () => expect(await db.query('select 1 as one')).toEqual([{ one: 1 }]));
  try {
    await expect(db.query('select pg_sleep(600)')).rejects.toThrow();
    await answers();
    await expect(db.transaction((tx) => tx.query('select pg_sleep(600)'))).rejects.toThrow();
    await answers();
    expect([db.pool.totalCount, db.pool.waitingCount]).toEqual([1, 0]);
  } finally {
    await db.close();
  }
});

test('times keep their microseconds on the way to the client and back', async () => {
  const jobs = await Promise.all(Array.from({ length: 10 }, () => addJob(context)));
  for (const job of jobs) {
    expect(job.createdAt).toMatch(/\.\d{6}Z$/);
    const found = await context.db.query(`select id from ${context.schema}.jobs where id = $1 and created_at = $2`, [
      job.id,
      job.createdAt,
    ]);
    expect(found).toHaveLength(1);
  }
});
