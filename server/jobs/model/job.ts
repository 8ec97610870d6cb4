// A job as the code sees it, and how a row becomes one. The names of the API are made in http/resources.
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

/** Columns whose type says more than the table's. */
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
  /** Of the lease that owns the job now; null if it has no owner. */
  leaseExpiresAt: string | null;
  /** When that lease was last renewed; the time of the claim before its first renewal. */
  heartbeatAt: string | null;
  /** Whether it has rows of phases. Undefined where the read did not ask. */
  hasPhases?: boolean;
}

/** A row of `jobs` as a read selects it: some or all columns, under their names in the code. */
export type JobRow = Partial<typeof jobs.$inferSelect> & {
  id: string;
  leaseExpiresAt?: string | null;
  heartbeatAt?: string | null;
  hasPhases?: boolean;
};

/** Only what the table stores in another form is converted. */
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

/** A failed or paused job of a target stops its lane unless it said `on_error: continue`. */
export function holdsLane(job: Pick<Job, 'status' | 'targetId' | 'onError'>): boolean {
  if (job.targetId === null) return false;
  return job.status === 'PAUSED' || (job.status === 'ERROR' && job.onError === 'block');
}

type WithSettings = Pick<Tenant, 'settings'>;

/**
 * How long one attempt may take: the job's own limit (which its type may have set), else its tenant's, else the daemon's;
 * 0 means no limit. A job stores only its own limit, so a changed default also applies to jobs that wait.
 */
export function timeoutOf(job: Pick<Job, 'timeoutSeconds'>, tenant: WithSettings, daemonSeconds: number): number {
  return job.timeoutSeconds ?? defaultTimeout(tenant, daemonSeconds);
}

export function defaultTimeout({ settings }: WithSettings, daemonSeconds: number): number {
  return settings.timeout_seconds ?? daemonSeconds;
}

/** SQL over `j`: its attempt has run for longer than it may. */
export function isTimedOutSql(defaultSeconds: string): string {
  return `j.started_at < now() - nullif(coalesce(j.timeout_seconds, ${defaultSeconds}), 0) * interval '1 second'`;
}
