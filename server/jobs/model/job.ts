// A job as the code sees it, and how a row becomes one. The names of the API are made in http/resources.
import type { jobs } from '../../database/tables/tenant.ts';
import type { BackoffPolicy } from '../../kernel/backoff.ts';
import type { Tenant } from '../../tenants/tenant.ts';
import type { Status } from './states.ts';

export const priorities = ['URGENT', 'HIGH', 'NORMAL', 'LOW'] as const;
export type Priority = (typeof priorities)[number];

export function priorityRank(priority: Priority): number {
  return priorities.indexOf(priority);
}

/** Where an error comes from. Kept with the job and its event; left out of lists and webhooks. */
export interface ErrorTrace {
  name?: string;
  stack?: string;
  cause?: ErrorCause;
  /** Of an AggregateError. */
  errors?: ErrorCause[];
}

export interface ErrorCause extends ErrorTrace {
  code?: string;
  message: string;
}

export interface JobError extends ErrorTrace {
  code: string;
  message: string;
  [detail: string]: unknown;
}

export function withoutTrace({ stack, cause, errors, ...error }: JobError): JobError {
  return error as JobError;
}

export type StopIntent = 'pause' | 'cancel';

/** The message of a job that was stopped on request. */
export const stoppedByUser: Record<StopIntent, string> = {
  pause: 'Job was interrupted by user',
  cancel: 'Job was canceled by user',
};

export const holdKinds = ['user', 'drain', 'budget', 'error', 'handler'] as const;
export type HoldKind = (typeof holdKinds)[number];

/** `running`: the handler had not stopped when this was written. `terminated`: its thread was ended. */
export type HandlerState = 'running' | 'terminated';

/** The column `hold`; what it means is in hold.ts. */
export interface StoredHold {
  kind: HoldKind;
  reason?: string | undefined;
  author?: string | undefined;
  handler?: HandlerState | undefined;
  /** Of kind `handler`: since when, and the Outcome that ends the attempt when the handler has stopped or its lease expires. */
  since?: string | undefined;
  outcome?: object | undefined;
}

/** Who requested a stop, why and when. */
export interface CancelDetail {
  reason?: string;
  author?: string;
  /** The key or process that requested it; `author` is the person it named. */
  actor?: string;
  at?: string;
  /** The kind of hold that a pause becomes; `user` by default. */
  kind?: HoldKind;
}

/** When to try again, and which error codes count as recoverable by themselves. */
export interface RetryPolicy extends BackoffPolicy {
  codes?: string[];
}

/** Columns whose type says more than the table's. */
interface RefinedColumns {
  status: Status;
  priority: Priority;
  laneSeq: string;
  tokensUsed: number;
  tokenLimit: number | null;
  cancelIntent: StopIntent | null;
  cancelDetail: CancelDetail | null;
  error: JobError | null;
  hold: StoredHold | null;
  retry: RetryPolicy | null;
  constraints: Record<string, unknown> | null;
  onError: 'block' | 'continue';
  onDrain: 'pause' | 'requeue' | null;
}

/** Every column of the table `jobs`, and the times of its lease. */
export interface Job extends Omit<typeof jobs.$inferSelect, keyof RefinedColumns>, RefinedColumns {
  /** Of the lease that owns the job now; null if it has no owner. */
  leaseExpiresAt: string | null;
  /** When that lease was last renewed; the time of the claim before its first renewal. */
  heartbeatAt: string | null;
}

/** A row of `jobs` as a read selects it: some or all columns, under their names in the code. */
export type JobRow = Partial<typeof jobs.$inferSelect> & {
  id: string;
  leaseExpiresAt?: string | null;
  heartbeatAt?: string | null;
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
