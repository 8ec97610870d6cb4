// Named statements: what is sent often is parsed once per connection, a bounded number of them. Where the server process
// behind the connection may be another one the next time, only a pooler that keeps them gets any.
import { beforeEach, expect, onTestFinished, test } from 'vitest';
import { Database } from '../../../../server/database/database.ts';
import { retryConflicts, sqlState } from '../../../../server/database/sql-errors.ts';
import { createLogger } from '../../../../server/kernel/logger.ts';
import { citusCluster } from '../../../support/postgres/citus.ts';
import { useDatabase } from '../../../support/postgres/database.ts';
import { startProxy } from '../../../support/postgres/proxies/proxy.ts';

const context = useDatabase();
// Nothing is named behind a pooler.
beforeEach(({ skip }) => skip(process.env.TEST_POOLER_URL !== undefined));

/** One connection, so that what it has named can be asked of it; it knows already what it leads to. */
async function openOne(url = context.url): Promise<Database> {
  const db = new Database({ url, poolMax: 1, logger: createLogger('silent') });
  onTestFinished(() => db.close());
  await db.query('select 1');
  return db;
}

async function named(db: Database): Promise<string[]> {
  const rows = await db.query<{ statement: string }>('select statement from pg_prepared_statements order by statement');
  return rows.map((row) => row.statement);
}

async function processOf(db: Database): Promise<number | undefined> {
  return (await db.query<{ pid: number }>('select pg_backend_pid() as pid'))[0]?.pid;
}

async function use(db: Database, text: string, times: number): Promise<void> {
  for (let n = 0; n < times; n++) expect(await db.query(text, [n], 'prepared')).toEqual([{ n }]);
}

const numbered = (n: number) => `select $1::int as n /* ${String(n).padStart(3, '0')} */`;

test('a text is prepared at its third use, with the same results', async () => {
  const db = await openOne();
  await use(db, numbered(1), 2);
  expect(await named(db)).toEqual([]);
  await use(db, numbered(1), 1);
  expect(await named(db)).toEqual([numbered(1)]);
  await use(db, numbered(1), 3);
  expect(await named(db)).toEqual([numbered(1)]);
});

test('statements of transactions are prepared too, and stay so after a rollback', async () => {
  const db = await openOne();
  const failing = db.transaction(async (tx) => {
    for (let n = 0; n < 3; n++) await tx.query(numbered(1), [n], 'prepared');
    throw new Error('no');
  });
  await expect(failing).rejects.toThrow('no');
  expect(await named(db)).toEqual([numbered(1)]);
  await use(db, numbered(1), 1);
  // What the first of them set in that transaction went with it, and was set again.
  expect(await db.query('show plan_cache_mode')).toEqual([{ plan_cache_mode: 'force_custom_plan' }]);
});

test('a statement that is not marked as frequent is never prepared', async () => {
  const db = await openOne();
  for (let n = 0; n < 10; n++) await db.query(numbered(1), [n]);
  expect(await named(db)).toEqual([]);
});

test('a text that is used rarely is not prepared', async () => {
  const db = await openOne();
  await use(db, numbered(0), 2);
  for (let n = 1; n <= 200; n++) await use(db, numbered(n), 1);
  await use(db, numbered(0), 2);
  expect(await named(db)).toEqual([]);
  await use(db, numbered(0), 1);
  expect(await named(db)).toEqual([numbered(0)]);
});

test('fifty texts are prepared; another one replaces the least recently used', async () => {
  const db = await openOne();
  for (let n = 1; n <= 50; n++) await use(db, numbered(n), 3);
  expect(await named(db)).toEqual(Array.from({ length: 50 }, (_, n) => numbered(n + 1)));
  await use(db, numbered(1), 1);
  await use(db, numbered(51), 3);
  // The second: the first was used again.
  const left = [1, ...Array.from({ length: 49 }, (_, n) => n + 3)].map(numbered);
  expect(await named(db)).toEqual(left.sort());
  // It is sent without a name at first, and may earn another.
  await use(db, numbered(2), 2);
  expect(await named(db)).toEqual(left);
  await use(db, numbered(2), 1);
  expect(await named(db)).toEqual([numbered(1), numbered(2), ...left.slice(2)]);
});

test('names that the server has forgotten fail once; the connection is dropped, and a retry succeeds', async () => {
  const db = await openOne();
  const forgetful = async () => {
    await db.query('select 1');
    await use(db, numbered(1), 3);
    await db.query('deallocate all');
    return processOf(db);
  };
  const first = await forgetful();
  const error = await db.query(numbered(1), [7], 'prepared').catch((reason: unknown) => reason);
  expect(sqlState(error)).toBe('26000');
  expect(db.pool.totalCount).toBe(0);
  expect(await db.query(numbered(1), [7], 'prepared')).toEqual([{ n: 7 }]);
  const second = await forgetful();
  expect(second).not.toBe(first);
  expect(await retryConflicts(() => db.query(numbered(1), [8], 'prepared'))).toEqual([{ n: 8 }]);
  const third = await forgetful();
  expect(third).not.toBe(second);
  const inTransaction = () => db.transaction((tx) => tx.query(numbered(1), [9], 'prepared'));
  expect(await retryConflicts(inTransaction)).toEqual([{ n: 9 }]);
});

test('a prepared statement whose columns have changed fails once, and a retry succeeds', async () => {
  const db = await openOne();
  await db.query('create table changing (a int)');
  await db.query('insert into changing values (1)');
  const look = () => db.query('select * from changing', [], 'prepared');
  for (let n = 0; n < 3; n++) expect(await look()).toEqual([{ a: 1 }]);
  await db.query('alter table changing add column b int');
  await expect(look()).rejects.toThrow('cached plan');
  expect(await look()).toEqual([{ a: 1, b: null }]);
  for (let n = 0; n < 3; n++) await look();
  expect(await named(db)).toEqual(['select * from changing']);
  await db.query('alter table changing add column c int');
  expect(await retryConflicts(look)).toEqual([{ a: 1, b: null, c: null }]);
});

test('a statement is parsed once, and planned for its values', async () => {
  const db = await openOne();
  await use(db, numbered(1), 20);
  const plans = await db.query(
    'select generic_plans::int as kept, custom_plans::int as made from pg_prepared_statements where statement = $1',
    [numbered(1)],
  );
  expect(plans).toEqual([{ kept: 0, made: 18 }]);
});

/** The texts that its connection is sent from now on. */
async function recordSent(db: Database): Promise<string[]> {
  const client = await db.pool.connect();
  const sent: string[] = [];
  const query = client.query.bind(client) as (...given: unknown[]) => unknown;
  client.query = ((...given: [string | { text: string }, ...unknown[]]) => {
    sent.push(typeof given[0] === 'string' ? given[0] : given[0].text);
    return query(...given);
  }) as never;
  client.release();
  return sent;
}

// The coordinator of a cluster keeps no plans.
test.skipIf(citusCluster())('transactions that keep plans set this once, also after a rollback', async () => {
  const db = await openOne();
  const sent = await recordSent(db);
  const readMode = `select current_setting('plan_cache_mode') as plans, current_setting('enable_seqscan') as scans`;
  const kept = [{ plans: 'force_generic_plan', scans: 'off' }];
  for (let n = 0; n < 3; n++) {
    expect(await db.transaction((tx) => tx.query(readMode), { keepsPlans: true })).toEqual(kept);
    expect(await db.pipelinedTransaction((tx) => tx.query(readMode))).toEqual(kept);
    const failing = db.transaction((tx) => tx.query('select 1/0'), { keepsPlans: true });
    await expect(failing).rejects.toThrow('division');
  }
  const isSetting = (text: string) => text.includes('set_config');
  expect(sent.filter(isSetting)).toHaveLength(1);
  // Others are planned anew, in a transaction and alone.
  const anew = [{ plans: 'force_custom_plan', scans: 'on' }];
  expect(await db.transaction((tx) => tx.query(readMode))).toEqual(anew);
  expect(await db.query(readMode)).toEqual(anew);
  expect(sent.filter(isSetting)).toHaveLength(2);
});

test('behind a pooler that passes names on, no statement is prepared', async () => {
  const pooled = await openOne((await startProxy(context.url, { asPooler: true })).url);
  await use(pooled, numbered(1), 10);
  expect(await named(pooled)).toEqual([]);
  // Nor is anything set on a connection that others will use.
  expect(await pooled.query('show plan_cache_mode')).toEqual([{ plan_cache_mode: 'auto' }]);
  // Through a proxy that only passes on, the process is the one that greeted.
  const direct = await openOne((await startProxy(context.url)).url);
  await use(direct, numbered(1), 10);
  expect(await named(direct)).toEqual([numbered(1)]);
});

test('behind a pooler that keeps names, statements are prepared and nothing is set for a session', async () => {
  const db = await openBehindPooler();
  expect(await named(db)).toEqual([]);
  for (let n = 1; n <= 51; n++) await use(db, numbered(n), 3);
  const names = await db.query<{ name: string }>(
    `select name from pg_prepared_statements where statement like '%as n /*%'`,
  );
  // The first of them was closed for the last.
  expect(names.map(({ name }) => name).sort()).toEqual(names.map(() => expect.stringMatching(/^POOLER_lh_\d+$/)));
  expect(names.length).toBeGreaterThan(40);
  expect(names.length).toBeLessThan(51);
  await use(db, numbered(51), 5);
  await db.transaction((tx) => tx.query(numbered(51), [1], 'keepPlan'));
  const [plans] = await db.query(
    'select generic_plans::int as kept, custom_plans::int as made from pg_prepared_statements where statement = $1',
    [numbered(51)],
  );
  expect(plans).toEqual({ kept: 0, made: 7 });
  expect(await db.query('show plan_cache_mode')).toEqual([{ plan_cache_mode: 'auto' }]);
});

test.skipIf(citusCluster())('behind a pooler that keeps names, plans are kept on request', async () => {
  const db = await openBehindPooler();
  for (let n = 0; n < 8; n++) expect(await db.query(numbered(1), [n], 'keepPlan')).toEqual([{ n }]);
  await use(db, numbered(2), 8);
  const generic = `select statement, generic_plans::int as kept from pg_prepared_statements
                    where statement like '%as n /*%' order by statement`;
  expect(await db.query(generic)).toEqual([
    { statement: numbered(1), kept: 6 },
    { statement: numbered(2), kept: 0 },
  ]);
  const settings = `select current_setting('plan_cache_mode') as mode, current_setting('enable_seqscan') as scan`;
  expect(await db.query(settings)).toEqual([{ mode: 'auto', scan: 'on' }]);
});

test('behind a pooler, a statement that the server did not parse gets another name', async () => {
  const db = await openBehindPooler();
  await use(db, numbered(1), 2);
  const pid = await processOf(db);
  const failing = db.transaction(async (tx) => {
    await tx.query('select 1 / 0').catch(() => {});
    await tx.query(numbered(1), [1], 'prepared');
  });
  await expect(failing).rejects.toThrow('division by zero');
  await use(db, numbered(1), 3);
  expect(await named(db)).toContain(numbered(1));
  expect(await processOf(db)).toBe(pid);
});

test('behind a pooler that loses a prepared statement, no statement is prepared any more', async () => {
  const db = await openBehindPooler();
  await use(db, numbered(1), 3);
  await db.query('deallocate all');
  await expect(db.query(numbered(1), [7], 'prepared')).rejects.toThrow('does not exist');
  await use(db, numbered(1), 5);
  expect(await named(db)).toEqual([]);
});

async function openBehindPooler(): Promise<Database> {
  return openOne((await startProxy(context.url, { asPooler: true, renamesStatements: true })).url);
}

// The coordinator of a cluster plans for the values; test/citus looks at the nodes.
test.skipIf(citusCluster())('the plan of a statement is kept on request only', async () => {
  const db = await openOne();
  for (let n = 0; n < 8; n++) expect(await db.query(numbered(1), [n], 'keepPlan')).toEqual([{ n }]);
  await use(db, numbered(2), 8);
  const generic = 'select statement, generic_plans::int as kept from pg_prepared_statements order by statement';
  expect(await db.query(generic)).toEqual([
    { statement: numbered(1), kept: 6 },
    { statement: numbered(2), kept: 0 },
  ]);
  const settings = `select current_setting('plan_cache_mode') as mode, current_setting('enable_seqscan') as scan`;
  await db.query(numbered(1), [1], 'keepPlan');
  expect(await db.query(settings)).toEqual([{ mode: 'force_custom_plan', scan: 'on' }]);
  // A rollback does not bring the settings of kept plans back.
  await db.query(numbered(1), [1], 'keepPlan');
  const failing = db.transaction(async (tx) => {
    await tx.query(numbered(1), [1], 'keepPlan');
    expect(await tx.query(settings)).toEqual([{ mode: 'force_custom_plan', scan: 'on' }]);
    throw new Error('no');
  });
  await expect(failing).rejects.toThrow('no');
  expect(await db.query(settings)).toEqual([{ mode: 'force_custom_plan', scan: 'on' }]);
});

// Without BEGIN, the server would wait without limit for the rest of a message that a frozen client does not send.
test.skipIf(citusCluster())('only statements that fit into one message are sent without BEGIN', async () => {
  const db = await openOne();
  const sent = await recordSent(db);
  const send = (size: number) =>
    db.pipelinedTransaction((tx) => tx.query<{ length: number }>('select length($1)', ['x'.repeat(size)]));
  expect(await send(1000)).toEqual([{ length: 1000 }]);
  expect(sent.filter((text) => text.startsWith('begin'))).toEqual([]);
  expect(await send(20_000)).toEqual([{ length: 20_000 }]);
  expect(sent.filter((text) => text.startsWith('begin'))).toHaveLength(1);
});
