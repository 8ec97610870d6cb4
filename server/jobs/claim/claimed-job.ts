// The rows that a claim returns. It is the widest stream of rows of the product, so a row carries only what a worker
// needs, and columns that have their default in almost every job travel together in one value that is mostly null.
import {
  blankJob,
  defaultOf,
  isNullable,
  type JobColumn,
  requestColumns,
  sqlName,
  sqlNames,
} from '../model/columns.ts';
import { type Job, priorities } from '../model/job.ts';

const always = ['id', 'type', 'targetId', 'priority', 'createdAt', 'runAt', 'startedAt', 'attempt', 'payload'] as const;
// For readers of the API; a worker has no use for them.
const notForWorkers: readonly JobColumn[] = [
  'remote',
  'webhookUrl',
  'clientRequestId',
  'requestHash',
  'scheduleId',
  'limitKeys',
];

/** Columns that a row has under `non_defaults`, if one of them is not as by default. @internal */
export const defaultedColumns: readonly JobColumn[] = [
  ...requestColumns.filter((column) => !([...always, ...notForWorkers] as JobColumn[]).includes(column)),
  'attemptFloor',
  'tokensUsed',
  'usage',
  'checkpoint',
];

const areDefault = defaultedColumns.map(hasDefault).join('\n          and ');
const nonDefaults = defaultedColumns.map((column) => `'${column}', ${sqlName(column)}`).join(', ');

function hasDefault(column: JobColumn): string {
  if (isNullable(column)) return `${sqlName(column)} is null`;
  const value = defaultOf(column);
  return `${sqlName(column)} = ${typeof value === 'string' ? `'${value}'` : value}`;
}

/** For the UPDATE of a claim, over `j`: the columns only, because a cluster allows no function on them in RETURNING. */
export const returningClaimed = sqlNames([...always, ...defaultedColumns], 'j');

/** SELECT list over the CTE `claimed`. Jobs that start share the time at which they do: the first row has it for all. */
export function claimedColumns(starts: boolean): string {
  return `id,
    type,
    target_id,
    priority,
    created_at,
    nullif(run_at, created_at) as run_at,
    attempt,
    payload,
    case
      when ${areDefault}
      then null
      else jsonb_build_object(${nonDefaults})
    end as non_defaults,
    ${starts ? 'case when id = (select id from claimed limit 1) then started_at end as started_at' : 'started_at'}`;
}

/** As many nulls as `claimedColumns` has columns, for a row that is not about a job. */
export const noClaimedColumns = 'null, '.repeat(10).slice(0, -2);

export interface ClaimedRow {
  id: string;
  type: string;
  target_id: string | null;
  priority: number;
  created_at: string;
  /** Null: the same as `created_at`. */
  run_at: string | null;
  started_at: string | null;
  attempt: number;
  payload: unknown;
  /** Null: all have their defaults. */
  non_defaults: Partial<Job> | null;
  /** The claim left out jobs because of their bytes. */
  cut?: boolean;
}

type Lease = Pick<Job, 'status' | 'leaseId' | 'leaseOwner'>;

/** Jobs as their new holder sees them; what only readers of the API ask for is left at its default. */
export function toClaimedJobs(rows: ClaimedRow[], lease: Lease): Job[] {
  const startedAt = rows.find((row) => row.started_at !== null)?.started_at ?? null;
  return rows.map((row) => toClaimedJob(row, row.started_at ?? startedAt, lease));
}

function toClaimedJob(row: ClaimedRow, startedAt: string | null, { status, leaseId, leaseOwner }: Lease): Job {
  const job: Job = { ...blankJob };
  if (row.non_defaults !== null) Object.assign(job, row.non_defaults);
  job.id = row.id;
  job.status = status;
  job.type = row.type;
  job.targetId = row.target_id;
  job.laneHead = true;
  job.priority = priorities[row.priority] as Job['priority'];
  job.createdAt = row.created_at;
  job.runAt = row.run_at ?? row.created_at;
  job.updatedAt = startedAt ?? row.created_at;
  job.startedAt = startedAt;
  job.attempt = row.attempt;
  job.leaseId = leaseId;
  job.leaseOwner = leaseOwner;
  job.payload = row.payload;
  return job;
}
