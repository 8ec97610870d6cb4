// Only in `npm run test:pgbouncer`: prepared statements through the real pooler, over several server processes. PgBouncer keeps them from
// 1.21 on if its `max_prepared_statements` is not 0.
import pg from 'pg';
import { expect, onTestFinished, test } from 'vitest';
import { Database } from '../../../../server/database/database.ts';
import { createLogger } from '../../../../server/kernel/logger.ts';
import { useDatabase } from '../../../support/postgres/database.ts';

const context = useDatabase();

test.runIf(process.env.TEST_POOLER_URL)('statements are prepared exactly if the pooler keeps them', async () => {
  const db = new Database({ url: context.url, poolMax: 4, logger: createLogger('silent') });
  onTestFinished(() => db.close());
  const text = 'select $1::int as n, pg_sleep(0.01) is null as slept /* through the pooler */';
  for (let round = 0; round < 10; round++) {
    const rows = Array.from({ length: 8 }, (_, n) => db.query<{ n: number }>(text, [n], 'keepPlan'));
    expect((await Promise.all(rows)).map(([row]) => row?.n)).toEqual([0, 1, 2, 3, 4, 5, 6, 7]);
  }
  // One of them may ask a server process that has not run the statement.
  const used = await Promise.all(
    Array.from({ length: 4 }, () =>
      db.query<{ kept: number }>(
        `select p.generic_plans::int as kept, pg_sleep(0.1) from pg_prepared_statements as p where statement = $1`,
        [text],
      ),
    ),
  );
  expect(used.flat().some(({ kept }) => kept > 0)).toBe(await keepsNames());
});

/** Asks in another way than the product does: a name that only the client knows. */
async function keepsNames(): Promise<boolean> {
  const client = new pg.Client(context.url);
  await client.connect();
  try {
    // A transaction stays on one server process.
    await client.query('begin');
    await client.query({ name: `of_client_${process.pid}`, text: 'select 1 as one /* of the client */' });
    const { rows } = await client.query(
      `select from pg_prepared_statements where statement like '%of the client *%' and name like 'of\\_client%'`,
    );
    return rows.length === 0;
  } finally {
    await client.query('deallocate all; commit');
    await client.end();
  }
}
