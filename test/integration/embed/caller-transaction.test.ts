// Jobs that are enqueued in a transaction of the caller: visible with its commit, in the order of their lanes, and in
// nobody's way while it is open.
import { sql as drizzleSql } from 'drizzle-orm';
import { drizzle } from 'drizzle-orm/node-postgres';
import { Kysely, PostgresDialect } from 'kysely';
import pg from 'pg';
import { afterAll, beforeAll, expect, onTestFinished, test } from 'vitest';
import { createLeasehold, type Leasehold } from '../../../server/embed/index.ts';
import { readHistory } from '../../../server/events/log/read-log.ts';
import { cancelJob, pauseJob } from '../../../server/jobs/actions/pause-and-cancel.ts';
import { enqueue } from '../../../server/jobs/enqueue/enqueue.ts';
import { queueDueJobs } from '../../../server/jobs/finish/due-jobs.ts';
import { findJob } from '../../../server/jobs/read/read-jobs.ts';
import { verifyTenant } from '../../../server/verify/verify-tenant.ts';
import { defineJob } from '../../../server/worker/handlers/define-job.ts';
import { eventually } from '../../support/eventually.ts';
import { checkInvariants } from '../../support/model/invariants.ts';
import { addTenant, listenSettings, useTenant } from '../../support/postgres/database.ts';

const context = useTenant();
const noop = defineJob({ type: 'noop', run: () => 'done' });
const waiter = defineJob({ type: 'waiter', run: async ({ waitForEvent }) => (await waitForEvent('signed')).data });
const phased = defineJob({ type: 'phased', phases: [{ name: 'one', run: () => 1 }] });
let worker: Leasehold;
let pool: pg.Pool;

beforeAll(async () => {
  pool = new pg.Pool({ connectionString: context.url, max: 5 });
  // No poll within the time of the tests: what runs was announced by the commit.
  const settings = { pollIntervalSeconds: 3600, sweepIntervalSeconds: 3600, ...listenSettings(context) };
  worker = await createLeasehold({ databaseUrl: context.url, jobs: [noop, phased, waiter], logger: false, settings });
  await worker.start();
});
afterAll(async () => {
  await worker.stop({ graceSeconds: 0 });
  await pool.end();
  await checkInvariants(context);
  // The log shows the order in which jobs entered their lanes, also of those whose transactions committed late.
  expect((await verifyTenant(context.db, context.schema)).violations).toEqual([]);
});

async function begin(isolation = ''): Promise<pg.PoolClient> {
  const client = await pool.connect();
  onTestFinished(() => client.release(true));
  await client.query(`begin ${isolation}`);
  return client;
}

const statusOf = async (id: string) => (await findJob(context.db, context.schema, id))?.status;
const succeeds = (id: string) => eventually(async () => expect(await statusOf(id)).toBe('SUCCESS'));

test('a job exists after the commit, and runs', async () => {
  const tx = await begin();
  const plain = await worker.enqueue('acme', noop, { n: 1 }, { tx });
  const inLane = await worker.enqueue('acme', phased, { n: 2 }, { tx, targetId: 'desk', author: 'ada' });
  expect(await statusOf(plain.id)).toBeUndefined();
  expect(await statusOf(inLane.id)).toBeUndefined();
  await tx.query('commit');
  await succeeds(plain.id);
  await succeeds(inLane.id);
  const events = await context.db.query<{ type: string; actor: string }>(
    `select type, actor from ${context.schema}.events where job_id = $1 order by seq`,
    [inLane.id],
  );
  expect(events.slice(0, 3).map(({ type }) => type)).toEqual(['job.enqueued', 'job.due', 'job.started']);
  expect(events[0]?.actor).toBe('host');
});

test('what a transaction changes of an earlier job follows in its history', async () => {
  const runAt = new Date(Date.now() + 3_600_000);
  const unique = { key: 'report', conflict: 'replace' } as const;
  const { id } = await worker.enqueue('acme', noop, { n: 1 }, { unique, runAt });
  const tx = await begin();
  const { rows } = await tx.query(
    `select ${context.schema}.enqueue('noop', '{"n": 2}', unique_key => 'report', unique_conflict => 'replace') as id`,
  );
  const replaced = await worker.enqueue('acme', noop, { n: 3 }, { tx, unique });
  await tx.query('commit');
  expect([rows[0].id, replaced.id]).toEqual([id, id]);
  await cancelJob(context.db, context.schema, { jobId: id, actor: 'user:ann' });
  const history = async () => (await readHistory(context.db, context.schema, { jobId: id, limit: 10 })).events;
  expect((await history()).map(({ type, actor }) => [type, actor.split(':')[0]])).toEqual([
    ['job.enqueued', 'host'],
    ['job.replaced', 'sql'],
    ['job.replaced', 'host'],
    ['job.canceled', 'user'],
  ]);
});

test('a rollback leaves nothing', async () => {
  const tx = await begin();
  const { id } = await worker.enqueue('acme', phased, {}, { tx, targetId: 'gone', idempotencyKey: 'gone' });
  await tx.query('rollback');
  for (const [table, column] of [
    ['jobs', 'id'],
    ['events', 'job_id'],
    ['phases', 'job_id'],
  ]) {
    expect(await context.db.query(`select 1 from ${context.schema}.${table} where ${column} = $1`, [id])).toEqual([]);
  }
  expect(await context.db.query(`select 1 from ${context.schema}.targets where id = 'gone'`)).toEqual([]);
});

test('an open transaction blocks nothing, not even its own lane', async () => {
  const tx = await begin();
  const open = await worker.enqueue('acme', noop, {}, { tx, targetId: 'shared' });
  const fresh = await worker.enqueue('acme', noop, {}, { tx, targetId: 'new-target' });
  // Other tests use the same server: only what this transaction holds, and who waits for it.
  const [own] = (await tx.query<{ pid: number }>('select pg_backend_pid() as pid')).rows;
  const locks = `select relation::regclass::text from pg_locks where pid = $1 and (locktype = 'tuple' or not granted)`;
  expect(await context.db.query(locks, [own?.pid])).toEqual([]);
  const waiting = `select query from pg_stat_activity where $1 = any(pg_blocking_pids(pid))`;
  expect(await context.db.query(waiting, [own?.pid])).toEqual([]);
  for (const targetId of ['shared', 'new-target', 'other']) {
    const { id } = await worker.enqueue('acme', noop, {}, { targetId });
    await succeeds(id);
  }
  await tx.query('commit');
  await succeeds(open.id);
  await succeeds(fresh.id);
});

test('a job that is enqueued after the commit is behind it in the lane', async () => {
  const { schema, tenant } = await addTenant(context.db, 'ordered');
  const sender = await createLeasehold({ databaseUrl: context.url, jobs: [noop], logger: false });
  onTestFinished(() => sender.stop());
  await worker.stop({ graceSeconds: 0 });
  onTestFinished(async () => {
    worker = await createLeasehold({ databaseUrl: context.url, jobs: [noop, phased, waiter], logger: false });
    await worker.start();
  });
  const tx = await begin();
  const options = { tx, targetId: 'lane' };
  const inTransaction = await sender.enqueueMany(
    'ordered',
    [1, 2, 3].map((payload) => ({ job: noop, payload, targetId: 'lane' })),
    { tx },
  );
  inTransaction.push(await sender.enqueue('ordered', noop, 4, options));
  const [first] = await enqueue(context.db, schema, [{ type: 'noop', payload: 0, targetId: 'lane' }], 'test');
  await tx.query('commit');
  const last = await sender.enqueue('ordered', noop, 5, { targetId: 'lane' });
  const line = await context.db.query<{ id: string; lane_head: boolean }>(
    `select id, lane_head from ${schema}.jobs order by lane_head desc, lane_rank, lane_seq`,
  );
  expect(line.map((row) => row.id)).toEqual([first?.job.id, ...inTransaction.map(({ id }) => id), last.id]);
  expect(line.map((row) => row.lane_head)).toEqual([true, false, false, false, false, false]);
  expect(tenant.slug).toBe('ordered');
});

test('a job that is paused before it entered its lane holds it', async () => {
  const { schema } = await addTenant(context.db, 'paused');
  const sender = await createLeasehold({ databaseUrl: context.url, jobs: [noop], logger: false });
  onTestFinished(() => sender.stop());
  const tx = await begin();
  const held = await sender.enqueue('paused', noop, {}, { tx, targetId: 'lane', runAt: new Date(Date.now() + 3.6e6) });
  await tx.query('commit');
  await pauseJob(context.db, schema, { jobId: held.id, actor: 'test' });
  const [next] = await enqueue(context.db, schema, [{ type: 'noop', payload: 0, targetId: 'lane' }], 'test');
  expect(await findJob(context.db, schema, held.id)).toMatchObject({ status: 'PAUSED', laneHead: true });
  expect(next?.job).toMatchObject({ status: 'QUEUED', laneHead: false });
  expect(await queueDueJobs(context.db, schema, 'test')).toBe(0);
});

test('the same key is one job, whichever transaction commits first', async () => {
  const [one, two] = [await begin(), await begin()];
  const options = { targetId: 'once', idempotencyKey: 'once' };
  const first = await worker.enqueue('acme', noop, { n: 1 }, { ...options, tx: one });
  const again = await worker.enqueue('acme', noop, { n: 1 }, { ...options, tx: one });
  expect(again).toEqual({ ...first, replayed: true });
  const waiting = worker.enqueue('acme', noop, { n: 1 }, { ...options, tx: two });
  await one.query('commit');
  expect(await waiting).toEqual({ ...first, replayed: true });
  await expect(worker.enqueue('acme', noop, { n: 2 }, { ...options, tx: two })).rejects.toMatchObject({
    code: 'IDEMPOTENCY_CONFLICT',
  });
  await two.query('commit');
  expect(await worker.enqueue('acme', noop, { n: 1 }, options)).toEqual({ ...first, replayed: true });
  await succeeds(first.id);
});

test('several jobs are all enqueued or none, inside a transaction and without one', async () => {
  await worker.enqueue('acme', noop, { n: 0 }, { idempotencyKey: 'used' });
  const first = { job: noop, payload: { n: 1 }, idempotencyKey: 'unused', targetId: 'whole' };
  const jobs = [first, { job: noop, payload: { n: 2 }, idempotencyKey: 'used' }];
  const tx = await begin();
  await expect(worker.enqueueMany('acme', jobs, { tx })).rejects.toMatchObject({ code: 'IDEMPOTENCY_CONFLICT' });
  await tx.query('commit');
  await expect(worker.enqueueMany('acme', jobs)).rejects.toMatchObject({ code: 'IDEMPOTENCY_CONFLICT' });
  expect(await context.db.query(`select 1 from ${context.schema}.jobs where client_request_id = 'unused'`)).toEqual([]);
  const made = await worker.enqueueMany('acme', [first, { job: phased, payload: null }]);
  for (const { id } of made) await succeeds(id);
});

test('max_queued counts the jobs of the transaction', async () => {
  await addTenant(context.db, 'limited');
  const sender = await createLeasehold({ databaseUrl: context.url, jobs: [noop], logger: false });
  onTestFinished(() => sender.stop());
  await sender.tenants.configure('limited', { max_queued: 1 });
  const tx = await begin();
  await sender.enqueue('limited', noop, {}, { tx });
  await expect(sender.enqueue('limited', noop, {}, { tx })).rejects.toMatchObject({ code: 'QUEUE_FULL' });
});

test('takes the transaction of drizzle', async () => {
  const db = drizzle(pool);
  const handle = await db.transaction(async (tx) => {
    const job = await worker.enqueue('acme', phased, { by: 'drizzle' }, { tx, targetId: 'drizzle' });
    const { rows } = await tx.execute(drizzleSql`select 1 from tenant_acme.jobs where id = ${job.id}`);
    expect(rows).toHaveLength(1);
    expect(await statusOf(job.id)).toBeUndefined();
    return job;
  });
  await succeeds(handle.id);
  const failed = db.transaction(async (tx) => {
    await worker.enqueue('acme', noop, {}, { tx, idempotencyKey: 'drizzle' });
    tx.rollback();
  });
  await expect(failed).rejects.toThrow();
  expect(await context.db.query(`select 1 from ${context.schema}.jobs where client_request_id = 'drizzle'`)).toEqual(
    [],
  );
});

test('takes the transaction of Kysely', async () => {
  const db = new Kysely<Record<string, never>>({ dialect: new PostgresDialect({ pool }) });
  const handle = await db.transaction().execute(async (tx) => {
    const job = await worker.enqueue('acme', phased, { by: 'kysely' }, { tx, targetId: 'kysely' });
    expect(await statusOf(job.id)).toBeUndefined();
    return job;
  });
  await succeeds(handle.id);
  const failed = db.transaction().execute(async (tx) => {
    await worker.enqueue('acme', noop, {}, { tx, idempotencyKey: 'kysely' });
    throw new Error('changed my mind');
  });
  await expect(failed).rejects.toThrow('changed my mind');
  expect(await context.db.query(`select 1 from ${context.schema}.jobs where client_request_id = 'kysely'`)).toEqual([]);
});

test('refuses an object that is not a transaction', async () => {
  await expect(worker.enqueue('acme', noop, {}, { tx: pool })).rejects.toThrow('tx is a pool');
  const client = await pool.connect();
  onTestFinished(() => client.release());
  await expect(worker.enqueue('acme', noop, {}, { tx: client })).rejects.toThrow('without an open transaction');
  await expect(worker.enqueue('acme', noop, {}, { tx: {} as never })).rejects.toThrow('tx has no query');
});

test('an event from outside is delivered with the commit, and not after a rollback', async () => {
  const { id } = await worker.enqueue('acme', waiter, {});
  await eventually(async () => expect(await statusOf(id)).toBe('WAITING'));
  const dropped = await begin();
  await worker.sendEvent('acme', 'signed', 'no', { tx: dropped });
  await dropped.query('rollback');
  const tx = await begin();
  const receipt = await worker.sendEvent('acme', 'signed', 'yes', { tx, id: 's1' });
  expect(receipt).toMatchObject({ id: 's1', name: 'signed', replayed: false });
  expect(await statusOf(id)).toBe('WAITING');
  await tx.query('commit');
  await succeeds(id);
  expect((await findJob(context.db, context.schema, id))?.result).toBe('yes');
  expect(await worker.sendEvent('acme', 'signed', 'yes', { id: 's1' })).toMatchObject({ replayed: true });
  const unique = { key: 'k' };
  const one = await worker.enqueue('acme', noop, { n: 1 }, { unique, runAt: '2199-01-01T00:00:00Z' });
  expect(await worker.enqueue('acme', noop, { n: 2 }, { unique })).toMatchObject({ id: one.id, unique: 'skipped' });
});
