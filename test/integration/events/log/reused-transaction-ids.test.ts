// A server that crashes gives out transaction ids again: those of transactions whose records had not been written to its
// log, that is of rolled back ones. A position from before the crash must not claim that they have been read.
import { expect, test } from 'vitest';
import type { Schema } from '../../../../server/database/identifiers.ts';
import { EventListeners } from '../../../../server/events/log/event-listeners.ts';
import { beginning } from '../../../../server/events/log/position.ts';
import { readNewEvents } from '../../../../server/events/log/read-new-events.ts';
import { durableSnapshot } from '../../../../server/events/log/transaction-ids.ts';
import { createLogger } from '../../../../server/kernel/logger.ts';
import { openTransaction, writeEvent } from '../../../support/events.ts';
import { addTenant } from '../../../support/postgres/database.ts';
import { type PrivateServer, startPrivateServer } from '../../../support/postgres/private-server.ts';

test('a reader misses nothing after a crash of the server, although transaction ids are assigned again', async () => {
  const server = await startPrivateServer();
  const { db, schema } = server;
  const other = await addTenant(db);
  await db.query(`alter system set wal_writer_delay = '10s'`);
  await db.query('select pg_reload_conf()');
  let reused = false;
  let n = 0;
  // The server writes its log now and then by itself, and then no id is given out again.
  for (let round = 0; round < 5 && !reused; round++) {
    await writeEvent(db, schema, { n: ++n });
    for (let i = 0; i < 5; i++) await rollBack(server);
    const read = await readNewEvents(db, schema, beginning, { limit: 1000 });
    const fromNow = await now(server);
    const { listeners, received } = await listen(server, other.schema);
    const before = await nextXid(server);
    await server.crash();
    const written: number[] = [];
    for (let i = 0; i < 5; i++) {
      reused ||= (await nextXid(server)) < before;
      await writeEvent(db, schema, { n: ++n });
      written.push(n);
    }
    for (const position of [read.position, { seen: fromNow }]) {
      const { events } = await readNewEvents(db, schema, position, { limit: 1000 });
      expect(events.map((event) => event.data?.n)).toEqual(written);
    }
    await listeners.deliver(server.tenant);
    expect(received).toEqual(written);
  }
  expect(reused).toBe(true);
});

/** Listeners that were registered, and got nothing of the tenant yet. */
async function listen({ db, tenant }: PrivateServer, other: Schema) {
  const received: unknown[] = [];
  const listeners = new EventListeners(db, createLogger('silent'));
  listeners.on('*', ({ data }) => void received.push(data?.n));
  // The events of another tenant were read, so the time of the registration is known.
  await listeners.deliver({ ...tenant, schema: other });
  return { listeners, received };
}

async function rollBack(server: PrivateServer): Promise<void> {
  const transaction = await openTransaction(server);
  await writeEvent(transaction.tx, server.schema);
  await transaction.rollback();
}

async function nextXid({ db }: PrivateServer): Promise<bigint> {
  const [row] = await db.query<{ xmax: string }>('select pg_snapshot_xmax(pg_current_snapshot())::text as xmax');
  return BigInt(row?.xmax ?? 0);
}

async function now({ db, schema }: PrivateServer): Promise<string> {
  const [row] = await db.query<{ now: string }>(`select ${durableSnapshot(schema)}::text as now`);
  return row?.now ?? '';
}
