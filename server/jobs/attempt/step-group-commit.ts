// Stores the results of durable steps. While two writes of a tenant are being committed, later ones gather and share the
// next commit. Each is fenced by its own lease; one that Postgres refuses fails alone, and a locked job waits alone.
import type { Database } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { isConnectionError } from '../../database/sql-errors.ts';
import type { StopRequest } from '../model/job-values.ts';
import { type StepWrite, saveSteps } from './steps.ts';

interface WaitingWrite extends StepWrite {
  /** Estimated. */
  bytes: number;
  resolve(stop: StopRequest | undefined): void;
  reject(error: unknown): void;
}

interface TenantQueue {
  waiting: WaitingWrite[];
  active: number;
}

// As for enqueues: with one at a time, steps would wait for the commit of others and then for their own.
const parallelPerTenant = 2;
const maxGroupLength = 200;
// A larger text of one statement would block the event loop while it is made.
const maxGroupBytes = 262_144;

/** One per daemon. */
export class StepGroupCommit {
  readonly #db: Database;
  readonly #tenants = new Map<Schema, TenantQueue>();

  constructor(db: Database) {
    this.#db = db;
  }

  /**
   * Resolves after the commit, with the stop that people have requested. Undefined: the lease no longer owns the job.
   * `bytes` is the size of the results.
   */
  save(schema: Schema, write: StepWrite, bytes: number): Promise<StopRequest | undefined> {
    return new Promise((resolve, reject) => {
      const queue = this.#tenants.get(schema) ?? { waiting: [], active: 0 };
      this.#tenants.set(schema, queue);
      queue.waiting.push({ ...write, bytes, resolve, reject });
      if (queue.waiting.length === 1) setImmediate(() => this.#pump(schema, queue));
    });
  }

  #pump(schema: Schema, queue: TenantQueue): void {
    while (queue.active < parallelPerTenant && queue.waiting.length > 0) {
      const group = queue.waiting.splice(0, groupLength(queue.waiting));
      queue.active += 1;
      void this.#write(schema, group).finally(() => {
        queue.active -= 1;
        this.#pump(schema, queue);
      });
    }
    if (queue.active === 0 && this.#tenants.get(schema) === queue) this.#tenants.delete(schema);
  }

  /** Never rejects. */
  async #write(schema: Schema, group: readonly WaitingWrite[]): Promise<void> {
    const [first] = group;
    if (first === undefined) return;
    const isOneJob = group.every(({ held }) => held.jobId === first.held.jobId);
    try {
      const stops = await saveSteps(this.#db.forTenant(schema), schema, group);
      const left = group.filter((write) => {
        const stop = stops.get(write.held.jobId);
        if (stop !== undefined || isOneJob) write.resolve(stop);
        return stop === undefined && !isOneJob;
      });
      this.#writeSingly(schema, left);
    } catch (error) {
      // After a lost connection it is unknown, for all of them alike, whether they were stored: each caller repeats its own.
      if (group.length === 1 || isConnectionError(error)) for (const { reject } of group) reject(error);
      else this.#writeSingly(schema, group);
    }
  }

  /** Outside of the queue: a lock that one of them waits for must not delay the writes of others. */
  #writeSingly(schema: Schema, group: readonly WaitingWrite[]): void {
    for (const write of group) void this.#write(schema, [write]);
  }
}

/** As many writes as fit. A job is in a group under one lease. */
function groupLength(waiting: readonly WaitingWrite[]): number {
  const leases = new Map<string, string>();
  let bytes = 0;
  let length = 0;
  for (const write of waiting) {
    const { jobId, leaseId } = write.held;
    const isOtherLease = leases.has(jobId) && leases.get(jobId) !== leaseId;
    bytes += write.bytes;
    if (isOtherLease || (length > 0 && bytes > maxGroupBytes)) break;
    leases.set(jobId, leaseId);
    length += 1;
    if (length === maxGroupLength) break;
  }
  return length;
}
