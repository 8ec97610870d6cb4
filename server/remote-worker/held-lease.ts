// A lease that the worker holds, and the reasons for which its handler must stop.
import type { StopReason } from '../durable/stop-reason.ts';
import { type RemoteJob, Stopped } from './work.ts';

export interface HeldLease {
  job: RemoteJob;
  leaseId: string;
  workerId: string;
  ttlMs: number;
  /** By performance.now(): until then this worker certainly has the lease. */
  deadline: number;
  lost: boolean;
  /** The attempt is ending as WAITING, so a refused heartbeat has no meaning. */
  suspending: boolean;
  /** The lease has ended: the job waits, or was stopped instead. */
  waits: boolean;
  /** The signal of the handler, aborted with a `Stopped`. */
  stop: AbortController;
  /** The signal of durable calls, aborted with a StopReason. */
  stopCalls: AbortController;
  ended: AbortController;
  progress?: number;
  message?: string;
  /** Over all attempts. */
  usage: Record<string, number>;
  /** The run has left questions open. */
  closesQuestions: boolean;
}

export function holdLease(
  job: RemoteJob,
  workerId: string,
  lease: { lease_id: string; ttl_sec: number },
  sentAt: number,
): HeldLease {
  const ttlMs = lease.ttl_sec * 1000;
  return {
    job,
    workerId,
    leaseId: lease.lease_id,
    ttlMs,
    deadline: sentAt + ttlMs - marginOf(ttlMs),
    lost: false,
    suspending: false,
    waits: false,
    stop: new AbortController(),
    stopCalls: new AbortController(),
    ended: new AbortController(),
    usage: { ...job.usage, tokens: job.tokens_used ?? 0 },
    closesQuestions: false,
  };
}

/** The time to notice and to stop before another worker may have the job. */
export function marginOf(ttlMs: number): number {
  return Math.min(2000, ttlMs / 5);
}

export function own(held: HeldLease): { job_id: string; worker_id: string } {
  return { job_id: held.job.job_id, worker_id: held.workerId };
}

const reasons: Record<Stopped['reason'], StopReason> = {
  cancel: { kind: 'canceled' },
  pause: { kind: 'paused' },
  drain: { kind: 'drained', onDrain: 'requeue' },
  leaseLost: { kind: 'leaseLost' },
  waiting: { kind: 'canceled' },
  budget: { kind: 'canceled' },
  timeout: { kind: 'canceled' },
};

/** The first reason counts. */
export function stop(held: HeldLease, reason: Stopped['reason']): void {
  if (held.stop.signal.aborted) return;
  held.stop.abort(new Stopped(reason));
  held.stopCalls.abort(reasons[reason]);
}

/** Nothing may begin under an expired lease, for example after the process was suspended. */
export function loseIfExpired(held: HeldLease): void {
  if (performance.now() >= held.deadline) lose(held);
}

/** Nothing may be written any more, whatever was requested before. */
export function lose(held: HeldLease): void {
  held.lost = true;
  stop(held, 'leaseLost');
}

/** The attempt has ended without a release, and nothing is left to do. */
export function endWaiting(held: HeldLease): void {
  held.waits = true;
  held.ended.abort();
  stop(held, 'waiting');
}
