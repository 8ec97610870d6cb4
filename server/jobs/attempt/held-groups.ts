// Requests of running attempts that share a statement. While two statements of a tenant are under way, later requests
// gather for the next one. A request that Postgres refuses fails alone, and one that cannot be answered with the others
// is sent alone.
import type { Schema } from '../../database/identifiers.ts';
import { isConnectionError } from '../../database/sql-errors.ts';
import type { HeldJob } from '../claim/lease.ts';

export interface HeldRequest {
  held: HeldJob;
  /** Estimated size of what is sent. */
  bytes: number;
}

/** The result of a request that must be sent alone; a request that was sent alone never gets it. */
export const alone = Symbol('alone');

/** Answers the requests of one group, in their order. A job is in a group under one lease. */
type SendGroup<Q, R> = (schema: Schema, group: readonly Q[]) => Promise<(R | typeof alone)[]>;

interface Waiting<Q, R> {
  request: Q;
  resolve(result: R): void;
  reject(error: unknown): void;
}

interface TenantQueue<Q, R> {
  waiting: Waiting<Q, R>[];
  active: number;
}

// As for enqueues: with one at a time, requests would wait for the answer of others and then for their own.
const parallelPerTenant = 2;
const maxGroupLength = 200;
// Making the text of a larger statement would block the event loop.
const maxGroupBytes = 262_144;

export class HeldGroups<Q extends HeldRequest, R> {
  readonly #send: SendGroup<Q, R>;
  readonly #tenants = new Map<Schema, TenantQueue<Q, R>>();

  constructor(send: SendGroup<Q, R>) {
    this.#send = send;
  }

  add(schema: Schema, request: Q): Promise<R> {
    return new Promise((resolve, reject) => {
      const queue = this.#tenants.get(schema) ?? { waiting: [], active: 0 };
      this.#tenants.set(schema, queue);
      queue.waiting.push({ request, resolve, reject });
      if (queue.waiting.length === 1) setImmediate(() => this.#pump(schema, queue));
    });
  }

  #pump(schema: Schema, queue: TenantQueue<Q, R>): void {
    while (queue.active < parallelPerTenant && queue.waiting.length > 0) {
      const group = queue.waiting.splice(0, groupLength(queue.waiting));
      queue.active += 1;
      void this.#sendGroup(schema, group).finally(() => {
        queue.active -= 1;
        this.#pump(schema, queue);
      });
    }
    if (queue.active === 0 && this.#tenants.get(schema) === queue) this.#tenants.delete(schema);
  }

  /** Never rejects. */
  async #sendGroup(schema: Schema, group: readonly Waiting<Q, R>[]): Promise<void> {
    try {
      const results = await this.#send(
        schema,
        group.map(({ request }) => request),
      );
      const left = group.filter(({ resolve }, n) => {
        const result = results[n] as R | typeof alone;
        if (result !== alone) resolve(result);
        return result === alone;
      });
      this.#sendSingly(schema, left);
    } catch (error) {
      // After a lost connection it is unknown, for all of them alike, what was stored. Each caller repeats its own
      // request.
      if (group.length === 1 || isConnectionError(error)) for (const { reject } of group) reject(error);
      else this.#sendSingly(schema, group);
    }
  }

  /** Outside of the queue: a lock that one of them waits for must not delay the requests of others. */
  #sendSingly(schema: Schema, group: readonly Waiting<Q, R>[]): void {
    for (const one of group) void this.#sendGroup(schema, [one]);
  }
}

function groupLength(waiting: readonly Waiting<HeldRequest, never>[]): number {
  const leases = new Map<string, string>();
  let bytes = 0;
  let length = 0;
  for (const { request } of waiting) {
    const { jobId, leaseId } = request.held;
    const isOtherLease = leases.has(jobId) && leases.get(jobId) !== leaseId;
    bytes += request.bytes;
    if (isOtherLease || (length > 0 && bytes > maxGroupBytes)) break;
    leases.set(jobId, leaseId);
    length += 1;
    if (length === maxGroupLength) break;
  }
  return length;
}
