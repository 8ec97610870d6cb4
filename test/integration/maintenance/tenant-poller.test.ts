import { setImmediate } from 'node:timers/promises';
import { expect, onTestFinished, test, vi } from 'vitest';
import type { Database } from '../../../server/database/database.ts';
import { sealEvents } from '../../../server/events/seals/seal.ts';
import { finishAttempts } from '../../../server/jobs/finish/finish.ts';
import { loadConfig } from '../../../server/kernel/config.ts';
import { createLogger } from '../../../server/kernel/logger.ts';
import { probeTenants } from '../../../server/maintenance/probes.ts';
import { type PolledTask, type PollResult, TenantPoller } from '../../../server/maintenance/tenant-poller.ts';
import { rollUpOnce } from '../../../server/stats/roll-up.ts';
import type { Tenant } from '../../../server/tenants/tenant.ts';
import { createDeliveries } from '../../../server/webhooks/outbox.ts';
import { openTransaction, writeEvent } from '../../support/events.ts';
import { eventually } from '../../support/eventually.ts';
import { addJob, claim, expireLease, reread } from '../../support/jobs.ts';
import { citusCluster } from '../../support/postgres/citus.ts';
import { addTenant, type TenantContext, useTenant } from '../../support/postgres/database.ts';
import { createTasks } from '../../support/tasks.ts';

// What was written last is counted on each node: in a cluster no tenant is known to be idle, and each poll asks all of them.
const isCluster = citusCluster() !== undefined;
const context = useTenant();
const logger = createLogger('silent');
const hourMs = 3_600_000;

let number = 0;
async function newTenant(): Promise<TenantContext> {
  return { ...context, ...(await addTenant(context.db, `poller${++number}`)) };
}

/** All polled tasks of a daemon over these tenants; `sent` are the statements of one poll. */
function pollerOver(tenants: Tenant[], { peers = 0, idleMs = hourMs } = {}) {
  const sent: string[] = [];
  const woken: string[] = [];
  const query = (text: string, values?: unknown[]) => {
    sent.push(text);
    return context.db.query(text, values);
  };
  const transaction = context.db.transaction.bind(context.db);
  const db = { query, transaction, forTenant: () => db } as unknown as Database;
  const registry = { hasFewTenants: false, list: () => tenants, onFingerprint: () => {} };
  const { polled } = createTasks(db, tenants, { onWake: (wakeUp) => void woken.push(wakeUp) });
  const poller = new TenantPoller({ db, registry, logger, tasks: polled.map((task) => alwaysDue(task, idleMs)) });
  poller.setPeers(peers);
  /** One poll, and all that it started. */
  const poll = async () => {
    sent.length = 0;
    woken.length = 0;
    await poller.poll();
    await poller.stop();
    return { sent: [...sent], woken: [...woken] };
  };
  return poll;
}

/** Due with every poll, and idle for an hour by default: the number of polls decides, not the time. */
function alwaysDue(task: PolledTask, idleMs: number): PolledTask {
  return {
    name: task.name,
    everyMs: 0,
    idleMs,
    includesSuspended: task.includesSuspended,
    probes: task.probes,
    isIdle: (results, idleForMs, tenant) => task.isIdle(results, idleForMs, tenant),
    onResults: (found) => task.onResults(found),
  };
}

async function untilIdle(poll: () => Promise<{ sent: string[] }>): Promise<void> {
  // Transactions of other tests may have been in progress.
  await eventually(async () => expect((await poll()).sent).toHaveLength(1));
}

async function followAll({ db, schema, tenant }: TenantContext): Promise<void> {
  for (const follow of [rollUpOnce, sealEvents]) while (!(await follow(db, schema)).complete);
  while (!(await createDeliveries(db, tenant)).complete);
}

async function runJob(where: TenantContext): Promise<void> {
  await addJob(where);
  await finishNext(where);
}

async function finishNext(where: TenantContext): Promise<void> {
  const { leaseId, jobs } = await claim(where);
  const items = jobs.map(({ id, targetId }) => {
    return { jobId: id, leaseId, targetId, outcome: { kind: 'complete' as const, result: null } };
  });
  await finishAttempts(where.db, where.schema, items, { actor: 'worker:w1', endedLeases: [leaseId] });
}

test.skipIf(isCluster)('idle tenants cost one statement per poll, however many they are', async () => {
  const tenants = [await newTenant(), await newTenant(), await newTenant()];
  const used = tenants[0] as TenantContext;
  await runJob(used);
  await followAll(used);
  const poll = pollerOver(tenants.map((where) => where.tenant));
  // Each tenant that was probed is scanned for repairs: its jobs, then its lanes.
  expect((await poll()).sent).toHaveLength(2 + 2 * tenants.length);
  await untilIdle(poll);
  for (let i = 0; i < 12; i++) expect((await poll()).sent).toHaveLength(1);
});

test.skipIf(isCluster)('daemons share the probes of idle tenants', async () => {
  const where = await newTenant();
  await runJob(where);
  await followAll(where);
  // Alone, the tenant is idle for less time than a poll takes. With a thousand million daemons, each skips it for long.
  const idleMs = 0.001;
  const alone = pollerOver([where.tenant], { idleMs });
  for (let i = 0; i < 5; i++) expect((await alone()).sent.length).toBeGreaterThan(1);
  await untilIdle(pollerOver([where.tenant], { idleMs, peers: 1e9 }));
  // A job that is due before the next daemon would look: not shared.
  await addJob(where, { runAt: new Date(Date.now() + 60_000).toISOString() });
  await followAll(where);
  const beside = pollerOver([where.tenant], { idleMs, peers: 1e9 });
  for (let i = 0; i < 5; i++) expect((await beside()).sent.length).toBeGreaterThan(1);
});

test.skipIf(isCluster)('what becomes due soon is not shared with daemons that start afterwards', async () => {
  const where = await newTenant();
  let found: PollResult[] = [];
  const task: PolledTask = {
    name: 'due',
    everyMs: 0,
    idleMs: 0.001,
    includesSuspended: true,
    probes: { one: () => '1' },
    // Idle for one daemon, but not for the time of many.
    isIdle: (_results, idleForMs) => idleForMs < hourMs,
    onResults: (results) => {
      found = results;
    },
  };
  const registry = { hasFewTenants: false, list: () => [where.tenant], onFingerprint: () => {} };
  const poller = new TenantPoller({ db: context.db, registry, logger, tasks: [task] });
  const poll = async () => {
    found = [];
    await poller.poll();
    await setImmediate();
    return found;
  };
  await eventually(async () => expect(await poll()).toMatchObject([{ wasIdle: true }]));
  poller.setPeers(1e12);
  expect(await poll()).toHaveLength(1);
});

test.skipIf(isCluster)('the other daemons are told of jobs that appeared in SQL, without an event', async () => {
  const where = await newTenant();
  const poll = pollerOver([where.tenant]);
  const { id } = await addJob(where);
  await followAll(where);
  await where.db.query(`update ${where.schema}.jobs set lane_head = false, target_id = 'x' where id = $1`, [id]);
  await untilIdle(poll);
  await where.db.query(`update ${where.schema}.jobs set lane_head = true, target_id = null where id = $1`, [id]);
  expect((await poll()).woken).toEqual([]);
  vi.spyOn(performance, 'now').mockReturnValue(performance.now() + hourMs);
  onTestFinished(() => void vi.restoreAllMocks());
  const { slug } = where.tenant;
  expect((await poll()).woken.sort()).toEqual([`peers ${slug}`, `workers ${slug}`]);
  // Once: from now on all daemons know that the tenant is not idle.
  expect((await poll()).woken).toEqual([`workers ${slug}`]);
});

test.skipIf(isCluster)('the next poll finds a write of an idle tenant', async () => {
  const where = await newTenant();
  const other = await newTenant();
  const poll = pollerOver([where.tenant, other.tenant]);
  await untilIdle(poll);
  await addJob(where);
  const { slug } = where.tenant;
  const { woken } = await poll();
  expect(woken.sort()).toEqual([`seals ${slug}`, `statistics ${slug}`, `webhooks ${slug}`, `workers ${slug}`]);
  await finishNext(where);
  await followAll(where);
  await untilIdle(poll);
  await addJob(where, { runAt: new Date(Date.now() + 60_000).toISOString() });
  expect((await poll()).woken).toContain(`workers ${slug} later`);
  // Due soon: the tenant is probed in every poll.
  for (let i = 0; i < 5; i++) expect((await poll()).sent.length).toBeGreaterThan(1);
});

test.skipIf(isCluster)('a commit long after its event took a number is not missed', async () => {
  const where = await newTenant();
  const poll = pollerOver([where.tenant]);
  await untilIdle(poll);
  const open = await openTransaction(where);
  await writeEvent(open.tx, where.schema);
  for (let i = 0; i < 5; i++) expect((await poll()).woken).toEqual([]);
  await open.commit();
  expect((await poll()).woken).toContain(`webhooks ${where.tenant.slug}`);
});

test.skipIf(isCluster)('a tenant with a lease is never idle, so an expired lease is recovered', async () => {
  const where = await newTenant();
  const poll = pollerOver([where.tenant]);
  await untilIdle(poll);
  const job = await addJob(where);
  const { leaseId } = await claim(where, { owner: 'dead' });
  await followAll(where);
  for (let i = 0; i < 5; i++) expect((await poll()).sent.length).toBeGreaterThan(1);
  // Without an event.
  await expireLease(where, leaseId);
  await poll();
  expect((await reread(where, job)).status).not.toBe('RUNNING');
});

test.skipIf(isCluster)('a follower that another daemon advanced does not run, but its counts are shown', async () => {
  const where = await newTenant();
  const poll = pollerOver([where.tenant]);
  await untilIdle(poll);
  await runJob(where);
  await followAll(where);
  expect((await poll()).woken).toEqual([`statistics ${where.tenant.slug}`]);
});

test.skipIf(isCluster)('a follower ahead of a restored database, or in the middle of a read, is woken', async () => {
  const where = await newTenant();
  await runJob(where);
  await followAll(where);
  const poll = pollerOver([where.tenant]);
  await eventually(async () => expect((await poll()).woken).toEqual([]));
  await where.db.query(
    `update ${where.schema}.followers set snapshot = '9999999999:9999999999:' where name = 'webhooks'`,
  );
  const pollAgain = pollerOver([where.tenant]);
  expect((await pollAgain()).woken).toContain(`webhooks ${where.tenant.slug}`);
});

test('without versions every tenant is probed, and a running task does not delay the others', async () => {
  const where = await newTenant();
  const called: string[] = [];
  let go = () => {};
  const slow: PolledTask = {
    name: 'slow',
    everyMs: 0,
    includesSuspended: true,
    probes: { one: () => '1' },
    isIdle: () => true,
    onResults: () => {
      called.push('slow');
      return new Promise<void>((resolve) => {
        go = resolve;
      });
    },
  };
  const quick: PolledTask = {
    ...slow,
    name: 'quick',
    probes: { two: () => '2' },
    onResults: () => void called.push('quick'),
  };
  const failing: Database = {
    query: (text: string) =>
      text.includes('events_seq_seq') ? Promise.reject(new Error('gone')) : context.db.query(text),
  } as unknown as Database;
  const registry = { hasFewTenants: false, list: () => [where.tenant], onFingerprint: () => {} };
  const poller = new TenantPoller({ db: failing, registry, logger, tasks: [slow, quick] });
  for (let i = 0; i < 3; i++) {
    await poller.poll();
    await setImmediate();
  }
  expect(called).toEqual(['slow', 'quick', 'quick', 'quick']);
  go();
  await poller.stop();
});

test('a tenant whose poll fails does not prevent polls of other tenants, and is polled again once it works', async () => {
  const [broken, healthy] = [await newTenant(), await newTenant()];
  const poll = pollerOver([broken.tenant, healthy.tenant]);
  await broken.db.query(`alter table ${broken.schema}.jobs rename column lane_head to gone`);
  await addJob(healthy);
  expect((await poll()).woken).toContain(`workers ${healthy.tenant.slug}`);
  await broken.db.query(`alter table ${broken.schema}.jobs rename column gone to lane_head`);
  await addJob(broken);
  // It is left out for about a second, longer if it had failed again.
  await eventually(async () => expect((await poll()).woken).toContain(`workers ${broken.tenant.slug}`));
});

test('a tenant that is due soon is polled before the next period', async () => {
  const where = await newTenant();
  let polls = 0;
  const task: PolledTask = {
    name: 'soon',
    everyMs: hourMs,
    includesSuspended: true,
    probes: { one: () => '1' },
    isIdle: () => false,
    soonMs: () => (polls < 2 ? 1 : Number.POSITIVE_INFINITY),
    onResults: () => void (polls += 1),
  };
  const registry = { hasFewTenants: false, list: () => [where.tenant], onFingerprint: () => {} };
  const poller = new TenantPoller({ db: context.db, registry, logger, tasks: [task] });
  await poller.start();
  await eventually(() => expect(polls).toBe(3));
  await poller.stop();
});

test('an expired lease is swept when its grace period is over', async () => {
  const where = await newTenant();
  const config = loadConfig({ STALE_LEASE_GRACE_SECONDS: '3600' });
  const { polled } = createTasks(context.db, [where.tenant], { config });
  const sweep = polled.find(({ name }) => name === 'sweep') as PolledTask;
  const soonMs = async () => {
    const { found } = await probeTenants(context.db, [where.tenant], sweep.probes);
    return sweep.soonMs?.(found[0]?.results ?? {});
  };
  expect(await soonMs()).toBe(Number.POSITIVE_INFINITY);
  const leaseIds: string[] = [];
  for (let i = 0; i < 2; i++) {
    await addJob(where);
    leaseIds.push((await claim(where)).leaseId);
  }
  // Both may still be renewed.
  expect(await soonMs()).toBe(Number.POSITIVE_INFINITY);
  const expire = (id: string | undefined, age: string) =>
    where.db.query(`update ${where.schema}.leases set expires_at = now() - $2::interval where id = $1`, [id, age]);
  // The grace of one is over: it is recovered now, and the other when its grace is over.
  await expire(leaseIds[0], '2 hours');
  await expire(leaseIds[1], '30 minutes');
  const leftMs = await soonMs();
  expect(leftMs).toBeGreaterThan(0);
  expect(leftMs).toBeLessThanOrEqual(hourMs / 2);
});
