// Maps jobs and statuses to the names of the scheduler API. These names are never stored.

import type { Job, JobError } from '../jobs/model/job.ts';
import type { JobErrorCode } from '../jobs/model/job-errors.ts';
import { isClaimed, type Status } from '../jobs/model/states.ts';
import { describeWaiting, unlessNever } from '../jobs/model/waiting.ts';

export const jobStates = [
  'QUEUED',
  'CLAIMED',
  'PREPARING',
  'LEASE_PENDING',
  'RUNNING',
  'DONE',
  'FAILED',
  'CANCELED',
  'TIMEOUT',
] as const;
export type JobState = (typeof jobStates)[number];

export const leaseStates = ['ACTIVE', 'EXPIRED', 'RELEASED'] as const;
export type LeaseState = (typeof leaseStates)[number];

export const finalStatuses = ['SUCCEEDED', 'FAILED', 'CANCELED', 'TIMEOUT'] as const;
export type FinalStatus = (typeof finalStatuses)[number];

/** Error codes that this API shows as TIMEOUT. */
export const timeoutCodes: readonly string[] = ['LEASE_EXPIRED', 'TIMEOUT'] satisfies JobErrorCode[];

/** A job together with the lease or claim that its `lease_id` names. */
export interface SchedulerJob extends Job {
  leaseKind: 'local' | 'claim' | 'remote' | null;
  leaseHolder: string | null;
  /** It waits for `runAt`: a backoff, a schedule, or a denied lease. */
  waitsForRetry: boolean;
}

/** The job in the answer to a release. */
export interface ReleaseAnswer {
  job: ReturnType<typeof toJobIntent>;
  result: ReturnType<typeof toJobResult>;
}

/** The parts of an answer that may change later. */
export interface KeptAnswer {
  job: Omit<ReleaseAnswer['job'], 'payload' | 'constraints'>;
  result: ReleaseAnswer['result'];
}

export interface Lease {
  id: string;
  kind: 'local' | 'remote';
  /** The first of its jobs; a remote lease has only one. */
  jobId: string;
  jobIds: string[];
  queue: string | null;
  owner: string;
  costUnits: number;
  ttlSeconds: number;
  state: LeaseState;
  grantedAt: string;
  lastHeartbeatAt: string;
  expiresAt: string;
  releasedAt: string | null;
  releaseStatus: FinalStatus | null;
  metrics: unknown;
  releaseAnswer: KeptAnswer | null;
  /** Past its expiry by the database's clock, whether or not a sweeper has seen it. */
  overdue: boolean;
}

const states: Record<Exclude<Status, 'ERROR'>, JobState> = {
  PENDING: 'QUEUED',
  QUEUED: 'QUEUED',
  PAUSED: 'QUEUED',
  WAITING: 'QUEUED',
  CLAIMED: 'CLAIMED',
  PREPARING: 'PREPARING',
  LEASE_PENDING: 'LEASE_PENDING',
  RUNNING: 'RUNNING',
  SUCCESS: 'DONE',
  PARTIAL: 'DONE',
  CANCELED: 'CANCELED',
};

export function toState(job: Pick<Job, 'status' | 'error'>): JobState {
  if (job.status === 'ERROR') return timeoutCodes.includes(job.error?.code ?? '') ? 'TIMEOUT' : 'FAILED';
  return states[job.status];
}

/** The statuses that this API shows as `state`; FAILED and TIMEOUT share one and differ by its code. */
export function statusesOf(state: JobState): Status[] {
  if (state === 'FAILED' || state === 'TIMEOUT') return ['ERROR'];
  return (Object.keys(states) as Exclude<Status, 'ERROR'>[]).filter((status) => states[status] === state);
}

/** Converts progress: jobs and events have percent, this API has values from 0 to 1. */
export function toPercent(share: number): number {
  return Math.round(share * 10_000) / 100;
}

export function toJobIntent(job: SchedulerJob) {
  const claimed = isClaimed(job.status);
  // A claim is not a lease, and a job that waits again has none, even if its row still has the last lease id.
  const leased =
    job.status === 'RUNNING' || (job.finishedAt !== null && (job.leaseKind === 'remote' || job.leaseKind === 'local'));
  return {
    job_id: job.id,
    addon_id: job.queue,
    job_type: job.type,
    priority: job.priority,
    cost_units: job.costUnits,
    constraints: job.constraints ?? {},
    payload: job.payload,
    state: toState(job),
    created_at: job.createdAt,
    updated_at: job.updatedAt,
    claimed_by: claimed || leased ? (job.leaseOwner ?? job.leaseHolder) : null,
    claim_expires_at: claimed ? job.leaseExpiresAt : null,
    lease_id: leased ? job.leaseId : null,
    attempts: job.attempt,
    max_attempts: job.maxAttempts,
    next_retry_at: job.waitsForRetry ? unlessNever(job.runAt) : null,
    target_id: job.targetId,
    tokens_used: job.tokensUsed,
    usage: job.usage ?? {},
    token_limit: job.tokenLimit,
    cancel_requested: job.cancelRequested,
    cancel_intent: job.cancelIntent,
    progress: job.progress === null ? null : job.progress / 100,
    note: noteOf(job),
  };
}
/** Null until the job has ended. For its workers, a held job has ended, even if a person may resume it. */
export function toJobResult(job: SchedulerJob) {
  const status = finalStatusOf(job);
  if (status === null) return null;
  return {
    job_id: job.id,
    status,
    result_data: job.result ?? null,
    error: status === 'SUCCEEDED' && job.status === 'SUCCESS' ? null : job.error,
    started_at: job.startedAt,
    finished_at: job.finishedAt,
    attempts: job.attempt,
  };
}

export function toLeaseView(lease: Lease) {
  return {
    lease_id: lease.id,
    kind: lease.kind === 'local' ? ('in_process' as const) : ('remote' as const),
    job_id: lease.jobId,
    job_ids: lease.jobIds,
    addon_id: lease.queue,
    cost_units: lease.costUnits,
    ttl_sec: lease.ttlSeconds,
    state: lease.state === 'ACTIVE' && lease.overdue ? 'EXPIRED' : lease.state,
    granted_at: lease.grantedAt,
    last_heartbeat_at: lease.lastHeartbeatAt,
    expires_at: lease.expiresAt,
    worker_id: lease.owner,
    released_at: lease.releasedAt,
    release_status: lease.releaseStatus,
    metrics: lease.metrics ?? null,
  };
}

function finalStatusOf(job: SchedulerJob): FinalStatus | null {
  switch (toState(job)) {
    case 'DONE':
      return 'SUCCEEDED';
    case 'FAILED':
      return 'FAILED';
    case 'TIMEOUT':
      return 'TIMEOUT';
    case 'CANCELED':
      return 'CANCELED';
    default:
      return null;
  }
}

function noteOf(job: SchedulerJob): string | null {
  if (job.status === 'WAITING' && job.waiting !== null) return `The job ${describeWaiting(job.waiting)}`;
  if (job.status !== 'PAUSED') return job.progressMessage;
  return `Paused until a person resumes it: ${(job.error as JobError | null)?.message ?? 'no reason was given'}`;
}

// Events whose name differs from the event type in capitals.
const eventNames: Record<string, string> = {
  'job.enqueued': 'JOB_SUBMITTED',
  'job.lease_granted': 'LEASE_GRANTED',
  'job.lease_expired': 'LEASE_EXPIRED',
  'job.started': 'JOB_STARTED',
  'job.completed': 'JOB_DONE',
  'job.partial': 'JOB_DONE',
};

/** `job.claimed` → `JOB_CLAIMED`; a failure with one of `timeoutCodes` is a timeout, like its state. */
export function eventName(type: string, data: unknown): string {
  const code = (data as { error?: { code?: string } } | null)?.error?.code ?? '';
  if (type === 'job.failed' && timeoutCodes.includes(code)) return 'JOB_TIMEOUT';
  return eventNames[type] ?? type.toUpperCase().replaceAll('.', '_');
}
