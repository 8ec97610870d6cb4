import { describe, expect, it } from 'vitest';
import type { Queryable } from '../../../../server/database/database.ts';
import type { Event } from '../../../../server/events/log/event.ts';
import { runFollowerStep } from '../../../../server/events/log/follower.ts';
import { readNewEvents } from '../../../../server/events/log/read-new-events.ts';
import { writeEvent, writeOutOfOrder } from '../../../support/events.ts';
import { useTenantPerTest } from '../../../support/postgres/database.ts';

const context = useTenantPerTest();

interface Seen {
  numbers?: number[];
}

const collect = async (_tx: Queryable, events: Event[], state: Seen): Promise<Seen> => ({
  numbers: [...(state.numbers ?? []), ...events.map((event) => Number(event.data?.n))],
});

interface FollowOptions {
  startAt?: 'beginning' | 'now';
  limit?: number;
}

/** One step of a follower that handles its events in this process. */
function followOnce(
  name: string,
  handle: (tx: Queryable, events: Event[], state: Seen) => Promise<Seen> = collect,
  { startAt = 'beginning', limit = 1000 }: FollowOptions = {},
) {
  const { db, schema } = context;
  return runFollowerStep<Seen>(db, schema, name, { startAt }, async (tx, position, state) => {
    const read = await readNewEvents(tx, schema, position, { limit });
    const next = read.events.length === 0 ? state : await handle(tx, read.events, state);
    return { ...read, handled: read.events.length, state: next };
  });
}

async function followAll(name: string, options: FollowOptions = {}): Promise<void> {
  while (!(await followOnce(name, collect, options)).complete);
}

async function stateOf(name: string): Promise<Seen> {
  const [row] = await context.db.query<{ state: Seen }>(
    `select state from ${context.schema}.followers where name = $1`,
    [name],
  );
  return row?.state ?? {};
}

const sorted = (values: number[] | undefined) => [...(values ?? [])].sort((a, b) => a - b);

describe('a durable follower', () => {
  it('starts at the beginning, or now', async () => {
    const { db, schema } = context;
    await writeEvent(db, schema, { n: 1 });
    await followAll('from the beginning');
    await followAll('from now', { startAt: 'now' });
    await writeEvent(db, schema, { n: 2 });
    await followAll('from the beginning');
    await followAll('from now');
    expect((await stateOf('from the beginning')).numbers).toEqual([1, 2]);
    expect((await stateOf('from now')).numbers).toEqual([2]);
  });

  it('keeps its position if its step fails', async () => {
    const { db, schema } = context;
    await followAll('failing', { startAt: 'now' });
    await writeEvent(db, schema, { n: 1 });
    const fail = followOnce('failing', async (tx, events, state) => {
      await tx.query(`insert into ${schema}.targets (id) values ('left behind')`);
      await collect(tx, events, state);
      throw new Error('no');
    });
    await expect(fail).rejects.toThrow('no');
    expect(await db.query(`select 1 from ${schema}.targets where id = 'left behind'`)).toEqual([]);
    await followAll('failing');
    expect((await stateOf('failing')).numbers).toEqual([1]);
  });

  it('reads the events that its own steps write', async () => {
    const { db, schema } = context;
    await followAll('echo', { startAt: 'now' });
    await writeEvent(db, schema, { n: 1 });
    const echo = () =>
      followOnce('echo', async (tx, events, state) => {
        if (events.some((event) => event.data?.n === 1)) await writeEvent(tx, schema, { n: 2 });
        return collect(tx, events, state);
      });
    await echo();
    await echo();
    expect((await stateOf('echo')).numbers).toEqual([1, 2]);
  });

  it('writes nothing while nothing happens', async () => {
    const { db, schema } = context;
    await followAll('quiet');
    const version = () => db.query(`select xmin::text, ctid::text from ${schema}.followers where name = 'quiet'`);
    const before = await version();
    await followAll('quiet');
    expect(await version()).toEqual(before);
  });

  it('does nothing while another daemon runs it', async () => {
    const { db, schema } = context;
    await followAll('contended', { startAt: 'now' });
    await writeEvent(db, schema, { n: 1 });
    let inner: { busy: boolean } | undefined;
    await followOnce('contended', async (tx, events, state) => {
      inner = await followOnce('contended');
      return collect(tx, events, state);
    });
    expect(inner).toMatchObject({ busy: true });
    expect((await stateOf('contended')).numbers).toEqual([1]);
  });

  it('rolls back a daemon that was overtaken', async () => {
    const { db, schema } = context;
    await followAll('overtaken', { startAt: 'now' });
    await writeEvent(db, schema, { n: 1 });
    const loser = followOnce('overtaken', async (tx, events, state) => {
      await db.query(`update ${schema}.followers set snapshot = pg_current_snapshot()::text where name = 'overtaken'`);
      return collect(tx, events, state);
    });
    await expect(loser).rejects.toMatchObject({ code: 'CONFLICT' });
    expect((await stateOf('overtaken')).numbers).toBeUndefined();
  });

  it('handles every event once, with several daemons and many writers', async () => {
    await followAll('busy', { startAt: 'now' });
    let writing = true;
    const written = writeOutOfOrder(context, { writers: 5, each: 20, targets: 5 }).finally(() => {
      writing = false;
    });
    const daemon = async () => {
      while (writing) await followOnce('busy', collect, { limit: 20 }).catch(() => {});
    };
    await Promise.all([daemon(), daemon(), daemon()]);
    const committed = await written;
    await followAll('busy', { limit: 20 });
    expect(sorted((await stateOf('busy')).numbers)).toEqual(sorted(committed));
  });
});
