// The attempts of one claim. They share a lease, which is held until the last of them has left.
import type { Schema } from '../../database/identifiers.ts';
import type { LiveJob } from '../../jobs/claim/lease.ts';
import type { Attempt } from '../attempt/attempt.ts';
import type { HeldLease } from '../heartbeat/heartbeat.ts';

export class ClaimBatch implements HeldLease {
  readonly schema: Schema;
  readonly leaseId: string;
  readonly jobIds: string[];
  readonly #attempts: Map<string, Attempt>;

  constructor(schema: Schema, leaseId: string, attempts: readonly Attempt[]) {
    this.schema = schema;
    this.leaseId = leaseId;
    this.jobIds = attempts.map((attempt) => attempt.job.id);
    this.#attempts = new Map(attempts.map((attempt) => [attempt.job.id, attempt]));
  }

  has(attempt: Attempt): boolean {
    return this.#attempts.has(attempt.job.id);
  }

  /** True if it was the last of the batch. */
  remove(attempt: Attempt): boolean {
    this.#attempts.delete(attempt.job.id);
    return this.#attempts.size === 0;
  }

  /** A job that has left the batch is not lost: its outcome is written or about to be. */
  onLost(jobId: string): void {
    this.#attempts.get(jobId)?.stop({ kind: 'leaseLost' });
  }

  onStopRequested(job: LiveJob): void {
    const kind = job.cancelIntent === 'pause' ? 'paused' : 'canceled';
    this.#attempts.get(job.jobId)?.stop({ kind, by: job.cancelDetail ?? undefined });
  }
}
