// Group commit: while one insert is being committed, later requests of the tenant gather and share the next commit. A
// request that Postgres refuses fails alone, and one whose lane is locked waits alone.
import type { Database } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { isConnectionError, isLockTimeout } from '../../database/sql-errors.ts';
import { findLockedLanes } from '../lanes/lane.ts';
import { type Enqueued, enqueue, type NewJob, type Reserve } from './enqueue.ts';
import { type EnqueueRequest, ParkedRequests, targetsOf } from './parked-requests.ts';

interface TenantQueue {
  waiting: EnqueueRequest[];
  active: number;
  /** Requests of lanes that another transaction has locked. */
  parked: ParkedRequests;
}

// One commit at a time: requests that arrive meanwhile share the next. A second would only halve the groups.
const parallelPerTenant = 1;
const maxGroupSize = 500;
// A lane is locked for a few milliseconds at a time. A longer lock may belong to a frozen process: others go first.
const groupLockTimeoutMs = 300;
// The server frees the locks of a silent client within 3 s. A longer lock belongs to an active transaction of another program.
const maxLockMs = 10_000;

/** One per daemon. `group.enqueue()` is `enqueue()` with the commit shared; it resolves after that commit. */
export class EnqueueGroupCommit {
  #db: Database;
  #maxLockMs: number;
  #tenants = new Map<Schema, TenantQueue>();

  constructor(db: Database, options: { maxLockMs?: number } = {}) {
    this.#db = db;
    this.#maxLockMs = options.maxLockMs ?? maxLockMs;
  }

  enqueue(schema: Schema, jobs: NewJob[], actor: string, reserve?: Reserve): Promise<Enqueued[]> {
    return new Promise((resolve, reject) => {
      const queue = this.#queueOf(schema);
      const request = { jobs, actor, reserve, resolve, reject };
      if (queue.parked.mustWait(request)) return queue.parked.add([request]);
      queue.waiting.push(request);
      if (queue.waiting.length === 1) setImmediate(() => this.#pump(schema));
    });
  }

  #queueOf(schema: Schema): TenantQueue {
    const known = this.#tenants.get(schema);
    if (known !== undefined) return known;
    const parked = new ParkedRequests({
      maxWaitMs: this.#maxLockMs,
      findLocked: (targetIds) => findLockedLanes(this.#db.forTenant(schema), schema, targetIds),
      retry: (requests) => this.#retry(schema, requests),
      onEmpty: () => this.#forgetIfIdle(schema),
    });
    const queue = { waiting: [], active: 0, parked };
    this.#tenants.set(schema, queue);
    return queue;
  }

  #pump(schema: Schema): void {
    const queue = this.#tenants.get(schema);
    if (queue === undefined) return;
    while (queue.active < parallelPerTenant && queue.waiting.length > 0) {
      const group = takeGroup(queue.waiting);
      queue.active += 1;
      void this.#insert(schema, queue, group).finally(() => {
        queue.active -= 1;
        this.#pump(schema);
        this.#forgetIfIdle(schema);
      });
    }
  }

  #forgetIfIdle(schema: Schema): void {
    const queue = this.#tenants.get(schema);
    if (queue?.active === 0 && queue.waiting.length === 0 && queue.parked.isEmpty) this.#tenants.delete(schema);
  }

  async #insert(schema: Schema, queue: TenantQueue, group: EnqueueRequest[]): Promise<void> {
    queue.parked.add(await this.#insertAll(schema, group));
  }

  async #retry(schema: Schema, requests: EnqueueRequest[]): Promise<EnqueueRequest[]> {
    const held: EnqueueRequest[] = [];
    const left = [...requests];
    while (left.length > 0) held.push(...(await this.#insertAll(schema, takeGroup(left))));
    return held;
  }

  /** Inserts what can be inserted now; returns the requests whose lane stayed locked. Nothing of them is stored. */
  async #insertAll(schema: Schema, group: EnqueueRequest[]): Promise<EnqueueRequest[]> {
    try {
      await this.#insertTogether(schema, group);
      return [];
    } catch (error) {
      if (isLockTimeout(error)) return this.#insertAround(schema, group);
      // After a lost connection it is unknown, for all of them alike, whether the jobs were stored.
      if (group.length === 1 || isConnectionError(error)) for (const waiting of group) waiting.reject(error);
      else return this.#insertSingly(schema, group);
      return [];
    }
  }

  async #insertTogether(schema: Schema, group: EnqueueRequest[]): Promise<void> {
    const first = group[0] as EnqueueRequest;
    const enqueued = await enqueue(
      this.#db.forTenant(schema),
      schema,
      group.flatMap((w) => w.jobs),
      first.actor,
      { reserve: first.reserve, lockTimeoutMs: groupLockTimeoutMs },
    );
    let position = 0;
    for (const waiting of group) {
      waiting.resolve(enqueued.slice(position, position + waiting.jobs.length));
      position += waiting.jobs.length;
    }
  }

  /** One of the lanes is locked: the requests of the others are inserted without it. */
  async #insertAround(schema: Schema, group: EnqueueRequest[]): Promise<EnqueueRequest[]> {
    if (group.length === 1) return group;
    const targetIds = group.flatMap(targetsOf);
    const locked = await findLockedLanes(this.#db.forTenant(schema), schema, targetIds).catch(() => new Set<string>());
    const held = group.filter((request) => targetsOf(request).some((id) => locked.has(id)));
    // No lane is visibly locked: the lock is free again, or on a target or key that is not committed yet.
    if (held.length === 0) return this.#insertSingly(schema, group);
    const others = group.filter((request) => !held.includes(request));
    return others.length === 0 ? held : [...held, ...(await this.#insertAll(schema, others))];
  }

  async #insertSingly(schema: Schema, group: EnqueueRequest[]): Promise<EnqueueRequest[]> {
    const held: EnqueueRequest[] = [];
    for (const waiting of group) held.push(...(await this.#insertAll(schema, [waiting])));
    return held;
  }
}

/** As many requests of one actor as fit: the events of a statement have one actor. */
function takeGroup(waiting: EnqueueRequest[]): EnqueueRequest[] {
  const actor = waiting[0]?.actor;
  let jobs = 0;
  let length = 0;
  for (const request of waiting) {
    if (request.actor !== actor || (length > 0 && jobs + request.jobs.length > maxGroupSize)) break;
    jobs += request.jobs.length;
    length += 1;
  }
  return waiting.splice(0, length);
}
