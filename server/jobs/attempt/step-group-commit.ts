// Reads stored calls and writes the results of steps and phases, in statements that the attempts of one tenant share.
// Each job is fenced by its own lease.
import type { Database } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { isConnectionError } from '../../database/sql-errors.ts';
import type { HeldJob } from '../claim/lease.ts';
import type { StopRequest } from '../model/job-values.ts';
import { type LoadedSteps, loadSharedSteps, loadSteps } from './load-steps.ts';
import { type StepWrite, saveSteps } from './save-steps.ts';

interface SaveRequest extends StepWrite, HeldRequest {}

/** One per daemon. */
export class StepGroupCommit {
  readonly #saves: HeldGroups<SaveRequest, StopRequest | undefined>;
  readonly #loads: HeldGroups<HeldRequest, LoadedSteps | undefined>;

  constructor(db: Database) {
    this.#saves = new HeldGroups((schema, group) => saveGroup(db.forTenant(schema), schema, group));
    this.#loads = new HeldGroups((schema, group) => loadGroup(db.forTenant(schema), schema, group));
  }

  /**
   * Resolves after the commit, with the stop that people have requested, or undefined if the lease no longer owns the
   * job. `bytes` is the size of the results.
   */
  save(schema: Schema, write: StepWrite, bytes: number): Promise<StopRequest | undefined> {
    return this.#saves.add(schema, { ...write, bytes });
  }

  /** Returns undefined if the lease no longer owns the job. */
  load(schema: Schema, held: HeldJob): Promise<LoadedSteps | undefined> {
    return this.#loads.add(schema, { held, bytes: 0 });
  }
}

async function saveGroup(db: Database, schema: Schema, group: readonly SaveRequest[]) {
  const stops = await saveSteps(db, schema, group);
  // The job of a group of one was waited for, so its lease is lost if it is missing.
  const missing = countJobs(group) === 1 ? undefined : alone;
  return group.map(({ held }) => stops.get(held.jobId) ?? missing);
}

async function loadGroup(db: Database, schema: Schema, group: readonly HeldRequest[]) {
  const [first] = group;
  if (first !== undefined && countJobs(group) === 1) {
    const loaded = await loadSteps(db, schema, first.held);
    return group.map(() => loaded);
  }
  const loaded = await loadSharedSteps(
    db,
    schema,
    group.map(({ held }) => held),
  );
  return group.map(({ held }) => loaded.get(held.jobId) ?? alone);
}

function countJobs(group: readonly HeldRequest[]): number {
  return new Set(group.map(({ held }) => held.jobId)).size;
}

// Requests of running attempts that share a statement. While two statements of a tenant are under way, later requests
// gather for the next one. A request that Postgres refuses fails alone, and one that cannot be answered with the others
// is sent alone.

interface HeldRequest {
  held: HeldJob;
  /** Estimated size of what is sent. */
  bytes: number;
}

/** The result of a request that must be sent alone; a request that was sent alone never gets it. */
const alone = Symbol('alone');

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

class HeldGroups<Q extends HeldRequest, R> {
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
