// The statement that inserts jobs with their events. The jobs wait, or start at once if a daemon has reserved slots for
// them. Its column lists come from the table.
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { statementVariants, tenant } from '../../database/sql.ts';
import { insertEvents } from '../../events/log/record.ts';
import { largeBytes, Pace } from '../../kernel/clock.ts';
import { writeJson } from '../../kernel/json/json-text.ts';
import { insertLease } from '../claim/lease.ts';
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

export interface InsertOptions {
  reservation?: Reservation | undefined;
  /** `outside`: jobs with a target enter their lanes after the commit, in insert order. */
  lanes?: 'placed' | 'outside';
}

/** Inserts the jobs of one part, and starts them if there is a reservation. Returns the jobs that did not exist. */
export async function insertJobs(
  tx: Queryable,
  schema: Schema,
  { rows, json }: InsertPart,
  actor: string,
  { reservation, lanes = 'placed' }: InsertOptions = {},
): Promise<Job[]> {
  const waits = rows.some((row) => row.waiting !== undefined);
  const variant = { starts: reservation !== undefined, outsideLanes: lanes === 'outside', waits };
  const inserted = await insertStatement(variant).query<CreatedRow>(
    tx,
    schema,
    {
      jobs: json,
      actor,
      leaseId: reservation?.leaseId,
      owner: reservation?.owner,
      leaseSeconds: reservation?.leaseSeconds,
    },
    'keepPlan',
  );
  const created = new Map(inserted.map((row) => [row.id, row]));
  return rows.flatMap((row) => {
    const found = created.get(row.id);
    return found === undefined ? [] : [toInsertedJob(row, found)];
  });
}

const inputColumns = [...insertedColumns, 'runAt' as const];
/** The input uses the names of `PlacedJob`, so that its rows need no renaming. */
const input = [
  ...inputColumns.map((column) => `"${column}" ${sqlType(column)}`),
  '"expiresInSeconds" double precision',
].join(', ');

/** @internal Exported for its test. */
export const insertStatement = statementVariants<{ starts: boolean; outsideLanes: boolean; waits?: boolean }>(
  ({ starts, outsideLanes, waits }) => `
  with given as (
    select g.*, now() as at ${outsideLanes ? ', clock_timestamp() as called_at' : ''}
      from jsonb_to_recordset(:jobs::jsonb) as g(${input}${waits ? ', waiting jsonb' : ''})
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
      ${insertedColumns.map((column) => (column === 'status' ? statusOf(starts) : `"${column}"`)).join(', ')},
      coalesce(${waits ? `case when waiting is not null then timestamptz '${never}' end, ` : ''}"runAt", ${outsideLanes ? `case when "status" = 'PENDING' then called_at end, ` : ''}at),
      at,
      at,
      at + "expiresInSeconds" * interval '1 second',
      "limitKeys" is not null
      ${starts ? ', 1, at, :leaseId::uuid, :owner::text' : ''}
      ${waits ? ', waiting, case when waiting is not null then at end' : ''}
    from given
    on conflict (client_request_id) where client_request_id is not null do nothing
    returning id, target_id, status, attempt, lease_id, created_at, run_at, expires_at ${starts ? ', payload' : ''}
  ),
  ${
    starts
      ? `leased as (${insertLease(tenant, 'local', lease, 'created')}
  ),`
      : ''
  }
  recorded as (
    ${starts ? insertEvents(tenant, { ...enqueued, ...enqueuedBeforeStart }, started) : insertEvents(tenant, enqueued)}
  )
  select * from created`,
);

/** A job without a lane that was placed as QUEUED may not be due yet; the database's clock decides. */
function statusOf(starts: boolean): string {
  if (starts) return `'${transitions.start.to}'`;
  const { enqueue, schedule } = transitions;
  return `case when "status" = '${enqueue.to}' and "runAt" > at then '${schedule.to}' else "status" end`;
}

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
interface CreatedRow {
  id: string;
  status: Status;
  created_at: string;
  run_at: string;
  expires_at: string | null;
  /** The document as Postgres stored it, only for a job that starts at once. */
  payload?: unknown;
}

function toInsertedJob(placed: PlacedJob, created: CreatedRow): Job {
  const job: Job = { ...blankJob };
  const columns = job as unknown as Record<string, unknown>;
  for (const column in placed) {
    if (column !== 'expiresInSeconds') columns[column] = placed[column as keyof PlacedJob] ?? null;
  }
  if (created.status === transitions.schedule.to) job.status = created.status;
  job.priority = priorities[placed.priority] as Job['priority'];
  job.payload = created.payload ?? placed.payload;
  job.createdAt = created.created_at;
  job.updatedAt = created.created_at;
  job.runAt = created.run_at;
  if (placed.waiting !== undefined) job.heldSince = created.created_at;
  job.expiresAt = created.expires_at;
  return job;
}
