// Enqueues jobs for the API and the embedding program. While two inserts of a tenant are being committed, later
// requests gather and share the next commit. A request that Postgres refuses fails alone, and a request for a locked
// lane waits alone. If workers have free slots, the jobs start in the commit that inserts them.
import type { Database } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { isConnectionError, isLockTimeout } from '../../database/sql-errors.ts';
import type { Tenant } from '../../tenants/tenant.ts';
import type { CommitSignals } from '../commit-signals.ts';
import { findLockedLanes } from '../lanes/lane.ts';
import { type Enqueued, type Enqueuer, enqueue, type NewJob } from './enqueue.ts';
import type { Reservation } from './insert-jobs.ts';
import { type EnqueueRequest, ParkedRequests, targetsOf } from './parked-requests.ts';

/** The workers of this daemon. */
interface Workers {
  /** Reserves slots for jobs that are about to be inserted, if no other job waits before them. */
  reserve(slug: string, jobs: readonly NewJob[]): Reservation | undefined;
  /** True if the workers can claim these new jobs now, so that other daemons need not be woken. */
  hasRoomFor(slug: string, jobs: readonly NewJob[]): boolean;
}

interface GroupCommitOptions {
  signals: CommitSignals;
  workers?: Workers;
  maxLockMs?: number;
}

interface TenantQueue {
  slug: string;
  waiting: EnqueueRequest[];
  /** The waiting requests are looked at in the next turn of the event loop. */
  isScheduled: boolean;
  active: number;
  /** The lanes of the groups that are being committed. */
  lanes: Set<string>;
  /** Requests for lanes that another transaction has locked. */
  parked: ParkedRequests;
}

// With one commit at a time, a request would wait for the commit of others and then for its own. With more than two,
// the groups would only become smaller.
const parallelPerTenant = 2;
const maxGroupSize = 500;
// A lane is normally locked for a few milliseconds. A longer lock may belong to a frozen process, so other requests go
// first.
const groupLockTimeoutMs = 300;
// The server releases the locks of a silent client within 3 s. A longer lock belongs to an active transaction of
// another program.
const maxLockMs = 10_000;

/** One instance per daemon. */
export class EnqueueGroupCommit implements Enqueuer {
  readonly #db: Database;
  readonly #workers: Workers | undefined;
  readonly #signals: CommitSignals;
  readonly #maxLockMs: number;
  readonly #tenants = new Map<Schema, TenantQueue>();

  constructor(db: Database, options: GroupCommitOptions) {
    this.#db = db;
    this.#workers = options.workers;
    this.#signals = options.signals;
    this.#maxLockMs = options.maxLockMs ?? maxLockMs;
  }

  /** Enqueues with a shared commit. Resolves after the commit and its signals. */
  async enqueue(tenant: Tenant, jobs: NewJob[], actor: string): Promise<Enqueued[]> {
    // A transaction of another program may lock a unique key for long, so jobs with such keys share no commit.
    const isUnique = jobs.some((job) => job.unique !== undefined);
    const enqueued = await (isUnique
      ? enqueue(this.#db.forTenant(tenant.schema), tenant.schema, jobs, actor)
      : this.#shareCommit(tenant, jobs, actor));
    this.#signals.eventsWritten(tenant);
    if (enqueued.every((one) => one.kind === 'created' && (one.started || one.isBehind))) return enqueued;
    // If this daemon can claim the jobs, other daemons are not woken.
    const isRoomHere = !isUnique && this.#workers?.hasRoomFor(tenant.slug, jobs);
    this.#signals.workAvailable(tenant, { enqueued, reach: isRoomHere ? 'daemon' : 'all' });
    return enqueued;
  }

  #shareCommit(tenant: Tenant, jobs: NewJob[], actor: string): Promise<Enqueued[]> {
    return new Promise((resolve, reject) => {
      const queue = this.#queueOf(tenant);
      const request = { jobs, actor, resolve, reject };
      if (queue.parked.mustWait(request)) return queue.parked.add([request]);
      queue.waiting.push(request);
      if (queue.isScheduled) return;
      queue.isScheduled = true;
      setImmediate(() => {
        queue.isScheduled = false;
        this.#pump(tenant.schema);
      });
    });
  }

  #queueOf({ slug, schema }: Tenant): TenantQueue {
    const known = this.#tenants.get(schema);
    if (known !== undefined) return known;
    const parked = new ParkedRequests({
      maxWaitMs: this.#maxLockMs,
      findLocked: (targetIds) => findLockedLanes(this.#db.forTenant(schema), schema, targetIds),
      retry: (requests) => this.#retry(schema, slug, requests),
      onEmpty: () => this.#forgetIfIdle(schema),
    });
    const queue = { slug, waiting: [], isScheduled: false, active: 0, lanes: new Set<string>(), parked };
    this.#tenants.set(schema, queue);
    return queue;
  }

  #pump(schema: Schema): void {
    const queue = this.#tenants.get(schema);
    if (queue === undefined) return;
    while (queue.active < parallelPerTenant) {
      const group = takeGroup(queue);
      if (group.length === 0) return;
      const lanes = group.flatMap(targetsOf);
      for (const lane of lanes) queue.lanes.add(lane);
      queue.active += 1;
      void this.#insert(schema, queue, group).finally(() => {
        queue.active -= 1;
        for (const lane of lanes) queue.lanes.delete(lane);
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
    queue.parked.add(await this.#insertAll(schema, queue.slug, group));
  }

  async #retry(schema: Schema, slug: string, requests: EnqueueRequest[]): Promise<EnqueueRequest[]> {
    const locked: EnqueueRequest[] = [];
    const left = [...requests];
    while (left.length > 0) locked.push(...(await this.#insertAll(schema, slug, left.splice(0, groupLength(left)))));
    return locked;
  }

  /**
   * Inserts the requests that can be inserted now. Returns those whose lane is still locked; nothing of them is stored.
   */
  async #insertAll(schema: Schema, slug: string, group: EnqueueRequest[]): Promise<EnqueueRequest[]> {
    try {
      await this.#insertTogether(schema, slug, group);
      return [];
    } catch (error) {
      if (isLockTimeout(error)) return this.#insertAround(schema, slug, group);
      // After a lost connection it is unknown for all of them whether the jobs were stored.
      if (group.length === 1 || isConnectionError(error)) for (const waiting of group) waiting.reject(error);
      else return this.#insertSingly(schema, slug, group);
      return [];
    }
  }

  async #insertTogether(schema: Schema, slug: string, group: EnqueueRequest[]): Promise<void> {
    const first = group[0] as EnqueueRequest;
    const enqueued = await enqueue(
      this.#db.forTenant(schema),
      schema,
      group.flatMap((w) => w.jobs),
      first.actor,
      { reserve: (jobs) => this.#workers?.reserve(slug, jobs), lockTimeoutMs: groupLockTimeoutMs },
    );
    let position = 0;
    for (const waiting of group) {
      waiting.resolve(enqueued.slice(position, position + waiting.jobs.length));
      position += waiting.jobs.length;
    }
  }

  /** One of the lanes is locked: inserts the requests of the other lanes. */
  async #insertAround(schema: Schema, slug: string, group: EnqueueRequest[]): Promise<EnqueueRequest[]> {
    if (group.length === 1) return group;
    const targetIds = group.flatMap(targetsOf);
    const lockedLanes = await findLockedLanes(this.#db.forTenant(schema), schema, targetIds).catch(
      () => new Set<string>(),
    );
    const locked = group.filter((request) => targetsOf(request).some((id) => lockedLanes.has(id)));
    // No lane is visibly locked: the lock was released, or it is on a target or key that is not committed yet.
    if (locked.length === 0) return this.#insertSingly(schema, slug, group);
    const others = group.filter((request) => !locked.includes(request));
    return others.length === 0 ? locked : [...locked, ...(await this.#insertAll(schema, slug, others))];
  }

  async #insertSingly(schema: Schema, slug: string, group: EnqueueRequest[]): Promise<EnqueueRequest[]> {
    const locked: EnqueueRequest[] = [];
    for (const waiting of group) locked.push(...(await this.#insertAll(schema, slug, [waiting])));
    return locked;
  }
}

/**
 * Takes the first requests that fit into one statement. Jobs join each lane in the order of their requests, so those
 * of a lane that is being committed stay, and later ones of the same lanes behind them.
 */
function takeGroup(queue: TenantQueue): EnqueueRequest[] {
  const blocked = new Set(queue.lanes);
  const free = queue.waiting.filter((request) => {
    const lanes = targetsOf(request);
    if (!lanes.some((lane) => blocked.has(lane))) return true;
    for (const lane of lanes) blocked.add(lane);
    return false;
  });
  const group = free.splice(0, groupLength(free));
  const taken = new Set(group);
  if (group.length > 0) queue.waiting = queue.waiting.filter((request) => !taken.has(request));
  return group;
}

/**
 * Counts the leading requests that fit into one statement. They have one actor, because the events of a statement do.
 */
function groupLength(waiting: readonly EnqueueRequest[]): number {
  const actor = waiting[0]?.actor;
  let jobs = 0;
  let length = 0;
  for (const request of waiting) {
    if (request.actor !== actor || (length > 0 && jobs + request.jobs.length > maxGroupSize)) break;
    jobs += request.jobs.length;
    length += 1;
  }
  return length;
}
