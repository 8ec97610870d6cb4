// Reads new events without gaps. An event is new if its transaction is not visible in the reader's last snapshot, so a
// transaction that commits late is read late, and no reader waits for it.
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { type Parameters, statement, tenant } from '../../database/sql.ts';
import { bySeq, type Event, type EventRow, eventColumns, toEvent } from './event.ts';
import type { Position } from './position.ts';
import { currentSnapshot, trimmedSnapshot } from './transaction-ids.ts';

export interface ReadOptions {
  limit: number;
  /** Only these types. The position moves past the other events too. */
  types?: readonly string[] | undefined;
  jobId?: string | undefined;
  targetId?: string | undefined;
}

export interface NewEvents {
  /**
   * In order of seq, the order in which things happened to each job and target. A read larger than the limit comes in
   * pages by transaction, each in order of seq; sort them together if the order matters.
   */
  events: Event[];
  /** The position at which the next read continues. */
  position: Position;
  /** False if there are more events than the limit. */
  complete: boolean;
  /** Events were written after the old position, perhaps only of other types, so the new position is worth storing. */
  moved: boolean;
  /**
   * The position is ahead of the log, for example after a restore that lost transactions. Reading continues from now.
   */
  ahead: boolean;
}

interface Row extends EventRow {
  /** Set in the header row, which has no event: the end of this read. */
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
  const rows = await readStatement.query<Row>(db, schema, readParameters(position, options));
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

/** The parameters of `selectNewEvents`. */
export function readParameters(position: Position, options: ReadOptions): Parameters {
  const { page } = position;
  return {
    seen: position.seen,
    pageUntil: page?.until ?? null,
    pageXid: page?.xid ?? '0',
    pageSeq: page?.seq ?? '0',
    limit: options.limit,
    types: options.types ?? null,
    jobId: options.jobId ?? null,
    targetId: options.targetId ?? null,
  };
}

/** Returns the position after a read up to `until`, or up to its `last` event if there were more than the limit. */
export function nextPosition(from: Position, until: string, last?: { xid: string; seq: string }): Position {
  return last === undefined ? { seen: until } : { seen: from.seen, page: { until, xid: last.xid, seq: last.seq } };
}

const wanted = `pg_visible_in_snapshot(e.xid, (select until from bounds))
         and (:types::text[] is null or e.type = any(:types::text[]))
         and (:jobId::uuid is null or e.job_id = :jobId::uuid)
         and (:targetId::text is null or e.target_id = :targetId::text)
       order by e.xid, e.seq
       limit :limit`;
const xmax = 'pg_snapshot_xmax(:seen::pg_snapshot)';
// A single condition, so that the scan starts after the last page, even within a large transaction.
const cursor = `(
         case when :pageXid::xid8 >= ${xmax} then :pageXid::xid8 else ${xmax} end,
         case when :pageXid::xid8 >= ${xmax} then :pageSeq::bigint else -1 end)`;
const columnsOfEvent = eventColumns.replace(/\w+/g, 'e.$&');
const noEvent = eventColumns
  .split(', ')
  .map((column) => `null as ${column}`)
  .join(', ');
const isAhead = `pg_snapshot_xmax(now.present) < ${xmax}`;
const minXmax = `case when ${isAhead} then '1'::xid8 else ${xmax} end`;

/**
 * SQL with the parameters of `readParameters`. `not visible in seen` is `xid in xip(seen) or xid >= xmax(seen)`: a few
 * probes and one range of the primary key, whatever the age of the oldest open transaction. One statement reads
 * everything, including the current snapshot, so that it has one snapshot. The read ends with the last event; see
 * `durableSnapshot`.
 */
export const selectNewEvents = `
    with now as materialized (
      select ${currentSnapshot(tenant)} as present
    ),
    bounds as materialized (
      select coalesce(:pageUntil::pg_snapshot, ${trimmedSnapshot(tenant, 'now.present', minXmax)}) as until,
             ${isAhead} as ahead
        from now
    ),
    late as (
      select ${columnsOfEvent}
        from ${tenant}.events e
       where e.xid = any(array(select pg_snapshot_xip(:seen::pg_snapshot)))
         and (e.xid, e.seq) > (:pageXid::xid8, :pageSeq::bigint)
         and ${wanted}
    ),
    fresh as (
      select ${columnsOfEvent}
        from ${tenant}.events e
       where (e.xid, e.seq) > ${cursor}
         and e.xid < (select pg_snapshot_xmax(until) from bounds)
         and ${wanted}
    )
    select until::text as until,
           exists (select 1 from ${tenant}.events e where e.xid >= ${xmax})
             or ${hasLateEvents(tenant, ':seen::pg_snapshot')} as moved,
           ahead,
           ${noEvent}
      from bounds
    union all
    select null, false, false, ${eventColumns}
      from (
        select * from late
        union all
        select * from fresh
        order by xid, seq
        limit :limit
      ) as e`;

/** @internal Exported for its test. */
export const readStatement = statement(selectNewEvents);

/** SQL: true if a transaction that was in progress in the snapshot wrote an event. One index probe per transaction. */
export function hasLateEvents(schema: string, snapshot: string): string {
  return `exists (select 1 from pg_snapshot_xip(${snapshot}) as open(xid) cross join lateral (
    select 1 from ${schema}.events e where (e.xid, e.seq) > (open.xid, -1) and e.xid <= open.xid
     order by e.xid, e.seq limit 1) as late)`;
}
