// The columns of a job, derived from its table. Statements that insert or read jobs take their column lists, types and
// defaults from here, so a new column needs only the table, its migration and the API schema.
import { getTableColumns, is, SQL } from 'drizzle-orm';
import { jobs } from '../../database/tables/tenant.ts';
import type { Job } from './job.ts';

export type JobColumn = keyof typeof jobs.$inferSelect;

/**
 * Columns that the engine writes while the job lives. The request that enqueues the job sets every other column.
 * @internal
 */
export const engineColumns = [
  'status',
  'createdAt',
  'updatedAt',
  'startedAt',
  'finishedAt',
  'heldSince',
  'expiresAt',
  'staleAt',
  'laneHead',
  'gated',
  'laneRank',
  'laneSeq',
  'attempt',
  'attemptFloor',
  'tokensUsed',
  'usage',
  'leaseId',
  'leaseOwner',
  'cancelRequested',
  'cancelIntent',
  'cancelDetail',
  'webhookSent',
  'progress',
  'progressMessage',
  'result',
  'error',
  'hold',
  'checkpoint',
  'waiting',
  'asked',
] as const satisfies readonly JobColumn[];
export type EngineColumn = (typeof engineColumns)[number];
export type RequestColumn = Exclude<JobColumn, EngineColumn>;

const table = getTableColumns(jobs);

/** All columns, in the order of the table. @internal */
export const jobColumns = Object.keys(table) as JobColumn[];

export const requestColumns = jobColumns.filter(
  (column): column is RequestColumn => !(engineColumns as readonly string[]).includes(column),
);

/** Returns the name in SQL, such as `target_id` for `targetId`. */
export function sqlName(column: JobColumn): string {
  return table[column].name;
}

export function sqlType(column: JobColumn): string {
  return table[column].getSQLType();
}

export function isNullable(column: JobColumn): boolean {
  return !table[column].notNull;
}

/**
 * `j.id, j.created_at, …`, for the RETURNING of a hot statement. Reads use `columnList` of database/reads/drizzle.ts.
 */
export function sqlNames(columns: readonly JobColumn[], alias = ''): string {
  const prefix = alias === '' ? '' : `${alias}.`;
  return columns.map((column) => `${prefix}${sqlName(column)}`).join(', ');
}

// Defaults that the table has as SQL expressions.
const computedDefaults: Partial<Record<JobColumn, unknown>> = { laneSeq: '0', tokensUsed: 0 };

/**
 * Returns the default of the column, otherwise null if it is nullable. Returns undefined if it has neither, or a time
 * as its default.
 */
export function defaultOf(column: JobColumn): unknown {
  const known = computedDefaults[column];
  if (known !== undefined) return known;
  if (isNullable(column)) return null;
  const value = table[column].default;
  return is(value, SQL) ? undefined : value;
}

/** A job with only default values, which inserts and claims complete. `priority` is a rank, as in the table. */
export const blankJob = {
  ...Object.fromEntries(jobColumns.map((column) => [column, defaultOf(column)])),
  leaseExpiresAt: null,
  heartbeatAt: null,
} as unknown as Job;
