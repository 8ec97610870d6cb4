// The columns of a job, as its table has them: the only list. Statements that insert or read jobs take their column
// lists, types and defaults from here, so that a new column needs the table, its migration and the API's schema.
import { getTableColumns, is, SQL } from 'drizzle-orm';
import { jobs } from '../../database/tables/tenant.ts';
import type { Job } from './job.ts';

export type JobColumn = keyof typeof jobs.$inferSelect;

/** Written by the engine while the job lives. Every other column is set by the request that enqueues the job. @internal */
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

/** All of them, in the order of the table. @internal */
export const jobColumns = Object.keys(table) as JobColumn[];

export const requestColumns = jobColumns.filter(
  (column): column is RequestColumn => !(engineColumns as readonly string[]).includes(column),
);

/** The name in SQL: `target_id` of `targetId`. */
export function sqlName(column: JobColumn): string {
  return table[column].name;
}

export function sqlType(column: JobColumn): string {
  return table[column].getSQLType();
}

export function isNullable(column: JobColumn): boolean {
  return !table[column].notNull;
}

/** `j.id, j.created_at, …`, for the RETURNING of a hot statement. Reads use `columnList` of database/drizzle.ts. */
export function sqlNames(columns: readonly JobColumn[], alias = ''): string {
  const prefix = alias === '' ? '' : `${alias}.`;
  return columns.map((column) => `${prefix}${sqlName(column)}`).join(', ');
}

// Defaults that the table has as SQL.
const computedDefaults: Partial<Record<JobColumn, unknown>> = { laneSeq: '0', tokensUsed: 0 };

/** The value of the column if none is given: its default, else null. Undefined: it has neither, or a time. */
export function defaultOf(column: JobColumn): unknown {
  const known = computedDefaults[column];
  if (known !== undefined) return known;
  if (isNullable(column)) return null;
  const value = table[column].default;
  return is(value, SQL) ? undefined : value;
}

/** A job with nothing but defaults, which inserts and claims complete. `priority` is a rank, as in the table. */
export const blankJob = {
  ...Object.fromEntries(jobColumns.map((column) => [column, defaultOf(column)])),
  leaseExpiresAt: null,
  heartbeatAt: null,
} as unknown as Job;
