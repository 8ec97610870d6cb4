// The rows that a claim returns. The claim returns more rows than any other statement, so a row has only the columns
// that a worker needs. Columns that usually have their default are sent together in one value, which is mostly null.
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
// Only readers of the API need these columns; a worker does not.
const notForWorkers: readonly JobColumn[] = [
  'remote',
  'webhookUrl',
  'clientRequestId',
  'requestHash',
  'scheduleId',
  'limitKeys',
];

/** Columns that a row has under `non_defaults`, if one of them is not the default. @internal */
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

/** The RETURNING list of a claim, over `j`. It has plain columns only, because a cluster allows no function there. */
export const returningClaimed = sqlNames([...always, ...defaultedColumns], 'j');

/**
 * The SELECT list over the CTE `claimed`. Jobs that start together share `started_at`, which only the first row has.
 */
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

/** As many nulls as `claimedColumns` has columns, for a row without a job. */
export const noClaimedColumns = 'null, '.repeat(10).slice(0, -2);

export interface ClaimedRow {
  id: string;
  type: string;
  target_id: string | null;
  priority: number;
  created_at: string;
  /** Null if the same as `created_at`. */
  run_at: string | null;
  started_at: string | null;
  attempt: number;
  payload: unknown;
  /** Null if all have their defaults. */
  non_defaults: Partial<Job> | null;
  /** The claim left out jobs because of their bytes. */
  cut?: boolean;
  /** The claim skipped jobs that other transactions had locked. */
  skipped?: boolean;
}

type Lease = Pick<Job, 'status' | 'leaseId' | 'leaseOwner'>;

/** Builds the jobs that the new holder sees. Columns that only readers of the API need have their defaults. */
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
