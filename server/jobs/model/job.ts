// A job as the code uses it, and its conversion from a row. The names of the API are in http/resources.
import type { jobs } from '../../database/tables/tenant.ts';
import type { Tenant } from '../../tenants/tenant.ts';
import type { Units } from './job-budget.ts';
import {
  type CancelDetail,
  type JobError,
  type Priority,
  priorities,
  type RetryPolicy,
  type StopIntent,
  type StoredHold,
} from './job-values.ts';
import type { Status } from './states.ts';
import type { Waiting } from './waiting.ts';

export * from './job-values.ts';

/** Columns with a more precise type than the table has. */
interface RefinedColumns {
  status: Status;
  priority: Priority;
  laneSeq: string;
  tokensUsed: number;
  tokenLimit: number | null;
  budget: Units | null;
  usage: Units | null;
  cancelIntent: StopIntent | null;
  cancelDetail: CancelDetail | null;
  error: JobError | null;
  hold: StoredHold | null;
  retry: RetryPolicy | null;
  constraints: Record<string, unknown> | null;
  onError: 'block' | 'continue';
  onDrain: 'pause' | 'requeue' | null;
  waiting: Waiting | null;
}

/** Every column of the table `jobs`, and the times of its lease. */
export interface Job extends Omit<typeof jobs.$inferSelect, keyof RefinedColumns>, RefinedColumns {
  /** The expiry of the lease that owns the job; null if it has no owner. */
  leaseExpiresAt: string | null;
  /** The last renewal of that lease; before the first renewal, the time of the claim. */
  heartbeatAt: string | null;
  /** True if the job has rows of phases; undefined if the read did not select it. */
  hasPhases?: boolean;
}

/** A row of `jobs` as a read selects it: some or all columns, under their names in the code. */
export type JobRow = Partial<typeof jobs.$inferSelect> & {
  id: string;
  leaseExpiresAt?: string | null;
  heartbeatAt?: string | null;
  hasPhases?: boolean;
};

/** Converts only the values that the table stores in a different form. */
export function toJob(row: JobRow): Job {
  const { priority, tokensUsed, tokenLimit } = row;
  return {
    ...row,
    priority: priorities[priority ?? -1],
    tokensUsed: Number(tokensUsed ?? 0),
    tokenLimit: tokenLimit === null || tokenLimit === undefined ? null : Number(tokenLimit),
    leaseExpiresAt: row.leaseExpiresAt ?? null,
    heartbeatAt: row.heartbeatAt ?? null,
  } as Job;
}

export function attemptsLeft(job: Pick<Job, 'attempt' | 'attemptFloor' | 'maxAttempts'>): boolean {
  return job.attempt - job.attemptFloor < job.maxAttempts;
}

/** True if a failed or paused job stops its lane: it has a target and not `on_error: continue`. */
export function holdsLane(job: Pick<Job, 'status' | 'targetId' | 'onError'>): boolean {
  if (job.targetId === null) return false;
  return job.status === 'PAUSED' || (job.status === 'ERROR' && job.onError === 'block');
}

type WithSettings = Pick<Tenant, 'settings'>;

/**
 * Returns the time limit of one attempt: the job's own limit (which its type may have set), otherwise the tenant's,
 * otherwise the daemon's. 0 means no limit. A job stores only its own limit, so a changed default applies to waiting
 * jobs too.
 */
export function timeoutOf(job: Pick<Job, 'timeoutSeconds'>, tenant: WithSettings, daemonSeconds: number): number {
  return job.timeoutSeconds ?? defaultTimeout(tenant, daemonSeconds);
}

export function defaultTimeout({ settings }: WithSettings, daemonSeconds: number): number {
  return settings.timeout_seconds ?? daemonSeconds;
}

/** SQL over `j`: its attempt has exceeded the time limit. */
export function isTimedOutSql(defaultSeconds: string): string {
  return `j.started_at < now() - nullif(coalesce(j.timeout_seconds, ${defaultSeconds}), 0) * interval '1 second'`;
}
