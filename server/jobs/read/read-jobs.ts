// Reads one job, or lists of jobs, newest first (ids are uuid v7), by keyset: the cost of a page depends on its rows, not
// on the rows before it. Rare jobs in a long history are searched in bounded slices; a page may then be short, or empty,
// and still have a next one.
import { jsonBytes, withinBytes } from '../../database/bounded-reads.ts';
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { firstUuid, lastUuid } from '../../kernel/limits.ts';
import { columnList, jobColumns } from '../model/columns.ts';
import { type Job, type JobRow, toJob } from '../model/job.ts';
import { isOnHold, type Status } from '../model/states.ts';
import { areUnfinished, conditionsOf, type JobFilter, unfinishedIds } from './filter.ts';

export async function findJob(db: Queryable, schema: Schema, id: string): Promise<Job | undefined> {
  const rows = await db.query<JobRow>(`select j.*, ${leaseColumns} from ${jobSource(schema)} where j.id = $1`, [id]);
  return rows[0] && toJob(rows[0]);
}

/** A job `j` with its active lease, for `leaseColumns`. */
export function jobSource(schema: Schema): string {
  return `${schema}.jobs j left join ${schema}.leases l on l.id = j.lease_id and l.state = 'ACTIVE' and j.lease_owner is not null`;
}
export const leaseColumns = 'l.expires_at as lease_expires_at, l.last_heartbeat_at as heartbeat_at';

export interface JobPage {
  jobs: Job[];
  /** The next page has smaller ids than this. Undefined: this is the last page. */
  next: string | undefined;
}

export interface PageRequest {
  limit: number;
  /** Only jobs with a smaller id. */
  before?: string | undefined;
  /** Payloads and results can be large; without them a list reads no TOAST. */
  withDocuments?: boolean | undefined;
}

// Up to this many unfinished jobs are sorted in memory. With more of them, the newest are soon found by id.
const maxUnfinished = 5_000;
// Up to this many waiting jobs of one target are sorted in memory: about 60 ms.
const maxWaiting = 100_000;
// A slice takes 10 to 20 ms on an idle machine. The search for one page ends after `searchMs`, because a person waits for
// it and it holds a connection.
const sliceRows = 10_000;
const searchMs = 250;
// A job's id has the time of the daemon that enqueued it, which may be hours off the database's `created_at`.
const clockSlackMs = 24 * 3_600_000;

/** Without the documents (they can be large) and what only idempotent requests compare. */
export const summaryColumns = columnList(
  jobColumns.filter((column) => !['payload', 'result', 'checkpoint', 'requestHash'].includes(column)),
  'j',
);

export async function listJobs(db: Queryable, schema: Schema, filter: JobFilter, page: PageRequest): Promise<JobPage> {
  const { ids, next } = await pageOfIds(db, schema, filter, page);
  if (ids.length === 0) return { jobs: [], next };
  const documents = page.withDocuments ? ['payload', 'result'] : [];
  const columns = [summaryColumns, ...documents.map((name) => `j.${name}`)].join(', ');
  const rows = await db.query<JobRow>(
    `select ${columns}, ${leaseColumns} from ${jobSource(schema)}
      where j.id = any(${idsWithinBytes(schema, documents)}) order by j.id desc`,
    [ids],
  );
  return { jobs: rows.map(toJob), next: nextOf(ids, rows, next) };
}

/** SQL for those of the ids in $1, newest first, whose documents fit into one page. */
export function idsWithinBytes(schema: Schema, documents: readonly string[]): string {
  const bytes = ['error', 'constraints', ...documents].map((name) => jsonBytes(name)).join(' + ');
  const sized = `select id, ${bytes} as bytes from ${schema}.jobs where id = any($1::uuid[])`;
  return `array(select id from (${withinBytes(sized, 'id desc')}) as fitting)`;
}

/** A page that ended early continues behind its last job. */
export function nextOf(ids: string[], rows: readonly JobRow[], next: string | undefined): string | undefined {
  const last = rows.at(-1)?.id as string | undefined;
  return last === undefined || last === ids.at(-1) ? next : last;
}

export interface IdPage {
  ids: string[];
  next: string | undefined;
}

/** The ids alone, for readers of many jobs. */
export async function pageOfIds(
  db: Queryable,
  schema: Schema,
  filter: JobFilter,
  page: Pick<PageRequest, 'limit' | 'before'>,
): Promise<IdPage> {
  if (filter.statuses?.length === 0) return { ids: [], next: undefined };
  const before = page.before ?? lastUuid;
  if (filter.ids !== undefined) return pageOfNamed(db, schema, filter, page.limit, before);
  if (filter.targetId === undefined && areUnfinished(filter.statuses)) {
    const few = await pageOfUnfinished(db, schema, filter, filter.statuses, page.limit, before);
    if (few !== undefined) return few;
  }
  const scan = orderedScan(schema, filter, await hasLongLane(db, schema, filter.targetId));
  return inSlices(page.limit, before, (from) => readSlice(db, scan, filter, page.limit, from));
}

async function pageOfNamed(
  db: Queryable,
  schema: Schema,
  filter: JobFilter,
  limit: number,
  before: string,
): Promise<IdPage> {
  const { text, values } = conditionsOf(filter, 3);
  const rows = await db.query<{ id: string }>(
    `select j.id from ${schema}.jobs j where j.id < $1::uuid${text} order by j.id desc limit $2`,
    [before, limit + 1, ...values],
  );
  return takePage(rows, limit);
}

async function hasLongLane(db: Queryable, schema: Schema, targetId: string | undefined): Promise<boolean> {
  if (targetId === undefined) return false;
  const rows = await db.query(
    `select 1 from ${schema}.jobs where target_id = $1 and lane_rank is not null offset $2 limit 1`,
    [targetId, maxWaiting],
  );
  return rows.length > 0;
}

/** Undefined if there are too many to sort in memory. */
async function pageOfUnfinished(
  db: Queryable,
  schema: Schema,
  filter: JobFilter,
  statuses: readonly Status[],
  limit: number,
  before: string,
): Promise<IdPage | undefined> {
  const found = await db.query<{ id: string }>(unfinishedIds(schema, statuses, '$1'), [maxUnfinished + 1]);
  if (found.length > maxUnfinished) return undefined;
  const { text, values } = conditionsOf(filter, 4);
  const rows = await db.query<{ id: string }>(
    `select j.id from ${schema}.jobs j where j.id = any($1::uuid[]) and j.id < $2::uuid${text} order by j.id desc limit $3`,
    [found.map((row) => row.id), before, limit + 1, ...values],
  );
  return takePage(rows, limit);
}

interface Slice {
  rows: { id: string }[];
  /** The last id read, if there are jobs behind the slice. */
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
  scan: IndexScan,
  filter: JobFilter,
  limit: number,
  from: string,
): Promise<Slice> {
  const { text, values } = conditionsOf(filter, 4 + scan.values.length);
  const rows = await db.query<{ id: string }>(
    `select j.id from (${scan.text}) j where true${text} order by j.id desc limit $3`,
    [from, rowsOf(filter), limit + 1, ...scan.values, ...values],
  );
  if (rows.length > limit) return { rows, reached: undefined };
  const [last] = await db.query<{ id: string }>(`select id from (${scan.text}) j order by id desc offset $3 limit 1`, [
    from,
    rowsOf(filter),
    rowsOf(filter) - 1,
    ...scan.values,
  ]);
  return { rows, reached: last?.id };
}

/** Payloads take longer to read than the rest of a row. */
function rowsOf(filter: JobFilter): number {
  return filter.payload === undefined ? sliceRows : sliceRows / 10;
}

interface IndexScan {
  text: string;
  values: unknown[];
}

// The columns that the conditions of a filter use.
const filterColumns = 'id, status, type, queue, target_id, priority, created_at, parent_id, error, hold';

/** The next slice in id order ($1: before this id, $2: this many rows), by the index that fits; own values from $4. */
function orderedScan(schema: Schema, filter: JobFilter, longLane: boolean): IndexScan {
  // Payloads can be large: only a search in them reads them.
  const columns = filter.payload === undefined ? filterColumns : `${filterColumns}, payload`;
  const ordered = (where: string) =>
    `select ${columns} from ${schema}.jobs where ${where} and id < $1::uuid order by id desc limit $2`;
  const combineScans = (...parts: string[]) =>
    `select * from (${parts.map((part) => `(${part})`).join(' union all ')}) h order by id desc limit $2`;
  if (filter.targetId !== undefined && !longLane) {
    // The index of waiting jobs is in lane order: all of them are read and sorted by id first.
    const line = `select ${columns} from ${schema}.jobs where target_id = $4 and lane_rank is not null offset 0`;
    const text = combineScans(
      // jobs_target_id_id
      ordered('target_id = $4 and not lane_head and lane_rank is null'),
      ordered('target_id = $4 and lane_head'),
      `select * from (${line}) l where id < $1::uuid order by id desc limit $2`,
    );
    return { text, values: [filter.targetId] };
  }
  const held = filter.statuses?.filter(isOnHold) ?? [];
  // jobs_held_status_id, once per status: only within one status are its entries in id order.
  if (filter.targetId === undefined && held.length > 0 && held.length === filter.statuses?.length) {
    return { text: combineScans(...held.map((status) => ordered(`status = '${status}'`))), values: [] };
  }
  // The primary key, between the ids that the times allow.
  return {
    text: ordered('id >= $4::uuid and id < $5::uuid'),
    values: [
      filter.createdAfter === undefined ? firstUuid : idAt(filter.createdAfter, -clockSlackMs),
      filter.createdBefore === undefined ? lastUuid : idAt(filter.createdBefore, clockSlackMs),
    ],
  };
}

/** The smallest uuid v7 of a time. */
function idAt(time: string, laterMs: number): string {
  const ms = Math.min(Math.max(0, Date.parse(time) + laterMs), 2 ** 48 - 1);
  const hex = ms.toString(16).padStart(12, '0');
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-7000-8000-000000000000`;
}
