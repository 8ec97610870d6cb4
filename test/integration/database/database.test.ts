// Transactions whose statements are sent at once: all or nothing, in the order in which they were sent.
import { expect, onTestFinished, test } from 'vitest';
import { Database } from '../../../server/database/database.ts';
import { isOutage } from '../../../server/database/servers/availability.ts';
import { isConnectionError, sqlState } from '../../../server/database/sql-errors.ts';
import { createLogger } from '../../../server/kernel/logger.ts';
import { eventually } from '../../support/eventually.ts';
import { citusCluster } from '../../support/postgres/citus.ts';
import { directUrl, useDatabase } from '../../support/postgres/database.ts';
import { startProxy } from '../../support/postgres/proxies/proxy.ts';

const context = useDatabase();
let number = 0;

/** One connection, and a table of its own. */
async function open(url = context.url): Promise<{ db: Database; table: string; read(): Promise<number[]> }> {
  const db = new Database({ url, poolMax: 1, logger: createLogger('silent') });
  onTestFinished(() => db.close());
  const table = `together_${++number}`;
  await context.db.query(`create table ${table} (seq int generated always as identity, n int check (n < 100))`);
  const read = async () => {
    const rows = await context.db.query<{ n: number }>(`select n from ${table} order by seq`);
    return rows.map((row) => row.n);
  };
  return { db, table, read };
}

test('all statements are one transaction, in the order in which they were sent', async () => {
  const { db, table, read } = await open();
  const insert = `insert into ${table} (n) values ($1) returning n, pg_current_xact_id()::text as xid`;
  const answers = await db.pipelinedTransaction((tx) =>
    Promise.all([tx.query(insert, [1], 'prepared'), tx.query(insert, [2]), tx.query(insert, [3], 'prepared')]),
  );
  expect(answers.map(([row]) => row?.n)).toEqual([1, 2, 3]);
  expect(new Set(answers.map(([row]) => row?.xid)).size).toBe(1);
  expect(await read()).toEqual([1, 2, 3]);
});

test.each([0, 1, 2])('if statement %i of three fails, all are rolled back, and its error is thrown', async (bad) => {
  const { db, table, read } = await open();
  const insert = `insert into ${table} (n) values ($1)`;
  const failing = db.pipelinedTransaction((tx) =>
    Promise.all([0, 1, 2].map((n) => tx.query(insert, [n === bad ? 100 : n], 'prepared'))),
  );
  expect(sqlState(await failing.catch((error: unknown) => error))).toBe('23514');
  expect(await read()).toEqual([]);
  // The connection is as good as before.
  await db.pipelinedTransaction((tx) => tx.query(insert, [7], 'prepared'));
  expect(await read()).toEqual([7]);
  expect(db.pool.totalCount).toBe(1);
});

test.each(['pipelinedTransaction', 'transaction'] as const)(
  '%s reports the first error, not that the transaction had failed before',
  async (way) => {
    const { db, table } = await open();
    const insert = `insert into ${table} (n) values ($1)`;
    // The answers come at once; that of the second is seen first by whoever waits for both.
    const deeper = async (answer: Promise<unknown>) => await Promise.all([answer.then((rows) => rows)]);
    const failing = db[way]((tx) => Promise.all([deeper(tx.query(insert, [100])), tx.query(insert, [1])]));
    expect(sqlState(await failing.catch((error: unknown) => error))).toBe('23514');
  },
);

test('a statement that the server refused to prepare is dropped without a DEALLOCATE', async () => {
  const { db, table } = await open();
  const failing = `insert into ${table} (n) values (100)`;
  const refused = (n: number) => `select $1::int as n /* refused ${n} */`;
  // Each is worth a name by its third use, which stands behind a statement that fails.
  for (let n = 0; n < 3; n++) {
    for (let use = 0; use < 2; use++) await db.query(refused(n), [n], 'prepared');
    const all = db.pipelinedTransaction((tx) =>
      Promise.all([tx.query(failing), tx.query(refused(n), [n], 'prepared')]),
    );
    await expect(all).rejects.toThrow('check constraint');
  }
  for (let n = 0; n < 60; n++) {
    for (let use = 0; use < 3; use++) {
      const text = `select $1::int as n /* ${n} */`;
      expect(await db.transaction((tx) => tx.query(text, [n], 'prepared'))).toEqual([{ n }]);
    }
  }
});

test('a connection that is cut in between leaves nothing behind', async () => {
  const { db, table, read } = await open();
  const insert = `insert into ${table} (n) values ($1)`;
  const cut = db
    .pipelinedTransaction((tx) =>
      Promise.all([tx.query(insert, [1]), tx.query('select pg_sleep($1)', [60]), tx.query(insert, [2])]),
    )
    .catch((error: unknown) => error);
  await eventually(async () => {
    const ended = await context.db.query(
      `select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and wait_event = 'PgSleep'`,
    );
    expect(ended).toHaveLength(1);
  });
  expect(isConnectionError(await cut)).toBe(true);
  expect(await read()).toEqual([]);
  await db.pipelinedTransaction((tx) => tx.query(insert, [3]));
  expect(await read()).toEqual([3]);
});

test('a statement after the COMMIT is refused instead of being its own transaction', async () => {
  const { db, table, read } = await open();
  const insert = `insert into ${table} (n) values ($1)`;
  const late = db.pipelinedTransaction(async (tx) => {
    await tx.query(insert, [1]);
    await tx.query(insert, [2]);
  });
  await expect(late).rejects.toThrow('after the COMMIT');
  expect(await read()).toEqual([1]);
});

// Plans are kept neither behind a pooler nor on a cluster.
test.skipIf(process.env.TEST_POOLER_URL || citusCluster())(
  'settings of the transaction are not those of other statements',
  async () => {
    const { db } = await open();
    const settings = `select current_setting('plan_cache_mode') as plans, current_setting('enable_seqscan') as scans`;
    const within = await db.pipelinedTransaction((tx) => tx.query(settings));
    expect(within).toEqual([{ plans: 'force_generic_plan', scans: 'off' }]);
    expect(await db.query(settings)).toEqual([{ plans: 'force_custom_plan', scans: 'on' }]);
  },
);

test('behind a pooler no session state is left', async () => {
  const { db, table, read } = await open((await startProxy(directUrl(context), { asPooler: true })).url);
  const insert = `insert into ${table} (n) values ($1)`;
  for (let n = 0; n < 5; n++) {
    const [, [row]] = await db.pipelinedTransaction((tx) =>
      Promise.all([
        tx.query(insert, [n], 'prepared'),
        tx.query<{ plans: string }>(`select current_setting('plan_cache_mode') as plans`),
      ]),
    );
    expect(row).toEqual({ plans: 'auto' });
  }
  expect(await read()).toEqual([0, 1, 2, 3, 4]);
  expect(await db.query('select name from pg_prepared_statements')).toEqual([]);
});

test('statements of a transaction keep their order, also on a new connection', async () => {
  const { db, table, read } = await open();
  const insert = `insert into ${table} (n) values ($1)`;
  // The first of them asks what it leads to, the second needs not know: it may not overtake.
  await db.transaction((tx) => Promise.all([tx.query(insert, [1], 'prepared'), tx.query(insert, [2])]));
  expect(await read()).toEqual([1, 2]);
});

// A statement that had the snapshot of the one before it would miss what that one waited for.
test('each statement sees what was committed while the one before it waited for a lock', async () => {
  const { db, table } = await open();
  await context.db.query(`insert into ${table} (n) values (1)`);
  let release = (): void => {};
  const released = new Promise<void>((resolve) => {
    release = resolve;
  });
  let lock = (): void => {};
  const locked = new Promise<void>((resolve) => {
    lock = resolve;
  });
  const holder = context.db.transaction(async (tx) => {
    await tx.query(`update ${table} set n = 2`);
    lock();
    await released;
  });
  await locked;
  const reads = db.pipelinedTransaction((tx) =>
    Promise.all([tx.query(`select n from ${table} for update`), tx.query(`select n from ${table}`)]),
  );
  await eventually(async () => {
    const waiting = await context.db.query(
      `select pid from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`,
    );
    expect(waiting).toHaveLength(1);
  });
  release();
  await holder;
  expect((await reads)[1]).toEqual([{ n: 2 }]);
});

test('a value that cannot be encoded sends nothing, not even the statements before it', async () => {
  const { db, table, read } = await open();
  const insert = `insert into ${table} (n) values ($1)`;
  const broken = {
    toPostgres: () => {
      throw new Error('no such value');
    },
  };
  for (const reuse of [undefined, 'prepared', 'prepared', 'prepared'] as const) {
    const failing = db.pipelinedTransaction((tx) =>
      Promise.all([tx.query(insert, [1]), tx.query(insert, [broken], reuse), tx.query(insert, [2])]),
    );
    await expect(failing).rejects.toThrow('no such value');
  }
  await db.pipelinedTransaction((tx) => tx.query(insert, [3], 'prepared'));
  expect(await read()).toEqual([3]);
});

test('an error of the commit itself rejects every statement', async () => {
  const { db, table, read } = await open();
  await context.db.query(`alter table ${table} add constraint once unique (n) deferrable initially deferred`);
  const insert = `insert into ${table} (n) values ($1)`;
  const failing = db.pipelinedTransaction((tx) => Promise.allSettled([tx.query(insert, [1]), tx.query(insert, [1])]));
  expect(sqlState(await failing.catch((error: unknown) => error))).toBe('23505');
  expect(await read()).toEqual([]);
});

test('a limit for locks holds for its transaction only', async () => {
  const { db } = await open();
  const limit = `select current_setting('lock_timeout') as "lock"`;
  const [before] = await db.query(limit);
  expect(await db.pipelinedTransaction((tx) => tx.query(limit), { lockTimeoutMs: 321 })).toEqual([{ lock: '321ms' }]);
  expect(await db.query(limit)).toEqual([before]);
});

test('a connection that the server ends after the pool was closed is not reported', async () => {
  const { db } = await open();
  await db.query('select 1');
  const client = {} as Parameters<typeof db.pool.emit>[1];
  const [before, closing] = [new Error('lost while open'), new Error('lost while closing')];
  db.pool.emit('error', before, client);
  await db.close();
  // The sockets may still be open, and the server may send an error before it reads that they are closed.
  db.pool.emit('error', closing, client);
  expect([isOutage(before), isOutage(closing)]).toEqual([true, false]);
});
