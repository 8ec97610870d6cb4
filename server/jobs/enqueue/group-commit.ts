// Callers that wait at the same time share one commit: while one insert is on its way to the disk,
// the next ones gather. A request that Postgres refuses fails alone, and one whose lane is locked waits alone.
import { type Database, isConnectionError, isLockTimeout } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { findLockedLanes } from '../lanes/lane.ts';
import { type Enqueued, enqueue, type NewJob, type Reserve } from './enqueue.ts';
import { ParkedRequests, targetsOf, type Waiting } from './parked-requests.ts';

interface Line {
  waiting: Waiting[];
  active: number;
  /** Requests of lanes that another transaction has locked. */
  parked: ParkedRequests;
}

// One commit at a time: those who come meanwhile share the next. A second would only halve the groups.
const parallelPerTenant = 1;
const maxGroupSize = 500;
// A lane is locked for a few milliseconds at a time. Who holds it for longer may be frozen: the others go ahead.
const groupLockTimeoutMs = 300;
// The server frees the locks of a silent client within 3 s. What takes longer is a transaction at work, by somebody else.
const longestLockMs = 10_000;

/** One per daemon. `group.enqueue()` is `enqueue()` with the commit shared; it resolves after that commit. */
export class EnqueueGroupCommit {
  #db: Database;
  #longestLockMs: number;
  #tenants = new Map<Schema, Line>();

  constructor(db: Database, options: { longestLockMs?: number } = {}) {
    this.#db = db;
    this.#longestLockMs = options.longestLockMs ?? longestLockMs;
  }

  enqueue(schema: Schema, jobs: NewJob[], actor: string, reserve?: Reserve): Promise<Enqueued[]> {
    return new Promise((resolve, reject) => {
      const line = this.#lineOf(schema);
      const request = { jobs, actor, reserve, resolve, reject };
      if (line.parked.mustWait(request)) return line.parked.add([request]);
      line.waiting.push(request);
      if (line.waiting.length === 1) setImmediate(() => this.#pump(schema));
    });
  }

  #lineOf(schema: Schema): Line {
    const known = this.#tenants.get(schema);
    if (known !== undefined) return known;
    const parked = new ParkedRequests({
      longestWaitMs: this.#longestLockMs,
      findLocked: (targetIds) => findLockedLanes(this.#db, schema, targetIds),
      retry: (requests) => this.#retry(schema, requests),
      onEmpty: () => this.#forgetIfIdle(schema),
    });
    const line = { waiting: [], active: 0, parked };
    this.#tenants.set(schema, line);
    return line;
  }

  #pump(schema: Schema): void {
    const line = this.#tenants.get(schema);
    if (line === undefined) return;
    while (line.active < parallelPerTenant && line.waiting.length > 0) {
      const group = takeGroup(line.waiting);
      line.active += 1;
      void this.#insert(schema, line, group).finally(() => {
        line.active -= 1;
        this.#pump(schema);
        this.#forgetIfIdle(schema);
      });
    }
  }

  #forgetIfIdle(schema: Schema): void {
    const line = this.#tenants.get(schema);
    if (line?.active === 0 && line.waiting.length === 0 && line.parked.isEmpty) this.#tenants.delete(schema);
  }

  async #insert(schema: Schema, line: Line, group: Waiting[]): Promise<void> {
    line.parked.add(await this.#insertAll(schema, group));
  }

  async #retry(schema: Schema, requests: Waiting[]): Promise<Waiting[]> {
    const held: Waiting[] = [];
    const left = [...requests];
    while (left.length > 0) held.push(...(await this.#insertAll(schema, takeGroup(left))));
    return held;
  }

  /** Inserts what can be inserted now; returns the requests that met a lock, for which nothing was done. */
  async #insertAll(schema: Schema, group: Waiting[]): Promise<Waiting[]> {
    try {
      await this.#insertTogether(schema, group);
      return [];
    } catch (error) {
      if (isLockTimeout(error)) return this.#insertAround(schema, group);
      // Whether a cut connection took the jobs in is unknown to all of them alike.
      if (group.length === 1 || isConnectionError(error)) for (const waiting of group) waiting.reject(error);
      else return this.#insertSingly(schema, group);
      return [];
    }
  }

  async #insertTogether(schema: Schema, group: Waiting[]): Promise<void> {
    const first = group[0] as Waiting;
    const enqueued = await enqueue(
      this.#db,
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

  /** One of the lanes is locked: the requests of all others go ahead. */
  async #insertAround(schema: Schema, group: Waiting[]): Promise<Waiting[]> {
    if (group.length === 1) return group;
    const targetIds = group.flatMap(targetsOf);
    const locked = await findLockedLanes(this.#db, schema, targetIds).catch(() => new Set<string>());
    const held = group.filter((request) => targetsOf(request).some((id) => locked.has(id)));
    // No lane can be seen to be locked: the lock is free again, or on a target or key that is not committed yet.
    if (held.length === 0) return this.#insertSingly(schema, group);
    const others = group.filter((request) => !held.includes(request));
    return others.length === 0 ? held : [...held, ...(await this.#insertAll(schema, others))];
  }

  async #insertSingly(schema: Schema, group: Waiting[]): Promise<Waiting[]> {
    const held: Waiting[] = [];
    for (const waiting of group) held.push(...(await this.#insertAll(schema, [waiting])));
    return held;
  }
}

/** The longest run of requests by one actor: events of a statement name one. */
function takeGroup(waiting: Waiting[]): Waiting[] {
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
