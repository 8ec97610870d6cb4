// A transaction that holds a lane's lock and says nothing more: requests of other lanes do not wait for it, and the
// server ends it when its client is one of ours.
import pg from 'pg';
import { expect, onTestFinished, test } from 'vitest';
import { Database } from '../../../../server/database/database.ts';
import { isLockTimeout, retryConflicts } from '../../../../server/database/sql-errors.ts';
import { CommitSignals } from '../../../../server/jobs/commit-signals.ts';
import { EnqueueGroupCommit } from '../../../../server/jobs/enqueue/group-commit.ts';
import { createLogger } from '../../../../server/kernel/logger.ts';
import { eventually } from '../../../support/eventually.ts';
import { addJob, addJobs } from '../../../support/jobs.ts';
import { citusCluster } from '../../../support/postgres/citus.ts';
import { useTenant } from '../../../support/postgres/database.ts';
import { startProxy } from '../../../support/postgres/proxies/proxy.ts';

const context = useTenant();
/** Requests wait for as long as a busy machine takes for the others. */
const longLock = { signals: new CommitSignals(), maxLockMs: 600_000 };
const on = (targetId: string) => ({ type: 'demo.echo', payload: {}, targetId });

/** Somebody else's transaction, which the server does not limit. */
async function lockLane(targetId: string): Promise<{ release(): Promise<void> }> {
  const client = new pg.Client(context.url);
  client.on('error', () => {});
  await client.connect();
  onTestFinished(() => client.end());
  await client.query('begin');
  await client.query(`select id from ${context.schema}.targets where id = $1 for update`, [targetId]);
  return { release: async () => void (await client.query('rollback')) };
}

async function orderOf(targetId: string): Promise<string[]> {
  const rows = await context.db.query<{ id: string }>(
    `select id from ${context.schema}.jobs where target_id = $1 order by lane_seq`,
    [targetId],
  );
  return rows.map((row) => row.id);
}

test('requests of other lanes are acknowledged while one lane is locked; those of the locked one follow in order', async () => {
  await addJobs(context, [on('held'), on('free')]);
  const group = new EnqueueGroupCommit(context.db, longLock);
  const enqueue = (targetId: string) => group.enqueue(context.tenant, [on(targetId)], 'test');
  const lock = await lockLane('held');
  const acknowledged: string[] = [];
  const waiting = [1, 2, 3].map((n) =>
    enqueue('held').then(([first]) => {
      acknowledged.push(`held ${n}`);
      return first?.job.id;
    }),
  );
  // In the same group as the locked ones, and in groups after it.
  await Promise.all([enqueue('free'), enqueue('new'), enqueue('free')]);
  for (let n = 0; n < 5; n++) await enqueue('free');
  const late = enqueue('held').then(([first]) => first?.job.id);
  await enqueue('free');
  expect(acknowledged).toEqual([]);
  await lock.release();
  const ids = [...(await Promise.all(waiting)), await late];
  expect(acknowledged).toEqual(['held 1', 'held 2', 'held 3']);
  expect((await orderOf('held')).slice(1)).toEqual(ids);
});

/** The database, with the first statement or transaction held back until `release`. */
function holdFirst() {
  const { db } = context;
  let release = (): void => {};
  const gate = new Promise<void>((resolve) => {
    release = resolve;
  });
  let sent = 0;
  const held = async <T>(send: () => Promise<T>) => {
    sent += 1;
    if (sent === 1) await gate;
    return send();
  };
  const view: Pick<Database, 'query' | 'transaction' | 'pipelinedTransaction'> = {
    query: (...given) => held(() => db.query(...given)) as never,
    transaction: (...given) => held(() => db.transaction(...given)),
    pipelinedTransaction: (...given) => held(() => db.pipelinedTransaction(...given)),
  };
  return { db: { forTenant: () => view } as unknown as Database, release, sent: () => sent };
}

test('a request without a lane does not wait for the commit before it', async () => {
  const { db, release, sent } = holdFirst();
  const group = new EnqueueGroupCommit(db, longLock);
  const enqueue = () => group.enqueue(context.tenant, [{ type: 'demo.echo', payload: {} }], 'test');
  const first = enqueue();
  await eventually(() => expect(sent()).toBe(1));
  await enqueue();
  release();
  expect((await first)[0]?.kind).toBe('created');
});

test('requests of lanes are committed in the order of their arrival', async () => {
  const { db, release, sent } = holdFirst();
  const group = new EnqueueGroupCommit(db, longLock);
  const enqueue = async (targetId: string) => (await group.enqueue(context.tenant, [on(targetId)], 'test'))[0]?.job.id;
  const first = enqueue('ordered');
  await eventually(() => expect(sent()).toBe(1));
  const second = enqueue('ordered');
  // Requests are sent in the next turn.
  for (let turn = 0; turn < 5; turn++) await new Promise((resolve) => setImmediate(resolve));
  expect(sent()).toBe(1);
  release();
  const ids = [await first, await second];
  expect(await orderOf('ordered')).toEqual(ids);
});

test('a request of another lane does not wait for the commit before it, nor for requests that do', async () => {
  const { db, release, sent } = holdFirst();
  const group = new EnqueueGroupCommit(db, longLock);
  const enqueue = async (targetId: string) => (await group.enqueue(context.tenant, [on(targetId)], 'test'))[0]?.job.id;
  const first = enqueue('side 1');
  await eventually(() => expect(sent()).toBe(1));
  const second = enqueue('side 1');
  await enqueue('side 2');
  await enqueue('side 2');
  release();
  const ids = [await first, await second];
  expect(await orderOf('side 1')).toEqual(ids);
});

test('a request whose lane stays locked is refused, and nothing of it is stored', async () => {
  await addJob(context, on('stuck'));
  const group = new EnqueueGroupCommit(context.db, { signals: new CommitSignals(), maxLockMs: 500 });
  await lockLane('stuck');
  const refused = group.enqueue(context.tenant, [on('stuck')], 'test');
  await expect(refused).rejects.toMatchObject({ code: 'TARGET_LOCKED' });
  expect(await orderOf('stuck')).toHaveLength(1);
});

test('a request whose idempotency key is locked by a silent transaction delays no other', async () => {
  const client = new pg.Client(context.url);
  await client.connect();
  onTestFinished(() => client.end());
  await client.query('begin');
  await client.query(
    `insert into ${context.schema}.jobs (id, status, type, queue, payload, client_request_id, lane_head, priority, max_attempts, on_error)
     select gen_random_uuid(), 'QUEUED', 'demo.echo', 'default', '{}', 'same', true, 2, 1, 'block'`,
  );
  const group = new EnqueueGroupCommit(context.db, longLock);
  const keyed = group.enqueue(context.tenant, [{ type: 'demo.echo', payload: {}, clientRequestId: 'same' }], 'test');
  await group.enqueue(context.tenant, [on('beside')], 'test');
  await client.query('commit');
  expect((await keyed)[0]?.kind).toBe('replayed');
});

// In a cluster the tenant's transactions go to its node, past the proxy.
test.skipIf(citusCluster()).each(['direct', 'pooled'])(
  'the server ends a silent transaction of ours (%s)',
  async (way) => {
    await addJob(context, on('silent'));
    const proxy = await startProxy(context.url, { asPooler: way === 'pooled' });
    const db = new Database({ url: proxy.url, poolMax: 1, logger: createLogger('silent') });
    onTestFinished(() => db.close());
    const lock = `select id from ${context.schema}.targets where id = 'silent' for update`;
    let gone = (): void => {};
    const vanished = new Promise<void>((resolve) => {
      gone = resolve;
    });
    const frozen = db.transaction(async (tx) => {
      await tx.query(lock);
      // From here on its host neither sends nor reads.
      proxy.blackHole();
      gone();
      await tx.query('select 1');
    });
    frozen.catch(() => {});
    await vanished;
    // Others need not be told: the lock is free before their own limit.
    await context.db.query(lock);
    proxy.heal();
    await expect(frozen).rejects.toThrow();
  },
);

test.each(['direct', 'pooled'])('a statement does not wait forever for a lock (%s)', async (way) => {
  await addJob(context, on('waited'));
  const proxy = await startProxy(context.url, { asPooler: way === 'pooled' });
  const db = new Database({ url: proxy.url, poolMax: 1, logger: createLogger('silent') });
  onTestFinished(() => db.close());
  const lock = `select id from ${context.schema}.targets where id = 'waited' for update`;
  const held = await lockLane('waited');
  expect(isLockTimeout(await db.query(lock).catch((error: unknown) => error))).toBe(true);
  await held.release();
  expect(await db.query(lock)).toEqual([{ id: 'waited' }]);
  // It was set for that transaction only.
  if (way === 'pooled') expect(await db.query('show lock_timeout')).toEqual([{ lock_timeout: '0' }]);
});

test('a transaction that lost its connection is retried', async () => {
  let tries = 0;
  const pid = await retryConflicts(() =>
    context.db.transaction(async (tx) => {
      const [own] = await tx.query<{ pid: number }>('select pg_backend_pid() as pid');
      tries += 1;
      if (tries === 1) {
        await context.db.query('select pg_terminate_backend($1::int)', [own?.pid]);
        await eventually(() => expect(tx.query('select 1')).rejects.toThrow());
        await tx.query('select 1');
      }
      return own?.pid;
    }),
  );
  expect(tries).toBe(2);
  expect(pid).toBeGreaterThan(0);
});
