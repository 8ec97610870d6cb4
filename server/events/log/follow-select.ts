// A durable follower that looks at new events where they lie, in one statement: what does not
// concern it, or only counts, never travels. `log` holds the new events as a CTE.

import { attempt } from '../../database/data-error.ts';
import type { Database, Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import type { Event } from './event.ts';
import { type FollowerStep, type FollowResult, runFollowerStep } from './follower.ts';
import { isolateFailingEvent } from './isolate-event.ts';
import type { Position } from './position.ts';
import { nextPosition, readNewEvents, readStatement, readValues } from './read-new-events.ts';
import { recordSetAside, type SetAside } from './set-aside.ts';

export interface Selection {
  name: string;
  limit: number;
  types?: readonly string[] | undefined;
  /** Further CTEs over `log`, each an event, except one row that has `until` set. */
  ctes: string;
  /** The CTE whose rows are wanted. */
  from: string;
  /** $9 and on. */
  values: unknown[];
}

interface Header {
  until: string;
  moved: boolean;
  ahead: boolean;
  read: number;
  last_xid: string | null;
  last_seq: string | null;
  found: boolean | null;
}

export interface SelectionHandlers<R extends object> {
  /** Runs in the transaction that also moves the follower on; it gets no empty list. */
  handle(tx: Queryable, rows: R[]): Promise<void>;
  /** An event was set aside, in this transaction. */
  onSetAside?(tx: Queryable, event: Event, why: SetAside): Promise<void>;
}

const startAt = { startAt: 'beginning' } as const;

/** An event that makes `handle`, or the selection itself, fail with a data error is set aside. */
export async function followSelection<R extends object>(
  db: Database,
  schema: Schema,
  selection: Selection,
  handlers: SelectionHandlers<R>,
): Promise<FollowResult> {
  return isolateFailingEvent(
    selection.limit,
    (limit) =>
      runFollowerStep(db, schema, selection.name, startAt, (tx, position, state) =>
        selectStep(tx, schema, { ...selection, limit }, handlers, position, state),
      ),
    () => setAsideNext(db, schema, selection, handlers),
  );
}

async function selectStep<R extends object>(
  tx: Queryable,
  schema: Schema,
  selection: Selection,
  { handle }: SelectionHandlers<R>,
  position: Position,
  state: object,
): Promise<FollowerStep<object>> {
  const { limit, types } = selection;
  const rows = await tx.query<R & Header>(selectionStatement(schema, selection), [
    ...readValues(position, { limit, types }),
    ...selection.values,
  ]);
  const [header] = rows;
  if (header === undefined) throw new Error('a read of the event log told no snapshot');
  const found = rows.filter((row) => row.found);
  if (found.length > 0) await handle(tx, found);
  const { until, moved, ahead, read, last_xid, last_seq } = header;
  const complete = read < limit || last_xid === null || last_seq === null;
  return {
    position: nextPosition(position, until, complete ? undefined : { xid: last_xid, seq: last_seq }),
    state,
    handled: read,
    complete,
    moved: moved || read > 0,
    ahead,
  };
}

async function setAsideNext<R extends object>(
  db: Database,
  schema: Schema,
  selection: Selection,
  handlers: SelectionHandlers<R>,
): Promise<FollowResult> {
  const { name, types } = selection;
  const setAside: SetAside[] = [];
  const followed = await runFollowerStep(db, schema, name, startAt, async (tx, position, state) => {
    const read = await readNewEvents(tx, schema, position, { limit: 1, types });
    const [event] = read.events;
    const page = read.position.page;
    if (event === undefined || page === undefined) return { ...read, state, handled: 0 };
    // Up to the snapshot of the read: both look at the same event, whatever commits between them.
    const { xid = '0', seq = '0' } = position.page ?? {};
    const pinned = { seen: position.seen, page: { until: page.until, xid, seq } };
    let failure: unknown;
    const step = await attempt(
      tx,
      () => selectStep(tx, schema, { ...selection, limit: 1 }, handlers, pinned, state),
      (error) => {
        failure = error;
      },
    );
    if (step !== undefined) return step;
    const why = await recordSetAside(tx, schema, name, event, failure);
    await handlers.onSetAside?.(tx, event, why);
    setAside.push(why);
    return { ...read, state, handled: 1, complete: false };
  });
  return { ...followed, setAside };
}

function selectionStatement(schema: Schema, { ctes, from }: Selection): string {
  return `with log as materialized (${readStatement(schema)}),
     ${ctes},
     header as (select until, moved, ahead from log where until is not null),
     ending as (
       select count(*)::int as read, (array_agg(xid order by xid desc, seq desc))[1]::text as last_xid,
              (array_agg(seq order by xid desc, seq desc))[1]::text as last_seq
         from log where until is null)
     select h.until, h.moved, h.ahead, e.*, f.* from header h cross join ending e
       left join (select true as found, * from ${from}) f on true`;
}
