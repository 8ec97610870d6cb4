// Pages of the ids of jobs that match a filter, newest first (ids are uuid v7), by keyset: the cost of a page depends
// on its rows, not on the rows before it. Rare jobs in a long history are searched in bounded slices. A page may then
// be short, or even empty, and still have a next one.
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { type Parameters, Statement, statement, tenant } from '../../database/sql.ts';
import { firstUuid, lastUuid } from '../../kernel/limits.ts';
import { isOnHold, type Status } from '../model/states.ts';
import { areUnfinished, conditionsOf, type JobFilter, unfinishedIds } from './filter.ts';

// Up to this many unfinished jobs are sorted in memory. If there are more, the newest are found quickly by id.
const maxUnfinished = 5_000;
// Up to this many waiting jobs of one target are sorted in memory: about 60 ms.
const maxWaiting = 100_000;
// A slice takes 10 to 20 ms on an idle machine. The search for one page ends after `searchMs`, because a person waits
// for it and it holds a connection.
const sliceRows = 10_000;
const searchMs = 150;
// A job's id has the time of the daemon that enqueued it, which may differ by hours from the database's `created_at`.
const clockSlackMs = 24 * 3_600_000;

export interface IdPageRequest {
  limit: number;
  /** Only jobs with a smaller id. */
  before?: string | undefined;
}

interface IdPage {
  ids: string[];
  next: string | undefined;
}

export async function pageOfIds(
  db: Queryable,
  schema: Schema,
  filter: JobFilter,
  page: IdPageRequest,
): Promise<IdPage> {
  if (filter.statuses?.length === 0) return { ids: [], next: undefined };
  const before = page.before ?? lastUuid;
  if (filter.ids !== undefined) return pageOfNamed(db, schema, filter, page.limit, before);
  if (filter.targetId === undefined && areUnfinished(filter.statuses)) {
    const few = await pageOfUnfinished(db, schema, filter, filter.statuses, page.limit, before);
    if (few !== undefined) return few;
  }
  const scan = orderedScan(filter, await hasLongLane(db, schema, filter.targetId));
  return inSlices(page.limit, before, (from) => readSlice(db, schema, scan, filter, page.limit, from));
}

async function pageOfNamed(
  db: Queryable,
  schema: Schema,
  filter: JobFilter,
  limit: number,
  before: string,
): Promise<IdPage> {
  const { text, parameters } = conditionsOf(filter);
  const named = new Statement(`
    select j.id
      from ${tenant}.jobs j
     where j.id < :before::uuid${text}
     order by j.id desc
     limit :limit`);
  return takePage(await named.query(db, schema, { ...parameters, before, limit: limit + 1 }), limit);
}

const longLaneStatement = statement(`
  select 1
    from ${tenant}.jobs
   where target_id = :targetId
     and lane_rank is not null
  offset :maxWaiting
   limit 1`);

async function hasLongLane(db: Queryable, schema: Schema, targetId: string | undefined): Promise<boolean> {
  if (targetId === undefined) return false;
  return (await longLaneStatement.query(db, schema, { targetId, maxWaiting })).length > 0;
}

/** Returns undefined if there are too many to sort in memory. */
async function pageOfUnfinished(
  db: Queryable,
  schema: Schema,
  filter: JobFilter,
  statuses: readonly Status[],
  limit: number,
  before: string,
): Promise<IdPage | undefined> {
  const unfinished = statement(unfinishedIds(statuses));
  const found = await unfinished.query<{ id: string }>(db, schema, { max: maxUnfinished + 1 });
  if (found.length > maxUnfinished) return undefined;
  const { text, parameters } = conditionsOf(filter);
  const matching = new Statement(`
    select j.id
      from ${tenant}.jobs j
     where j.id = any(:found::uuid[])
       and j.id < :before::uuid${text}
     order by j.id desc
     limit :limit`);
  const rows = await matching.query<{ id: string }>(db, schema, {
    ...parameters,
    found: found.map((row) => row.id),
    before,
    limit: limit + 1,
  });
  return takePage(rows, limit);
}

interface Slice {
  rows: { id: string }[];
  /** The last id that was read, if there are jobs after the slice. */
  reached: string | undefined;
}

async function inSlices(limit: number, before: string, read: (from: string) => Promise<Slice>): Promise<IdPage> {
  const rows: { id: string }[] = [];
  const deadline = performance.now() + searchMs;
  let from = before;
  do {
    const part = await read(from);
    rows.push(...part.rows);
    if (rows.length > limit || part.reached === undefined) return takePage(rows, limit);
    from = part.reached;
  } while (performance.now() < deadline);
  return { ids: rows.map((row) => row.id), next: from };
}

function takePage(rows: { id: string }[], limit: number): IdPage {
  const ids = rows.slice(0, limit).map((row) => row.id);
  return { ids, next: rows.length > limit ? ids.at(-1) : undefined };
}

async function readSlice(
  db: Queryable,
  schema: Schema,
  scan: IndexScan,
  filter: JobFilter,
  limit: number,
  from: string,
): Promise<Slice> {
  const { text, parameters } = conditionsOf(filter);
  const slice = { ...scan.parameters, from, sliceRows: rowsOf(filter) };
  const matching = new Statement(`
    select j.id
      from (${scan.text}) j
     where true${text}
     order by j.id desc
     limit :limit`);
  const rows = await matching.query<{ id: string }>(db, schema, { ...parameters, ...slice, limit: limit + 1 });
  if (rows.length > limit) return { rows, reached: undefined };
  const lastOfSlice = statement(`
    select id
      from (${scan.text}) j
     order by id desc
    offset :sliceRows::int - 1
     limit 1`);
  const [last] = await lastOfSlice.query<{ id: string }>(db, schema, slice);
  return { rows, reached: last?.id };
}

/** Payloads take longer to read than the rest of a row. */
function rowsOf(filter: JobFilter): number {
  return filter.payload === undefined ? sliceRows : sliceRows / 10;
}

interface IndexScan {
  /** SQL over the parameters `from` (only smaller ids), `sliceRows`, and those of its own conditions. */
  text: string;
  parameters: Parameters;
}

// The columns that the conditions of a filter use.
const filterColumns = 'id, status, type, queue, target_id, priority, created_at, parent_id, error, hold';

/** The next slice in id order, by the index that fits. */
function orderedScan(filter: JobFilter, longLane: boolean): IndexScan {
  // Payloads can be large, so they are read only if the filter searches them.
  const columns = filter.payload === undefined ? filterColumns : `${filterColumns}, payload`;
  const inOrder = (source: string, where = '') => `
        select ${columns}
          from ${source}
         where ${where}id < :from::uuid
         order by id desc
         limit :sliceRows`;
  const ordered = (where: string) => inOrder(`${tenant}.jobs`, `${where} and `);
  const combineScans = (...parts: string[]) => `
        select *
          from (${parts.map((part) => `(${part})`).join(' union all ')}) h
         order by id desc
         limit :sliceRows`;
  if (filter.targetId !== undefined && !longLane) {
    // The index of waiting jobs is in lane order: all of them are read and sorted by id first.
    const line = `select ${columns} from ${tenant}.jobs where target_id = :targetId and lane_rank is not null offset 0`;
    const text = combineScans(
      // jobs_target_id_id
      ordered('target_id = :targetId and not lane_head and lane_rank is null'),
      ordered('target_id = :targetId and lane_head'),
      inOrder(`(${line}) l`),
    );
    return { text, parameters: { targetId: filter.targetId } };
  }
  const held = filter.statuses?.filter(isOnHold) ?? [];
  // jobs_held_status_id, once per status: only within one status are its entries in id order.
  if (filter.targetId === undefined && held.length > 0 && held.length === filter.statuses?.length) {
    return { text: combineScans(...held.map((status) => ordered(`status = '${status}'`))), parameters: {} };
  }
  // The primary key, between the ids that belong to the given times.
  return {
    text: ordered('id >= :firstId::uuid and id < :endId::uuid'),
    parameters: {
      firstId: filter.createdAfter === undefined ? firstUuid : idAt(filter.createdAfter, -clockSlackMs),
      endId: filter.createdBefore === undefined ? lastUuid : idAt(filter.createdBefore, clockSlackMs),
    },
  };
}

/** Returns the smallest uuid v7 of a time. */
function idAt(time: string, laterMs: number): string {
  const ms = Math.min(Math.max(0, Date.parse(time) + laterMs), 2 ** 48 - 1);
  const hex = ms.toString(16).padStart(12, '0');
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-7000-8000-000000000000`;
}

// Ids of jobs on hold, oldest first. Bulk resumes use this order, so that the jobs of a lane run in the order in which
// they were enqueued.

/** The filter must name held statuses only. A whole operation reads the index of holds once, page after page. */
export async function pageOfHeldIds(
  db: Queryable,
  schema: Schema,
  filter: JobFilter,
  page: { limit: number; after?: string | undefined },
): Promise<IdPage> {
  const statuses = filter.statuses ?? [];
  if (!statuses.every(isOnHold)) throw new Error('only jobs on hold can be read in this order');
  if (statuses.length === 0) return { ids: [], next: undefined };
  const { text, parameters } = conditionsOf(filter);
  const select = (where: string) => `(
        select j.id
          from ${tenant}.jobs j
         where ${where}
           and j.id > :after::uuid${text}
         order by j.id
         limit :limit)`;
  // jobs_held_status_id, once per status; named ids are looked up by the primary key.
  const parts =
    filter.ids === undefined ? statuses.map((status) => select(`j.status = '${status}'`)) : [select('true')];
  const inOrder = new Statement(`
    select id
      from (${parts.join(' union all ')}) h
     order by id
     limit :limit`);
  const given = { ...parameters, after: page.after ?? firstUuid, limit: page.limit + 1 };
  const rows = await inOrder.query<{ id: string }>(db, schema, given);
  const ids = rows.slice(0, page.limit).map((row) => row.id);
  return { ids, next: rows.length > page.limit ? ids.at(-1) : undefined };
}
