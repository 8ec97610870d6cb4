import { expect, it } from 'vitest';
import { readLog } from '../../../../server/events/log/read-log.ts';
import { writeEvent } from '../../../support/events.ts';
import { useTenant } from '../../../support/postgres/database.ts';

const context = useTenant();

it('reads a bounded part of a large log for each page, and finds the start of a time range by binary search', async () => {
  const { db, schema } = context;
  await writeEvent(db, schema, { type: 'rare', n: 1 });
  // Above all transaction ids that the server of the tests has given out.
  const [rare] = await db.query<{ xid: string }>(`select max(xid::text::bigint)::text as xid from ${schema}.events`);
  const base = Number(rare?.xid) + 1_000_000;
  await db.query(
    `insert into ${schema}.events (xid, at, type, actor)
     select ($1::bigint + i)::text::xid8, now() + i * interval '1 second', 'common', 'test' from generate_series(1, 50000) i`,
    [base],
  );
  let pages = 0;
  let found = 0;
  let before: { xid: string; seq: string } | undefined;
  do {
    const page = await readLog(db, schema, { types: ['rare'], before, limit: 10 });
    found += page.events.length;
    before = page.next;
    pages++;
  } while (before);
  expect({ found, pages }).toEqual({ found: 1, pages: 3 });

  const [time] = await db.query<{ until: string }>(
    `select max(at) - interval '40000 seconds' as until from ${schema}.events`,
  );
  const old = await readLog(db, schema, { until: time?.until, limit: 3 });
  expect(old.events.map((event) => event.xid)).toEqual([9999, 9998, 9997].map((n) => String(base + n)));
  const window = await readLog(db, schema, { since: time?.until, until: time?.until, limit: 3 });
  expect(window).toEqual({ events: [], next: undefined });
});
