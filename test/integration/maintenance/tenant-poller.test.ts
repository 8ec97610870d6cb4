import { setImmediate } from 'node:timers/promises';
import { expect, test } from 'vitest';
import type { Database } from '../../../server/database/database.ts';
import { sealEvents } from '../../../server/events/seals/seal.ts';
import { finishAttempts } from '../../../server/jobs/finish/finish.ts';
import { createLogger } from '../../../server/kernel/logger.ts';
import { createFollowerPoll } from '../../../server/maintenance/follower-poll.ts';
import { OperationRunner } from '../../../server/maintenance/operation-runner.ts';
import { Sweeper } from '../../../server/maintenance/sweeper.ts';
import { type PolledTask, TenantPoller } from '../../../server/maintenance/tenant-poller.ts';
import { createWorkPoll } from '../../../server/maintenance/work-poll.ts';
import { rollUpOnce } from '../../../server/stats/roll-up.ts';
import type { Tenant } from '../../../server/tenants/tenant.ts';
import { createDeliveries } from '../../../server/webhooks/outbox.ts';
import { openTransaction, writeEvent } from '../../support/events.ts';
import { eventually } from '../../support/eventually.ts';
import { addJob, claim, expireLease, reread } from '../../support/jobs.ts';
import { addTenant, type TenantContext, useTenant } from '../../support/postgres/database.ts';

const context = useTenant();
const logger = createLogger('silent');
const hourMs = 3_600_000;

let number = 0;
async function newTenant(): Promise<TenantContext> {
  return { ...context, ...(await addTenant(context.db, `watch${++number}`)) };
}

/** All that a daemon watches, over these tenants; `sent` are the statements of its looks. */
function watchOver(tenants: Tenant[], more: PolledTask[] = []) {
  const sent: string[] = [];
  const woken: string[] = [];
  const query = (text: string, values?: unknown[]) => {
    sent.push(text);
    return context.db.query(text, values);
  };
  const db = { query, transaction: context.db.transaction.bind(context.db) } as unknown as Database;
  const registry = { list: () => tenants, active: () => tenants, onFingerprint: () => {} };
  const wakes = (name: string) => ({
    wake: (slug: string) => woken.push(`${name} ${slug}`),
    dueIn: (slug: string) => woken.push(`${name} ${slug} later`),
  });
  const operations = new OperationRunner({ db, registry, logger, wake: () => {} });
  const sweeper = new Sweeper({
    db,
    registry: registry as never,
    logger,
    everyMs: hourMs,
    actor: 'sweeper:test',
    staleLeaseGraceSeconds: 0,
    orphanAfterSeconds: 7200,
    leaseSeconds: 15,
    timeoutSeconds: 0,
    tokenLimit: 0,
    wake: () => {},
    observe: { swept: () => {} },
  });
  const watchers = [
    createWorkPoll(1, wakes('workers'), wakes('schedules')),
    createFollowerPoll(1, {
      statistics: wakes('statistics'),
      webhooks: wakes('webhooks'),
      seals: wakes('seals'),
    }),
    operations.watcher(1),
    sweeper,
    ...more,
  ];
  const watch = new TenantPoller({ db, registry, logger, tasks: watchers.map(everyLook) });
  /** One look, and all that it began. */
  const look = async () => {
    sent.length = 0;
    woken.length = 0;
    await watch.poll();
    await watch.stop();
    return { sent: [...sent], woken: [...woken] };
  };
  return { look, watch };
}

/** Due with every look, and at rest for an hour: the test's rounds decide, not its time. */
function everyLook(watcher: PolledTask): PolledTask {
  return {
    name: watcher.name,
    everyMs: 0,
    restMs: hourMs,
    suspended: watcher.suspended,
    probes: watcher.probes,
    isIdle: (answers, restMs, tenant) => watcher.isIdle(answers, restMs, tenant),
    onResults: (found) => watcher.onResults(found),
  };
}

async function untilAtRest(look: () => Promise<{ sent: string[] }>): Promise<void> {
  // Transactions of other tests may have been under way.
  await eventually(async () => expect((await look()).sent).toHaveLength(1));
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

test('idle tenants cost one statement for each look, however many they are', async () => {
  const tenants = [await newTenant(), await newTenant(), await newTenant()];
  const used = tenants[0] as TenantContext;
  await runJob(used);
  await followAll(used);
  const { look } = watchOver(tenants.map((where) => where.tenant));
  // Each of those that were asked is searched for what should never be: its jobs, then its lanes.
  expect((await look()).sent).toHaveLength(2 + 2 * tenants.length);
  await untilAtRest(look);
  for (let i = 0; i < 12; i++) expect((await look()).sent).toHaveLength(1);
});

test('what is written for a tenant at rest is found by the next look', async () => {
  const where = await newTenant();
  const other = await newTenant();
  const { look } = watchOver([where.tenant, other.tenant]);
  await untilAtRest(look);
  await addJob(where);
  const { slug } = where.tenant;
  const { woken } = await look();
  expect(woken.sort()).toEqual([`seals ${slug}`, `statistics ${slug}`, `webhooks ${slug}`, `workers ${slug}`]);
  await finishNext(where);
  await followAll(where);
  await untilAtRest(look);
  await addJob(where, { runAt: new Date(Date.now() + 60_000).toISOString() });
  expect((await look()).woken).toContain(`workers ${slug} later`);
  // Due soon: it is asked for again and again.
  for (let i = 0; i < 5; i++) expect((await look()).sent.length).toBeGreaterThan(1);
});

test('a commit that comes long after its number was taken is not missed', async () => {
  const where = await newTenant();
  const { look } = watchOver([where.tenant]);
  await untilAtRest(look);
  const open = await openTransaction(where);
  await writeEvent(open.tx, where.schema);
  for (let i = 0; i < 5; i++) expect((await look()).woken).toEqual([]);
  await open.commit();
  expect((await look()).woken).toContain(`webhooks ${where.tenant.slug}`);
});

test('an expired lease is taken back: a tenant with a lease is never at rest', async () => {
  const where = await newTenant();
  const { look } = watchOver([where.tenant]);
  await untilAtRest(look);
  const job = await addJob(where);
  const { leaseId } = await claim(where, { owner: 'dead' });
  await followAll(where);
  for (let i = 0; i < 5; i++) expect((await look()).sent.length).toBeGreaterThan(1);
  // Nothing tells of it.
  await expireLease(where, leaseId);
  await look();
  expect((await reread(where, job)).status).not.toBe('RUNNING');
});

test('a follower that another daemon moved on is left alone, but its counts are shown', async () => {
  const where = await newTenant();
  const { look } = watchOver([where.tenant]);
  await untilAtRest(look);
  await runJob(where);
  await followAll(where);
  expect((await look()).woken).toEqual([`statistics ${where.tenant.slug}`]);
});

test('a follower ahead of a restored database, or in the middle of a read, is woken', async () => {
  const where = await newTenant();
  await runJob(where);
  await followAll(where);
  const { look } = watchOver([where.tenant]);
  await look();
  expect((await look()).woken).toEqual([]);
  await where.db.query(
    `update ${where.schema}.followers set snapshot = '9999999999:9999999999:' where name = 'webhooks'`,
  );
  const { look: anew } = watchOver([where.tenant]);
  expect((await anew()).woken).toContain(`webhooks ${where.tenant.slug}`);
});

test('without marks everybody is asked, and one task at work does not keep the others waiting', async () => {
  const where = await newTenant();
  const heard: string[] = [];
  let go = () => {};
  const slow: PolledTask = {
    name: 'slow',
    everyMs: 0,
    suspended: true,
    probes: { one: () => '1' },
    isIdle: () => true,
    onResults: () => {
      heard.push('slow');
      return new Promise<void>((resolve) => {
        go = resolve;
      });
    },
  };
  const quick: PolledTask = {
    ...slow,
    name: 'quick',
    probes: { two: () => '2' },
    onResults: () => void heard.push('quick'),
  };
  const failing: Database = {
    query: (text: string) =>
      text.includes('events_seq_seq') ? Promise.reject(new Error('gone')) : context.db.query(text),
  } as unknown as Database;
  const registry = { list: () => [where.tenant], onFingerprint: () => {} };
  const watch = new TenantPoller({ db: failing, registry, logger, tasks: [slow, quick] });
  for (let i = 0; i < 3; i++) {
    await watch.poll();
    await setImmediate();
  }
  expect(heard).toEqual(['slow', 'quick', 'quick', 'quick']);
  go();
  await watch.stop();
});
