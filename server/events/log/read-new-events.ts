// Reads new events without gaps. An event is new if and only if its transaction is not visible in the reader's last
// snapshot: a transaction that commits late is read late, and no reader waits for it.
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { bySeq, type Event, type EventRow, eventColumns, toEvent } from './event.ts';
import type { Position } from './position.ts';
import { currentSnapshot, trimmedSnapshot } from './transaction-ids.ts';

export interface ReadOptions {
  limit: number;
  /** Only these types; the position moves past the others too. */
  types?: readonly string[] | undefined;
  jobId?: string | undefined;
  targetId?: string | undefined;
}

export interface NewEvents {
  /**
   * By seq: the order in which things happened to each job and target. A read that is larger than the
   * limit comes in pages by transaction, each in order of seq; sort them together where order matters.
   */
  events: Event[];
  /** Where the next read continues. */
  position: Position;
  /** False: there are more events than the limit. */
  complete: boolean;
  /** Events were written after the old position, if only of other types: the new position is worth storing. */
  moved: boolean;
  /** The position is ahead of the log, as after a restore that lost transactions; reading continues from now. */
  ahead: boolean;
}

interface Row extends EventRow {
  /** Set in the header row, which has no event: how far this read goes. */
  until: string | null;
  moved: boolean;
  ahead: boolean;
}

export async function readNewEvents(
  db: Queryable,
  schema: Schema,
  position: Position,
  options: ReadOptions,
): Promise<NewEvents> {
  const rows = await db.query<Row>(readStatement(schema), readValues(position, options));
  const header = rows.find((row) => row.until !== null);
  if (header?.until == null) throw new Error('a read of the event log returned no snapshot');
  const until = header.until;
  const found = rows.filter((row) => row.until === null);
  const last = found.at(-1);
  const complete = found.length < options.limit;
  return {
    events: found.map(toEvent).sort(bySeq),
    position: nextPosition(position, until, complete ? undefined : last),
    complete,
    moved: found.length > 0 || header.moved,
    ahead: header.ahead,
  };
}

/** The parameters $1 to $8 of `readStatement`. */
export function readValues(position: Position, options: ReadOptions): unknown[] {
  const { page } = position;
  return [
    position.seen,
    page?.until ?? null,
    page?.xid ?? '0',
    page?.seq ?? '0',
    options.limit,
    options.types ?? null,
    options.jobId ?? null,
    options.targetId ?? null,
  ];
}

/** The position after a read up to `until`, or up to its `last` event if there was more than the limit. */
export function nextPosition(from: Position, until: string, last?: { xid: string; seq: string }): Position {
  return last === undefined ? { seen: until } : { seen: from.seen, page: { until, xid: last.xid, seq: last.seq } };
}

/**
 * `not visible in seen` is `xid in xip(seen) or xid >= xmax(seen)`: a few probes and one range of the
 * primary key, whatever the age of the oldest open transaction. All of it, the current snapshot too,
 * in one statement, which has one snapshot. The read ends with the last event, see `durableSnapshot`.
 */
export function readStatement(schema: Schema): string {
  const wanted = `pg_visible_in_snapshot(e.xid, (select until from bounds))
          and ($6::text[] is null or e.type = any($6::text[]))
          and ($7::uuid is null or e.job_id = $7::uuid) and ($8::text is null or e.target_id = $8::text)
        order by e.xid, e.seq limit $5`;
  // One condition, so that the scan starts after the last page, also within a large transaction.
  const xmax = 'pg_snapshot_xmax($1::pg_snapshot)';
  const cursor = `(case when $3::xid8 >= ${xmax} then $3::xid8 else ${xmax} end, case when $3::xid8 >= ${xmax} then $4::bigint else -1 end)`;
  const columns = eventColumns.replace(/\w+/g, 'e.$&');
  const isAhead = `pg_snapshot_xmax(now.present) < ${xmax}`;
  const minXmax = `case when ${isAhead} then '1'::xid8 else ${xmax} end`;
  return `with now as materialized (select ${currentSnapshot(schema)} as present),
    bounds as materialized (
      select coalesce($2::pg_snapshot, ${trimmedSnapshot(schema, 'now.present', minXmax)}) as until, ${isAhead} as ahead
        from now),
    late as (
      select ${columns} from ${schema}.events e
        where e.xid = any(array(select pg_snapshot_xip($1::pg_snapshot))) and (e.xid, e.seq) > ($3::xid8, $4::bigint)
          and ${wanted}),
    fresh as (
      select ${columns} from ${schema}.events e
        where (e.xid, e.seq) > ${cursor} and e.xid < (select pg_snapshot_xmax(until) from bounds) and ${wanted})
    select until::text as until,
           exists (select 1 from ${schema}.events e where e.xid >= pg_snapshot_xmax($1::pg_snapshot))
             or ${hasLateEvents(schema, '$1::pg_snapshot')} as moved,
           ahead,
           ${eventColumns
             .split(', ')
             .map((column) => `null as ${column}`)
             .join(', ')}
      from bounds
    union all
    select null, false, false, ${eventColumns} from (
      select * from late union all select * from fresh order by xid, seq limit $5) as e`;
}

/** SQL: whether a transaction that was in progress in the snapshot wrote an event. One index probe per transaction. */
export function hasLateEvents(schema: string, snapshot: string): string {
  return `exists (select 1 from pg_snapshot_xip(${snapshot}) as open(xid) cross join lateral (
    select 1 from ${schema}.events e where (e.xid, e.seq) > (open.xid, -1) and e.xid <= open.xid
     order by e.xid, e.seq limit 1) as late)`;
}
