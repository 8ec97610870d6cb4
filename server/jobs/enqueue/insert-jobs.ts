// The statement that inserts jobs with their events. The jobs wait, or start at once if a daemon has reserved slots for
// them. Its column lists come from the table.
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { statementVariants, tenant } from '../../database/sql.ts';
import { insertEvents } from '../../events/log/record.ts';
import { largeBytes, Pace } from '../../kernel/clock.ts';
import { writeJson } from '../../kernel/json/json-text.ts';
import { insertLease } from '../claim/lease.ts';
import { laneStates } from '../lanes/join-lanes.ts';
import { firstByPriority } from '../lanes/lane.ts';
import {
  blankJob,
  type EngineColumn,
  type JobColumn,
  type RequestColumn,
  requestColumns,
  sqlName,
  sqlType,
} from '../model/columns.ts';
import { type Job, priorities } from '../model/job.ts';
import { type Status, transitions } from '../model/states.ts';
import { never, type Waiting } from '../model/waiting.ts';
import { checkDocument, payloadLimitBytes } from './enqueue-limits.ts';

/** Columns that enqueueing computes: the initial status and the position in the lane. */
const placeColumns = ['status', 'laneHead', 'laneRank', 'laneSeq'] as const satisfies readonly EngineColumn[];
type PlaceColumn = (typeof placeColumns)[number];

/** Input columns that are stored as given. `run_at` defaults to the time of the insert. @internal */
export const insertedColumns: readonly JobColumn[] = [
  ...requestColumns.filter((column) => column !== 'runAt'),
  ...placeColumns,
];

type Given<C extends JobColumn> = { [K in C]?: Job[K] | undefined };

/** A row for the insert. Undefined values are stored as null. */
export interface PlacedJob extends Omit<Given<RequestColumn>, 'priority'>, Pick<Job, PlaceColumn> {
  id: string;
  /** The rank of the priority. */
  priority: number;
  expiresInSeconds?: number | undefined;
  /** Set for a job that is enqueued as WAITING. */
  waiting?: Waiting | undefined;
}

/** Slots that a daemon reserves for jobs that are about to be inserted. */
export interface Reservation {
  leaseId: string;
  owner: string;
  leaseSeconds: number;
  /** Called when the jobs are RUNNING under that lease. */
  started(jobs: Job[]): void;
  /** Called when the jobs did not start, or when this is unknown. */
  failed(error: unknown): void;
}

/** Rows that one statement inserts, and their JSON. */
export interface InsertPart {
  rows: PlacedJob[];
  json: string;
}

// A larger statement would take long enough to block other work. A larger payload gets a statement of its own.
const partChars = 262_144;

/** Splits the rows into parts, almost always one. Several parts must be inserted in one transaction. */
export async function toInsertParts(rows: PlacedJob[]): Promise<InsertPart[]> {
  const parts: InsertPart[] = [];
  const pace = new Pace();
  let texts: string[] = [];
  let chars = 0;
  let first = 0;
  const close = (end: number) => {
    parts.push({ rows: rows.slice(first, end), json: `[${texts.join(',')}]` });
    texts = [];
    chars = 0;
    first = end;
  };
  for (const [n, row] of rows.entries()) {
    const text = writeJson(row);
    // The last check for all callers. Most have already refused the value and named its field.
    if (text.length > payloadLimitBytes) checkDocument(row.payload, 'payload');
    const isFull = chars > 0 && chars + text.length > partChars;
    if (isFull) close(n);
    if (isFull || text.length >= largeBytes) await pace.pause();
    texts.push(text);
    chars += text.length;
  }
  close(rows.length);
  return parts;
}

/**
 * How jobs with a target get their place in their lane. `placed`: it is given. `joined`: the insert reads the lanes,
 * which `takeNumbersForInsert` has locked. `outside`: they enter their lanes after the commit, in insert order.
 */
export type LaneInsert = 'placed' | 'joined' | 'outside';

export interface InsertOptions {
  reservation?: Reservation | undefined;
  lanes?: LaneInsert;
  /** The lanes to join. */
  targetIds?: string[];
}

export interface Inserted {
  job: Job;
  /** The job is RUNNING under the lease of the reservation. */
  started: boolean;
  /** See `Enqueued`. */
  isBehind: boolean;
}

/**
 * Inserts the jobs of one part, and starts heads if there is a reservation. Returns the jobs that did not exist;
 * undefined, and inserts nothing, if due jobs must join one of the lanes first.
 */
export async function insertJobs(
  tx: Queryable,
  schema: Schema,
  { rows, json }: InsertPart,
  actor: string,
  { reservation, lanes = 'placed', targetIds }: InsertOptions = {},
): Promise<Inserted[] | undefined> {
  const waits = rows.some((row) => row.waiting !== undefined);
  const found = await insertStatement({ starts: reservation !== undefined, lanes, waits }).query<CreatedRow>(
    tx,
    schema,
    {
      jobs: json,
      actor,
      targetIds,
      leaseId: reservation?.leaseId,
      owner: reservation?.owner,
      leaseSeconds: reservation?.leaseSeconds,
    },
    'keepPlan',
  );
  if (found[0]?.has_due) return undefined;
  const created = new Map(found.map((row) => [row.id, row]));
  return rows.flatMap((row) => {
    const one = created.get(row.id);
    if (one === undefined) return [];
    const isBehind = one.lane_rank !== undefined && one.lane_rank !== null && !one.promoted;
    return [{ job: toInsertedJob(row, one), started: one.status === transitions.start.to, isBehind }];
  });
}

const inputColumns = [...insertedColumns, 'runAt' as const];
/** The input uses the names of `PlacedJob`, so that its rows need no renaming. */
const input = [
  ...inputColumns.map((column) => `"${column}" ${sqlType(column)}`),
  '"expiresInSeconds" double precision',
].join(', ');

/** @internal Exported for its test. */
export const insertStatement = statementVariants<{ starts: boolean; lanes: LaneInsert; waits?: boolean }>(
  ({ starts, lanes, waits }) => {
    const [joins, outside] = [lanes === 'joined', lanes === 'outside'];
    const running = joins ? `created where status = '${transitions.start.to}'` : 'created';
    // Without lanes to join, every job starts.
    const ifHead = (value: string) => (joins ? `case when head then ${value} end` : value);
    return `
  with ${joins ? `${laneStates},` : ''}
  given as (
    select g.*, now() as at ${outside ? ', clock_timestamp() as called_at' : ''} ${joins ? `, l.lane_seq, ${isHead} as head` : ''}
      from jsonb_to_recordset(:jobs::jsonb) as g(${input}${waits ? ', waiting jsonb' : ''})
      ${joins ? `left join lanes l on l.id = g."targetId" where not exists (select 1 from lanes where has_due)` : ''}
  ),
  created as (
    insert into ${tenant}.jobs (
      ${insertedColumns.map(sqlName).join(', ')},
      run_at,
      created_at,
      updated_at,
      expires_at,
      gated
      ${starts ? ', attempt, started_at, lease_id, lease_owner' : ''}
      ${waits ? ', waiting, held_since' : ''}
    )
    select
      ${insertedColumns.map((column) => placeOf(column, starts, joins)).join(', ')},
      coalesce(${waits ? `case when waiting is not null then timestamptz '${never}' end, ` : ''}"runAt", ${outside ? `case when "status" = 'PENDING' then called_at end, ` : ''}at),
      at,
      at,
      at + "expiresInSeconds" * interval '1 second',
      "limitKeys" is not null
      ${starts ? `, ${joins ? 'head::int' : '1'}, ${ifHead('at')}, ${ifHead(':leaseId::uuid')}, ${ifHead(':owner::text')}` : ''}
      ${waits ? ', waiting, case when waiting is not null then at end' : ''}
    from given
    on conflict (client_request_id) where client_request_id is not null do nothing
    returning id, target_id, status, attempt, lease_id, created_at, run_at, expires_at ${joins ? ', lane_head, lane_rank, lane_seq' : ''} ${starts ? ', payload' : ''}
  ),
  ${
    starts
      ? `leased as (${insertLease(tenant, 'local', lease, running)}
  ),`
      : ''
  }
  recorded as (
    ${starts ? insertEvents(tenant, { ...enqueued, ...enqueuedBeforeStart }, { ...started, source: running }) : insertEvents(tenant, enqueued)}
  )
  ${joins ? `select created.*, s.* from (${laneFindings}) as s left join created on true` : 'select * from created'}`;
  },
);

const laneFindings = `select exists (select 1 from lanes where has_due) as has_due,
           exists (select 1 from lanes where next_id is not null) as promoted`;

/** In a joined lane: the first job of the call becomes the head of a free lane, if it is due. */
const isHead = `"targetId" is null or ("laneHead" and l.free and coalesce("runAt" <= now(), true))`;

function placeOf(column: JobColumn, starts: boolean, joins: boolean): string {
  if (column === 'status') return starts ? statusOfStart(joins) : statusOfInsert;
  if (!joins) return `"${column}"`;
  if (column === 'laneHead') return 'head';
  if (column === 'laneRank')
    return `case when not head and ("runAt" > at) is not true then ${firstByPriority} + "priority" end`;
  return column === 'laneSeq' ? 'coalesce(lane_seq + "laneSeq", 0)' : `"${column}"`;
}

function statusOfStart(joins: boolean): string {
  const status = `'${transitions.start.to}'`;
  return joins ? `case when head then ${status} else "status" end` : status;
}

/** A job that was placed as QUEUED may not be due yet; the database's clock decides. */
const statusOfInsert = `case when "status" = '${transitions.enqueue.to}' and "runAt" > at then '${transitions.schedule.to}' else "status" end`;

const lease = { lease: ':leaseId::uuid', owner: ':owner::text', seconds: ':leaseSeconds' };
const enqueued = {
  source: 'created',
  type: `'${transitions.enqueue.event}'`,
  actor: ':actor',
  from: 'null',
  to: 'status',
};
/** The row of a job that starts at once is already RUNNING, but its first event has the status before. */
const enqueuedBeforeStart = { to: `'${transitions.enqueue.to}'`, attempt: '0', lease: 'null::uuid' };
const started = {
  source: 'created',
  type: `'${transitions.start.event}'`,
  actor: `'worker:' || :owner::text`,
  from: `'${transitions.enqueue.to}'`,
  to: 'status',
};

/** Values of a new job that only the database knows. All others are as given. */
interface CreatedRow extends LanePlace {
  id: string;
  status: Status;
  created_at: string;
  run_at: string;
  expires_at: string | null;
  /** The document as Postgres stored it, only for a job that starts at once. */
  payload?: unknown;
}

/** Only if the insert has read the lanes. */
interface LanePlace {
  lane_head?: boolean;
  lane_rank?: number | null;
  lane_seq?: string;
  has_due?: boolean;
  /** The insert has promoted another job. */
  promoted?: boolean;
}

function toInsertedJob(placed: PlacedJob, created: CreatedRow): Job {
  const job: Job = { ...blankJob };
  const columns = job as unknown as Record<string, unknown>;
  for (const column in placed) {
    if (column !== 'expiresInSeconds') columns[column] = placed[column as keyof PlacedJob] ?? null;
  }
  if (created.status === transitions.schedule.to) job.status = created.status;
  if (created.lane_head !== undefined) {
    job.laneHead = created.lane_head;
    job.laneRank = created.lane_rank ?? null;
    job.laneSeq = created.lane_seq ?? '0';
  }
  job.priority = priorities[placed.priority] as Job['priority'];
  job.payload = created.payload ?? placed.payload;
  job.createdAt = created.created_at;
  job.updatedAt = created.created_at;
  job.runAt = created.run_at;
  if (placed.waiting !== undefined) job.heldSince = created.created_at;
  job.expiresAt = created.expires_at;
  return job;
}
