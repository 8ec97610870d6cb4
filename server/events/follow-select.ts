// A durable follower that looks at new events where they lie, in one statement: what does not
// concern it, or only counts, never travels. `log` holds the new events as a CTE.
import type { Database, Queryable } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import { goOn, readStatement, readValues } from './follow.ts';
import { type Followed, followInSteps } from './follower.ts';

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

/** `handle` runs in the transaction that also moves the follower on; it gets no empty list. */
export async function followSelect<R extends object>(
  db: Database,
  schema: Schema,
  selection: Selection,
  handle: (tx: Queryable, rows: R[]) => Promise<void>,
): Promise<Followed> {
  const { name, limit, types } = selection;
  return followInSteps(db, schema, name, { startAt: 'beginning' }, async (tx, position, state) => {
    const rows = await tx.query<R & Header>(statement(schema, selection), [
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
      position: goOn(position, until, complete ? undefined : { xid: last_xid, seq: last_seq }),
      state,
      handled: read,
      complete,
      moved: moved || read > 0,
      ahead,
    };
  });
}

function statement(schema: Schema, { ctes, from }: Selection): string {
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
