// Reads past events: the history of a job, and the whole log, newest first and with filters. Every page reads a bounded
// number of rows, whatever the filters match. The cursor continues where the read stopped.

import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { jsonBytes, withinBytes } from '../../database/reads/bounded-reads.ts';
import { runQuery, statement, tenant } from '../../database/sql.ts';
import { maxInt8 } from '../../kernel/limits.ts';
import { type Event, type EventRow, eventColumns, toEvent } from './event.ts';

const sizedColumns = `${eventColumns}, ${jsonBytes('data')} as bytes`;
type FoundRow = EventRow & { found: string };
/** The columns of `eventColumns` as nulls, except the position in the log. */
const placeOnly = eventColumns.replace(/\w+/g, (name) => (name === 'xid' || name === 'seq' ? name : 'null'));

export interface EventPlace {
  xid: string;
  seq: string;
}

export interface EventPage {
  events: Event[];
  /** The position of the next page; undefined at the end of the log. */
  next: EventPlace | undefined;
}

export interface HistoryRequest {
  jobId: string;
  /** Only events of this target. */
  targetId?: string | undefined;
  after?: EventPlace | undefined;
  limit: number;
}

const historyStatement = statement(
  withinBytes(
    `select ${sizedColumns}
       from ${tenant}.events
      where job_id = :jobId
        and seq > :afterSeq::bigint
        and (:targetId::text is null or target_id = :targetId)
      order by seq
      limit :limit`,
    'seq',
  ),
);

/** Reads the events of one job in the order in which they happened. */
export async function readHistory(db: Queryable, schema: Schema, request: HistoryRequest): Promise<EventPage> {
  const rows = await historyStatement.query<FoundRow>(db, schema, {
    jobId: request.jobId,
    afterSeq: request.after?.seq ?? '0',
    targetId: request.targetId ?? null,
    limit: request.limit + 1,
  });
  return toPage(rows, request.limit);
}

export interface LogRequest {
  types?: readonly string[] | undefined;
  jobId?: string | undefined;
  targetId?: string | undefined;
  actor?: string | undefined;
  /** ISO times: at or after, and before. */
  since?: string | undefined;
  until?: string | undefined;
  before?: EventPlace | undefined;
  limit: number;
}

// About 30 ms of reading. If a filter matches fewer rows than the limit, the page is short and has a cursor.
const maxScanned = 20_000;
// `at` is the begin of the transaction, but the log is in the order of first writes, so an event may come later than
// its time suggests. Transactions of the product take less than a minute.
const maxOutOfOrder = `interval '2 minutes'`;

const logFilter = `(:types::text[] is null or type = any(:types::text[]))
        and (:targetId::text is null or target_id = :targetId)
        and (:actor::text is null or actor = :actor)
        and (:since::timestamptz is null or at >= :since::timestamptz)
        and (:until::timestamptz is null or at < :until::timestamptz)`;

const logStatement = statement(`
  with scanned as materialized (
    select *
      from ${tenant}.events
     where (xid, seq) < (:beforeXid::xid8, :beforeSeq::bigint)
     order by xid desc, seq desc
     limit :maxScanned
  ),
  last as (
    select xid, seq, at
      from scanned
     order by xid, seq
     limit 1
  ),
  page as (
    select ${sizedColumns}
      from scanned
     where ${logFilter}
     order by xid desc, seq desc
     limit :limit
  ),
  fitting as (${withinBytes('select * from page', 'xid desc, seq desc')})
  select null as scanned, false as ended, found, ${eventColumns}
    from fitting
  union all
  select (select count(*) from scanned)::text,
         exists (select 1 from last where at < :since::timestamptz - ${maxOutOfOrder}),
         0,
         ${placeOnly}
    from last`);

type LogRow = FoundRow & { scanned: string | null; ended: boolean };

/** Reads the events of the tenant, newest first. */
export async function readLog(db: Queryable, schema: Schema, request: LogRequest): Promise<EventPage> {
  if (request.jobId !== undefined) return readLogOfJob(db, schema, request, request.jobId);
  const start = request.before ?? (await findStartBefore(db, schema, request.until));
  const rows = await logStatement.query<LogRow>(db, schema, {
    beforeXid: start.xid,
    beforeSeq: start.seq,
    maxScanned: isFiltered(request) ? maxScanned : request.limit + 1,
    ...filterValues(request),
    limit: request.limit + 1,
  });
  const last = rows.find((row) => row.scanned !== null);
  const page = toPage(
    rows.filter((row) => row.scanned === null),
    request.limit,
  );
  if (page.next || !last || last.ended) return page;
  const more = Number(last.scanned) >= maxScanned;
  return { events: page.events, next: more ? { xid: last.xid, seq: last.seq } : undefined };
}

const logOfJobStatement = statement(
  withinBytes(
    `select ${sizedColumns}
       from ${tenant}.events
      where job_id = :jobId
        and seq < :beforeSeq::bigint
        and ${logFilter}
      order by seq desc
      limit :limit`,
    'seq desc',
  ),
);

async function readLogOfJob(db: Queryable, schema: Schema, request: LogRequest, jobId: string): Promise<EventPage> {
  const rows = await logOfJobStatement.query<FoundRow>(db, schema, {
    jobId,
    beforeSeq: request.before?.seq ?? maxInt8,
    ...filterValues(request),
    limit: request.limit + 1,
  });
  return toPage(rows, request.limit);
}

function filterValues({ types, targetId, actor, since, until }: LogRequest) {
  return {
    types: types ?? null,
    targetId: targetId ?? null,
    actor: actor ?? null,
    since: since ?? null,
    until: until ?? null,
  };
}

function isFiltered(request: LogRequest): boolean {
  return Object.values(filterValues(request)).some((value) => value !== null);
}

/**
 * Finds a position after every event before `until`: a binary search in the primary key, about 40 probes in one
 * statement.
 */
async function findStartBefore(db: Queryable, schema: Schema, until: string | undefined): Promise<EventPlace> {
  if (until === undefined) return { xid: maxInt8, seq: maxInt8 };
  const [row] = await runQuery<{ place: string }>(
    db,
    `with recursive halves(low, high) as (
       select 0::bigint, (select xid::text::bigint + 1 from ${schema}.events order by xid desc, seq desc limit 1)
       union all
       select case when later then low else middle end, case when later then middle else high end
         from (select low, high, (low + high) / 2 as middle,
                      coalesce((select e.at from ${schema}.events e where e.xid >= ((low + high) / 2)::text::xid8
                                 order by e.xid, e.seq limit 1) >= :until::timestamptz + ${maxOutOfOrder}, true) as later
                 from halves where high - low > 1) as h)
     select min(high)::text as place from halves`,
    { until },
  );
  return { xid: row?.place ?? maxInt8, seq: maxInt8 };
}

/** There is a next page if one row more than the limit was found, or if rows were cut off by size. */
function toPage(rows: FoundRow[], limit: number): EventPage {
  const events = rows.slice(0, limit).map(toEvent);
  const last = events.at(-1);
  const isMore = Number(rows[0]?.found ?? 0) > events.length;
  return { events, next: isMore && last ? { xid: last.xid, seq: last.seq } : undefined };
}
