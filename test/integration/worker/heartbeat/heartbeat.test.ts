// The heartbeat keeps what is healthy, gives up what is not, and stops handlers before others may claim.
import { expect, onTestFinished, test } from 'vitest';
import type { Schema } from '../../../../server/database/identifiers.ts';
import type { StatementOnNode } from '../../../../server/database/nodes/tenant-nodes.ts';
import { stopReasonOf } from '../../../../server/durable/stop-reason.ts';
import { pauseJob } from '../../../../server/jobs/actions/pause-and-cancel.ts';
import { claimJobs } from '../../../../server/jobs/claim/claim.ts';
import { type LiveJob, renewal } from '../../../../server/jobs/claim/lease.ts';
import type { Job } from '../../../../server/jobs/model/job.ts';
import { createLogger } from '../../../../server/kernel/logger.ts';
import { defineJob } from '../../../../server/worker/handlers/define-job.ts';
import { Heartbeat, type HeldLease } from '../../../../server/worker/heartbeat/heartbeat.ts';
import { startDaemon } from '../../../support/daemon/daemon.ts';
import { eventually } from '../../../support/eventually.ts';
import { addJob, claim, expireLease, finish, reread } from '../../../support/jobs.ts';
import {
  addTenant,
  lockWaiters,
  staysOpen,
  type TenantContext,
  useTenant,
} from '../../../support/postgres/database.ts';
import { startProxy } from '../../../support/postgres/proxies/proxy.ts';

const context = useTenant();
interface Held {
  job: Job;
  lost: string[];
  asked: LiveJob[];
  lease: HeldLease;
}

/** A heartbeat that holds one job, claimed with the same lease time. */
async function holdJob(
  given: {
    url?: string;
    leaseSeconds?: number;
    stallSeconds?: number;
    heartbeat?: Heartbeat;
    of?: Pick<TenantContext, 'db' | 'schema' | 'tenant'>;
    renewalOnNode?(schema: Schema): StatementOnNode;
  } = {},
): Promise<Held & { heartbeat: Heartbeat }> {
  const leaseSeconds = given.leaseSeconds ?? 3;
  const of = given.of ?? context;
  const heartbeat = given.heartbeat ?? (await startHeartbeat(given, leaseSeconds));
  const added = await addJob(of, { targetId: `t-${crypto.randomUUID()}` });
  const sentAt = process.hrtime.bigint();
  const claimed = await claimJobs(of.db, of.schema, { owner: 'w1', limit: 100, leaseSeconds });
  const job = claimed.jobs.find((j) => j.id === added.id) as Job;
  const held: Held = { job, lost: [], asked: [], lease: {} as HeldLease };
  held.lease = {
    schema: of.schema,
    leaseId: claimed.leaseId,
    jobIds: [job.id],
    onLost: (jobId) => held.lost.push(jobId),
    onStopRequested: (asked) => held.asked.push(asked),
  };
  heartbeat.hold(held.lease, sentAt);
  return Object.assign(held, { heartbeat });
}

async function startHeartbeat(given: Parameters<typeof holdJob>[0] = {}, leaseSeconds: number): Promise<Heartbeat> {
  const heartbeat = new Heartbeat({
    url: given.url ?? context.url,
    heartbeatSeconds: 0.2,
    leaseSeconds,
    stallSeconds: given.stallSeconds ?? 60,
    logger: createLogger('silent'),
    ...(given.renewalOnNode && { renewalOnNode: given.renewalOnNode }),
  });
  await heartbeat.start();
  onTestFinished(() => heartbeat.stop());
  return heartbeat;
}

/** By the database's clock. */
async function leftSeconds(leaseId: string | null): Promise<number> {
  const [row] = await context.db.query<{ left: number }>(
    `select extract(epoch from expires_at - clock_timestamp())::float8 as left from ${context.schema}.leases where id = $1`,
    [leaseId],
  );
  return row?.left ?? Number.NEGATIVE_INFINITY;
}

async function beats(leaseId: string | null, schema = context.schema): Promise<string> {
  const [row] = await context.db.query<{ at: string }>(
    `select last_heartbeat_at as at from ${schema}.leases where id = $1`,
    [leaseId],
  );
  return row?.at ?? '';
}

async function nextBeat(leaseId: string | null, schema = context.schema): Promise<void> {
  const before = await beats(leaseId, schema);
  await eventually(async () => expect(await beats(leaseId, schema)).not.toBe(before));
}

test('a stop request arrives with the next heartbeat', async () => {
  const held = await holdJob({ leaseSeconds: 3600 });
  await pauseJob(context.db, context.schema, { jobId: held.job.id, actor: 'user:ann', author: 'ann' });
  await eventually(() =>
    expect(held.asked[0]).toMatchObject({ cancelIntent: 'pause', cancelDetail: { author: 'ann' } }),
  );
  expect(held.lost).toEqual([]);
});

test('zero rows mean a lost lease, which is reported at once', async () => {
  const held = await holdJob({ leaseSeconds: 3600 });
  await finish(context, held.job, { kind: 'requeue', reason: 'taken away' });
  await eventually(() => expect(held.lost).toContain(held.job.id));
  expect((await claim(context)).jobs.map((job) => job.id)).toContain(held.job.id);
});

test('a job that was lost and claimed again is lost for the first lease only', async () => {
  const held = await holdJob({ leaseSeconds: 3600 });
  await finish(context, held.job, { kind: 'requeue', reason: 'taken away' });
  const sentAt = process.hrtime.bigint();
  const again = await claim(context, { leaseSeconds: 3600 });
  expect(again.jobs.map((job) => job.id)).toContain(held.job.id);
  const second: string[] = [];
  const lease = { ...held.lease, leaseId: again.leaseId, onLost: (jobId: string) => void second.push(jobId) };
  held.heartbeat.hold(lease, sentAt);
  await nextBeat(again.leaseId);
  await eventually(() => expect(held.lost).toContain(held.job.id));
  await nextBeat(again.leaseId);
  expect(second).toEqual([]);
});

// Behind a pooler no process of the server is the heartbeat's own.
test.skipIf(process.env.TEST_POOLER_URL)('a killed connection is replaced, and the lease is renewed', async () => {
  const held = await holdJob({ leaseSeconds: 20 });
  await nextBeat(held.job.leaseId);
  const killed = await context.db.query(
    `select pg_terminate_backend(pid) from pg_stat_activity
      where application_name = 'leasehold-heartbeat' and datname = current_database()`,
  );
  expect(killed.length).toBeGreaterThan(0);
  await nextBeat(held.job.leaseId);
  expect(held.lost).toEqual([]);
  expect(held.heartbeat.trustedForMs(held.lease.leaseId)).toBeGreaterThan(0);
});

test('a cut connection is replaced, and the lease is renewed', async () => {
  const proxy = await startProxy(context.url);
  const held = await holdJob({ url: proxy.url, leaseSeconds: 20 });
  await nextBeat(held.job.leaseId);
  expect(proxy.connections()).toBeGreaterThan(0);
  proxy.cut();
  await nextBeat(held.job.leaseId);
  expect(held.lost).toEqual([]);
  expect(held.heartbeat.trustedForMs(held.lease.leaseId)).toBeGreaterThan(0);
});

test('behind a connection that never answers the lease is given up before another daemon may claim', async () => {
  const proxy = await startProxy(context.url);
  const held = await holdJob({ url: proxy.url, leaseSeconds: 6 });
  await nextBeat(held.job.leaseId);
  proxy.blackHole();
  await eventually(() => expect(held.lost).toEqual([held.job.id]));
  // The margin: at the moment of giving up, the database still counts the lease as ours, so nobody could take it.
  expect(held.heartbeat.trustedForMs(held.lease.leaseId)).toBeLessThanOrEqual(0);
  expect((await reread(context, held.job)).status).toBe('RUNNING');
  proxy.heal();
});

test('a handler that blocks the event loop for longer than its lease succeeds; a dead event loop loses its leases', async () => {
  // Long enough for two threads to start on a busy machine, shorter than the block.
  const busy = await holdJob({ leaseSeconds: 9, stallSeconds: 60 });
  const dead = await holdJob({ leaseSeconds: 9, stallSeconds: 0.3 });
  let trustedForMs = 0;
  const block = defineJob({
    type: 'block',
    run() {
      blockFor(12_000);
      // The good news waits in the inbox and is read before anybody judges.
      trustedForMs = busy.heartbeat.trustedForMs(busy.lease.leaseId);
    },
  });
  await startDaemon(context, { handlers: [block], env: { LEASE_SECONDS: '9' } });
  await nextBeat(busy.job.leaseId);
  const job = await addJob(context, { type: 'block', targetId: 'blocked' });
  await eventually(async () => expect(await reread(context, job)).toMatchObject({ status: 'SUCCESS', attempt: 1 }));
  expect(trustedForMs).toBeGreaterThan(0);
  expect(await leftSeconds(busy.job.leaseId)).toBeGreaterThan(0);
  expect(busy.lost).toEqual([]);
  await eventually(() => expect(dead.lost).toEqual([dead.job.id]));
});

function blockFor(ms: number): void {
  const until = performance.now() + ms;
  while (performance.now() < until);
}

test('a tenant whose node does not answer delays no renewal of a tenant of another node', async () => {
  const other = await addTenant(context.db);
  const of = { db: context.db, ...other };
  // The renewals of the first tenant wait for a lock, for a third of the lease each.
  const leaseSeconds = 3600;
  const renewalOnNode = (schema: Schema) => onNode(schema, schema === context.schema ? 'one' : 'two');
  const silent = await holdJob({ leaseSeconds, renewalOnNode });
  await nextBeat(silent.job.leaseId);
  await context.db.transaction(async (tx) => {
    await tx.query(`select 1 from ${context.schema}.leases where id = $1 for update`, [silent.lease.leaseId]);
    await eventually(async () => expect(await context.db.query(lockWaiters(context.schema))).not.toEqual([]));
    const healthy = await holdJob({ leaseSeconds, of, heartbeat: silent.heartbeat });
    for (let n = 0; n < 2; n++) await nextBeat(healthy.job.leaseId, other.schema);
    expect(healthy.lost).toEqual([]);
  }, staysOpen);
  await nextBeat(silent.job.leaseId);
  expect(silent.lost).toEqual([]);
});

test('the lease of a tenant that has left its node is renewed through the coordinator, then on the new node', async () => {
  const guards = { left: ['select 1 / 0'], present: ['select 1'] };
  let guard = guards.left;
  const seen: string[][] = [];
  const renewalOnNode = (schema: Schema) => {
    seen.push(guard);
    return { ...onNode(schema, 'one'), guard };
  };
  const held = await holdJob({ leaseSeconds: 3600, renewalOnNode });
  for (let n = 0; n < 2; n++) await nextBeat(held.job.leaseId);
  guard = guards.present;
  await eventually(() => expect(seen).toContain(guards.present));
  for (let n = 0; n < 2; n++) await nextBeat(held.job.leaseId);
  expect(held.lost).toEqual([]);
});

/** What a cluster returns, with this server as the node. */
function onNode(schema: Schema, node: string): StatementOnNode {
  return { node, url: context.url, guard: [], text: renewal.text(schema) };
}

test('a full pool does not lose a lease', async () => {
  const daemon = await startDaemon(context, { env: { DATABASE_POOL_MAX: '2', LEASE_SECONDS: '8' } });
  const job = await addJob(context, { type: 'demo.sleep', payload: { seconds: 600 } });
  await eventually(async () => expect((await reread(context, job)).status).toBe('RUNNING'));
  const { leaseId, leaseExpiresAt } = await reread(context, job);
  const hogs = [1, 2].map(() => daemon.db.transaction((tx) => tx.query('select pg_sleep(600)')).catch(() => {}));
  await eventually(async () => {
    const [row] = await context.db.query<{ past: boolean }>('select now() > $1::timestamptz as past', [leaseExpiresAt]);
    expect(row?.past).toBe(true);
  });
  expect(await reread(context, job)).toMatchObject({ status: 'RUNNING', leaseId, attempt: 1 });
  await context.db.query(
    `select pg_terminate_backend(pid) from pg_stat_activity
      where datname = current_database() and query = 'select pg_sleep(600)'`,
  );
  await Promise.all(hogs);
});

test('a handler whose lease was taken over is aborted with leaseLost, and its outcome is refused', async () => {
  let reason: unknown;
  const wait = defineJob({
    type: 'wait',
    run: ({ signal }) =>
      new Promise((resolve) => {
        signal.addEventListener('abort', () => {
          reason = stopReasonOf(signal);
          resolve({ zombie: true });
        });
      }),
  });
  await startDaemon(context, { handlers: [wait] });
  const job = await addJob(context, { type: 'wait' });
  await eventually(async () => expect((await reread(context, job)).status).toBe('RUNNING'));
  const running = await reread(context, job);
  await finish(context, running, { kind: 'fail', error: { code: 'X', message: 'taken' } });
  await eventually(() => expect(reason).toEqual({ kind: 'leaseLost' }));
  expect(await reread(context, job)).toMatchObject({ status: 'ERROR', error: { code: 'X' }, result: null });
});

test('assert_lease allows only the holder to commit', async () => {
  const job = await addJob(context, { targetId: 'asserted' });
  const held = (await claim(context)).jobs.find((j) => j.id === job.id) as Job;
  const assertLease = (lease: string | null) =>
    context.db.query(`select ${context.schema}.assert_lease($1, $2)`, [job.id, lease]);
  await assertLease(held.leaseId);
  await expect(assertLease(crypto.randomUUID())).rejects.toMatchObject({ code: 'LH001' });
  await expireLease(context, held.leaseId as string);
  await expect(assertLease(held.leaseId)).rejects.toMatchObject({ code: 'LH001' });
  await finish(context, held);
  await expect(assertLease(held.leaseId)).rejects.toMatchObject({ code: 'LH001' });
});
