import { describe, expect, it } from 'vitest';
import type { Event } from '../../../../server/events/log/event.ts';
import { beginning, type Position } from '../../../../server/events/log/position.ts';
import { readNewEvents, readParameters, readStatement } from '../../../../server/events/log/read-new-events.ts';
import { openTransaction, writeEvent, writeOutOfOrder } from '../../../support/events.ts';
import { useTenant } from '../../../support/postgres/database.ts';

const context = useTenant();

async function now(): Promise<Position> {
  return (await readNewEvents(context.db, context.schema, beginning, { limit: 100_000 })).position;
}

async function drain(from: Position, limit: number): Promise<{ events: Event[]; position: Position }> {
  const events: Event[] = [];
  let position = from;
  for (;;) {
    const read = await readNewEvents(context.db, context.schema, position, { limit });
    events.push(...read.events);
    position = read.position;
    if (read.complete) return { events, position };
  }
}

const numbers = (events: Event[]) => events.map((event) => Number(event.data?.n));
const sorted = (values: number[]) => [...values].sort((a, b) => a - b);

describe('reading new events', () => {
  it('reads from the beginning, then only new events', async () => {
    const { db, schema } = context;
    const start = await now();
    for (const n of [1, 2, 3]) await writeEvent(db, schema, { n });
    const first = await readNewEvents(db, schema, start, { limit: 10 });
    expect(numbers(first.events)).toEqual([1, 2, 3]);
    expect(first).toMatchObject({ complete: true, moved: true, ahead: false });
    const second = await readNewEvents(db, schema, first.position, { limit: 10 });
    expect(second).toMatchObject({ events: [], complete: true, moved: false });
  });

  it('finds events that a long-open transaction commits late, and no reader waits for it', async () => {
    const { db, schema } = context;
    let position = await now();
    const slow = await openTransaction(context);
    await writeEvent(slow.tx, schema, { n: 1 });
    await writeEvent(db, schema, { n: 2 });
    const first = await drain(position, 10);
    expect(numbers(first.events)).toEqual([2]);
    position = first.position;
    for (let n = 3; n < 10; n++) {
      await writeEvent(db, schema, { n });
      const read = await drain(position, 10);
      expect(numbers(read.events)).toEqual([n]);
      position = read.position;
    }
    await writeEvent(slow.tx, schema, { n: 10 });
    await slow.commit();
    const late = await drain(position, 10);
    expect(numbers(late.events)).toEqual([1, 10]);
    expect((await drain(late.position, 10)).events).toEqual([]);
  });

  it('pages through a large read without a gap or a repetition, while more is written', async () => {
    const { db, schema } = context;
    const start = await now();
    const slow = await openTransaction(context);
    await writeEvent(slow.tx, schema, { n: 0 });
    for (let n = 1; n <= 25; n++) await writeEvent(db, schema, { n });
    const seen: number[] = [];
    let position = start;
    for (let page = 0, complete = false; !complete; page++) {
      const read = await readNewEvents(db, schema, position, { limit: 4 });
      seen.push(...numbers(read.events));
      position = read.position;
      complete = read.complete;
      // What commits after the first page belongs to a later read, wherever its number lies.
      if (page === 1) {
        await slow.commit();
        await writeEvent(db, schema, { n: 26 });
      }
    }
    expect(sorted(seen)).toEqual(Array.from({ length: 25 }, (_, i) => i + 1));
    expect(sorted(numbers((await drain(position, 4)).events))).toEqual([0, 26]);
  });

  it('filters by type, job and target, and still moves past the other events', async () => {
    const { db, schema } = context;
    const start = await now();
    await writeEvent(db, schema, { n: 1, type: 'a' });
    await writeEvent(db, schema, { n: 2, type: 'b', targetId: 't' });
    const ofType = await readNewEvents(db, schema, start, { limit: 10, types: ['b'] });
    expect(numbers(ofType.events)).toEqual([2]);
    const ofTarget = await readNewEvents(db, schema, start, { limit: 10, targetId: 't' });
    expect(numbers(ofTarget.events)).toEqual([2]);
    const none = await readNewEvents(db, schema, start, { limit: 10, types: ['c'] });
    expect(none).toMatchObject({ events: [], moved: true });
    expect((await readNewEvents(db, schema, none.position, { limit: 10 })).events).toEqual([]);
  });

  it('detects a position that is ahead of a restored log', async () => {
    const { db, schema } = context;
    // Others on this server count on meanwhile.
    const end = async (position = now()) => Number((await position).seen.split(':')[1]);
    const before = await end();
    // Beyond the next epochs too.
    const future = before + 2 ** 50;
    const read = await readNewEvents(db, schema, { seen: `${future}:${future}:` }, { limit: 10 });
    expect(read).toMatchObject({ events: [], ahead: true });
    const reached = await end(Promise.resolve(read.position));
    expect(reached).toBeGreaterThanOrEqual(before);
    expect(reached).toBeLessThanOrEqual(await end());
  });

  it('gives every event once, in the order of its target, under many writers', async () => {
    const { schema } = context;
    const start = await now();
    let writing = true;
    const written = writeOutOfOrder(context, { writers: 8, each: 25, targets: 5 }).finally(() => {
      writing = false;
    });
    const seen: Event[] = [];
    let position = start;
    while (writing) {
      const read = await drain(position, 10_000);
      seen.push(...read.events);
      position = read.position;
    }
    const committed = await written;
    seen.push(...(await drain(position, 10_000)).events);
    expect(committed.length).toBeGreaterThan(100);
    expect(sorted(numbers(seen))).toEqual(sorted(committed));
    for (const targetId of new Set(seen.map((event) => event.targetId))) {
      const ofTarget = numbers(seen.filter((event) => event.targetId === targetId));
      expect(ofTarget, `order of ${schema} ${targetId}`).toEqual(sorted(ofTarget));
    }
    // Small pages from the start find the same.
    const again = await drain(start, 7);
    expect(sorted(numbers(again.events))).toEqual(sorted(committed));
  });

  it('reads only new events, by the primary key, however old the oldest open transaction is', async () => {
    const { db, schema } = context;
    const slow = await openTransaction(context);
    await writeEvent(slow.tx, schema, { n: 0 });
    // Later than the open one, and over before anybody looks.
    await db.query(
      `insert into ${schema}.events (type, actor) select 'test.filler', 'test' from generate_series(1, 30000)`,
    );
    await db.query(`analyze ${schema}.events`);
    const position = (await drain(beginning, 100_000)).position;
    await writeEvent(db, schema, { n: 1 });
    const { text: read, values } = readStatement.bind(schema, readParameters(position, { limit: 100 }));
    const plan = await db.query<{ 'QUERY PLAN': string }>(
      `explain (analyze, costs off, timing off, summary off) ${read}`,
      values,
    );
    const text = plan.map((row) => row['QUERY PLAN']).join('\n');
    expect(text).not.toMatch(/Seq Scan on events/);
    const scanned = [...text.matchAll(/Scan .*on events.*rows=(\d+)/g)].map((match) => Number(match[1]));
    const removed = [...text.matchAll(/Rows Removed by (?:Filter|Index Recheck): (\d+)/g)].map((match) =>
      Number(match[1]),
    );
    expect(Math.max(0, ...scanned, ...removed)).toBeLessThan(10);
    await slow.rollback();
  });
});
