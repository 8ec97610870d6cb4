// The jobs of one claim: they share a lease, which ends with the last of them.
import type { Schema } from '../../database/identifiers.ts';
import type { LiveJob } from '../../jobs/claim/lease.ts';
import type { Attempt } from '../attempt/attempt.ts';
import type { HeldLease } from '../heartbeat/heartbeat.ts';

export class ClaimBatch implements HeldLease {
  readonly schema: Schema;
  readonly leaseId: string;
  readonly jobIds: string[];
  readonly #attempts = new Map<string, Attempt>();

  constructor(schema: Schema, leaseId: string, jobIds: string[]) {
    this.schema = schema;
    this.leaseId = leaseId;
    this.jobIds = jobIds;
  }

  add(attempt: Attempt): void {
    this.#attempts.set(attempt.job.id, attempt);
  }

  /** True if it was the last of the batch. */
  remove(attempt: Attempt): boolean {
    this.#attempts.delete(attempt.job.id);
    return this.#attempts.size === 0;
  }

  /** A job that has ended here is not lost, only settled or about to be. */
  onLost(jobId: string): void {
    this.#attempts.get(jobId)?.stop({ kind: 'leaseLost' });
  }

  onStopRequested(job: LiveJob): void {
    const kind = job.cancelIntent === 'pause' ? 'paused' : 'canceled';
    this.#attempts.get(job.jobId)?.stop({ kind, by: job.cancelDetail ?? undefined });
  }
}
