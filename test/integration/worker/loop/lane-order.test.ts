// Lanes as a daemon runs them: the next job starts with the commit that ends the one before, and that
// neither lets a lane hog the slots, nor breaks its order, nor outlives a drain.
import { setTimeout as delay } from 'node:timers/promises';
import { afterEach, expect, test } from 'vitest';
import { Recoverable } from '../../../../server/durable/handler-errors.ts';
import type { Priority } from '../../../../server/jobs/model/job.ts';
import { defineJob } from '../../../../server/worker/handlers/define-job.ts';
import { startDaemon } from '../../../support/daemon/daemon.ts';
import { eventually } from '../../../support/eventually.ts';
import { addJobs, eventTypes, reread } from '../../../support/jobs.ts';
import { checkInvariants } from '../../../support/model/invariants.ts';
import { lockWaiters, staysOpen, useTenantPerTest } from '../../../support/postgres/database.ts';

const context = useTenantPerTest();
afterEach(() => checkInvariants(context));

async function unfinished(): Promise<number> {
  const [row] = await context.db.query<{ n: number }>(
    `select count(*)::int as n from ${context.schema}.jobs where status <> 'SUCCESS'`,
  );
  return row?.n ?? -1;
}

/** A handler that ends when the test says so: one job after the other, then all. */
function createGate(minMs = 0) {
  const begun: string[] = [];
  const open: (() => void)[] = [];
  let free = false;
  const gated = defineJob({
    type: 'gated',
    async run({ job }) {
      begun.push(job.id);
      if (free) return;
      if (minMs > 0) await delay(minMs);
      await new Promise<void>((resolve) => open.push(resolve));
    },
  });
  const release = () => open.shift()?.();
  const releaseAll = () => {
    free = true;
    while (open.length > 0) release();
  };
  return { gated, begun, open, release, releaseAll };
}

/** How many jobs of the lane started in the transaction in which the one before them ended. */
async function handedOver(targetId: string): Promise<number> {
  const { schema } = context;
  const [row] = await context.db.query<{ n: number }>(
    `select count(*)::int as n from ${schema}.events s join ${schema}.events e on e.xid = s.xid
      where s.target_id = $1 and s.type = 'job.started' and e.target_id = $1 and e.type = 'job.completed'`,
    [targetId],
  );
  return row?.n ?? -1;
}

const lane = (targetId: string, count: number, type: string) =>
  Array.from({ length: count }, () => ({ targetId, type }));

test('a daemon claims the next job of a lane with the outcome of the one before', async () => {
  const { gated, begun, release } = createGate();
  const jobs = await addJobs(context, lane('one', 20, 'gated'));
  await startDaemon(context, { handlers: [gated] });
  for (let n = 1; n <= jobs.length; n++) {
    await eventually(() => expect(begun).toHaveLength(n));
    release();
  }
  await eventually(async () => expect(await unfinished()).toBe(0));
  expect(begun).toEqual(jobs.map((job) => job.id));
  // A poll in between may ask for other work first, and then the next job is claimed as any other.
  expect(await handedOver('one')).toBeGreaterThan(0);
});

test('an urgent job of another lane does not wait until running lanes are empty', async () => {
  // Too long to be claimed ahead of their slots.
  const { gated, begun, open, release, releaseAll } = createGate(150);
  const busy = ['a', 'b', 'c', 'd'];
  await addJobs(
    context,
    busy.flatMap((targetId) => lane(targetId, 20, 'gated')),
  );
  const env = { WORKER_CONCURRENCY: '2', TENANT_CONCURRENCY: '2', POLL_INTERVAL_SECONDS: '3600' };
  const daemon = await startDaemon(context, { handlers: [gated], env });
  for (let n = 0; n < 6; n++) {
    await eventually(() => expect(open).toHaveLength(2));
    release();
  }
  await eventually(() => expect(open).toHaveLength(2));
  const before = begun.length;
  const priority: Priority = 'URGENT';
  const [urgent] = await daemon.enqueue(
    context.tenant,
    [{ type: 'gated', payload: {}, targetId: 'hurry', priority }],
    'test',
  );
  // The daemon has looked, and found no slot for it.
  for (let turn = 0; turn < 5; turn++) await new Promise((resolve) => setImmediate(resolve));
  while (!begun.includes(urgent!.job.id)) {
    await eventually(() => expect(open).toHaveLength(2));
    release();
    await eventually(() => expect(open).toHaveLength(2));
  }
  // A job or two may have been claimed before it came.
  expect(begun.indexOf(urgent!.job.id) - before).toBeLessThanOrEqual(2);
  releaseAll();
  await eventually(async () => expect(await unfinished()).toBe(0));
});

test('two daemons on many lanes of short jobs keep every order, and run no job twice', async () => {
  const running = new Map<string, number>();
  const begun: string[] = [];
  let max = 0;
  const short = defineJob({
    type: 'short',
    async run({ job }) {
      const targetId = job.targetId as string;
      const now = (running.get(targetId) ?? 0) + 1;
      running.set(targetId, now);
      max = Math.max(max, now);
      begun.push(job.id);
      await new Promise((resolve) => setImmediate(resolve));
      running.set(targetId, now - 1);
    },
  });
  const lanes = Array.from({ length: 12 }, (_, n) => `short-${n}`);
  const jobs = await addJobs(
    context,
    Array.from({ length: 600 }, (_, n) => ({ type: 'short', targetId: lanes[n % lanes.length]! })),
  );
  // Fewer slots than lanes in each, so that lanes change hands.
  const env = { WORKER_CONCURRENCY: '5', TENANT_CONCURRENCY: '5' };
  await Promise.all([1, 2].map(() => startDaemon(context, { handlers: [short], env })));
  await eventually(async () => expect(await unfinished()).toBe(0));
  expect(max).toBe(1);
  for (const targetId of lanes) {
    const expected = jobs.filter((job) => job.targetId === targetId).map((job) => job.id);
    expect(begun.filter((id) => expected.includes(id))).toEqual(expected);
  }
  expect(begun).toHaveLength(jobs.length);
});

test('a retry in backoff keeps its lane: the next job does not run before it', async () => {
  const begun: string[] = [];
  const shaky = defineJob({
    type: 'shaky',
    retry: { attempts: 2, delaySeconds: 0.5 },
    run({ job }) {
      begun.push(`${job.targetId} ${job.id} ${job.attempt}`);
      if (job.attempt === 1 && job.maxAttempts > 1) throw new Recoverable('once');
    },
  });
  const [first, next] = await addJobs(context, [
    {
      type: 'shaky',
      targetId: 'shaky',
      maxAttempts: 2,
      retry: { kind: 'fixed', delaySeconds: 0.5, maxDelaySeconds: 0.5, jitter: 0 },
    },
    { type: 'shaky', targetId: 'shaky', maxAttempts: 1, priority: 'URGENT' },
  ]);
  await startDaemon(context, { handlers: [shaky] });
  await eventually(async () => expect(await unfinished()).toBe(0));
  expect(begun).toEqual([`shaky ${first!.id} 1`, `shaky ${first!.id} 2`, `shaky ${next!.id} 1`]);
  expect(await eventTypes(context, first!)).toEqual([
    'job.enqueued',
    'job.started',
    'job.retrying',
    'job.due',
    'job.started',
    'job.completed',
  ]);
});

test('a job that is claimed with the last outcome before a drain is requeued', async () => {
  const { gated, begun, release } = createGate();
  const [first, next] = await addJobs(context, lane('drained', 2, 'gated'));
  const daemon = await startDaemon(context, { handlers: [gated], env: { POLL_INTERVAL_SECONDS: '3600' } });
  await eventually(() => expect(begun).toEqual([first!.id]));
  let stopped: Promise<void> | undefined;
  // The outcome, with the claim that comes with it, waits for this lock.
  await context.db.transaction(async (tx) => {
    await tx.query(`select id from ${context.schema}.targets for update`);
    release();
    await eventually(async () => {
      expect(await context.db.query(lockWaiters(context.schema))).toHaveLength(1);
    });
    stopped = daemon.stop(0);
    await eventually(() => expect(daemon.workers.draining).toBe(true));
  }, staysOpen);
  await stopped;
  expect(await reread(context, first!)).toMatchObject({ status: 'SUCCESS' });
  expect(await reread(context, next!)).toMatchObject({
    status: 'QUEUED',
    attempt: 0,
    laneHead: true,
    leaseOwner: null,
  });
  expect(await eventTypes(context, next!)).toEqual(['job.enqueued', 'job.started', 'job.requeued']);
  expect(begun).toEqual([first!.id]);
});
