// How many jobs a tenant's loop may claim now, from its slots, the ready queue, the claims in flight, the backlog of
// outcomes and the limit beside other daemons. Computes only; claims and starts are the loop's.
import { type EventLoopUtilization, performance } from 'node:perf_hooks';
import type { NewJob } from '../../jobs/enqueue/enqueue.ts';
import type { Tenant } from '../../tenants/tenant.ts';
import { hasCapacities } from '../../tenants/tenant-store.ts';
import type { Claimer } from './claimer.ts';
import type { ReadyQueue } from './ready-queue.ts';
import type { Slots } from './slots.ts';

// Beyond this size a statement holds its locks longer than it saves.
const maxClaim = 1500;
// Outcomes that may wait for their write before the loop stops claiming.
const maxBacklog = 4000;

interface ClaimRoomParts {
  tenantConcurrency: number;
  slots: Slots;
  ready: ReadyQueue;
  claimer: Claimer;
  limit: ClaimLimit;
  outcomes: { readonly pending: number };
}

export class ClaimRoom {
  readonly #parts: ClaimRoomParts;

  constructor(parts: ClaimRoomParts) {
    this.#parts = parts;
  }

  /** How many jobs of the tenant may run at the same time. */
  limit({ settings }: Tenant): number {
    const { tenantConcurrency } = this.#parts;
    return Math.min(settings.concurrency ?? tenantConcurrency, tenantConcurrency);
  }

  /** For the free slots, and for those that will be free within a moment. */
  available(tenant: Tenant): number {
    const { slots, ready, claimer } = this.#parts;
    const limit = this.limit(tenant);
    const ahead = tenant.settings.capacity_units === undefined ? ready.ahead(limit) : 0;
    const waiting = ready.size + claimer.requested;
    const bySlots = slots.freeFor(tenant.slug, limit) + ahead - waiting;
    return Math.min(bySlots, this.#leftBesidePeers(tenant), maxClaim);
  }

  /** For the next claim; 0 means that it is not the time. */
  forClaim(tenant: Tenant): number {
    const { outcomes, claimer, ready } = this.#parts;
    if (outcomes.pending >= maxBacklog) return 0;
    const room = this.available(tenant);
    // A claim for a few, while many are ready or on their way, would cost as much as one for many.
    const min = claimer.isBusy ? maxClaim / 2 : ready.size;
    return room > 0 && room >= min ? room : 0;
  }

  /** For the next jobs of lanes, claimed with the outcomes that advance the lanes. */
  forNextOfLanes(tenant: Tenant): number {
    return this.#isDrained(tenant) ? Math.max(0, this.available(tenant)) : 0;
  }

  /** Whether new jobs may start with their insert. */
  fits(tenant: Tenant, jobs: readonly NewJob[], types: readonly string[]): boolean {
    const { slots, ready, claimer } = this.#parts;
    if (claimer.isBusy || ready.size > 0 || !this.#isDrained(tenant)) return false;
    if (!jobs.every((job) => !job.remote && types.includes(job.type))) return false;
    return Math.min(slots.freeFor(tenant.slug, this.limit(tenant)), this.#leftBesidePeers(tenant)) >= jobs.length;
  }

  /** Whether new jobs can be claimed as soon as they are inserted. */
  canClaim(tenant: Tenant, jobs: readonly NewJob[], types: readonly string[]): boolean {
    const isForHere = (job: NewJob) => !job.remote && job.runAt === undefined && types.includes(job.type);
    return !this.#parts.claimer.mayHaveWork && jobs.every(isForHere) && this.available(tenant) >= jobs.length;
  }

  /** True if there are slots, and what is held already is as much as the daemon may hold beside others. */
  isLimitedByPeers(tenant: Tenant): boolean {
    return this.#leftBesidePeers(tenant) <= 0 && this.#parts.slots.freeFor(tenant.slug, this.limit(tenant)) > 0;
  }

  #leftBesidePeers(tenant: Tenant): number {
    const { slots, ready, claimer, limit } = this.#parts;
    const running = slots.runningOf(tenant.slug);
    return limit.get(running) - running - ready.size - claimer.requested;
  }

  /** True if no earlier job is known to wait, so a new job may be claimed directly. */
  #isDrained(tenant: Tenant): boolean {
    const { slots, claimer } = this.#parts;
    return claimer.isDrained && !hasCapacities(tenant.settings) && slots.otherWaiters(tenant.slug) === 0;
  }
}

// How many jobs of a tenant this daemon may hold, running or ready, while other daemons could run them: as many as it
// starts within a moment. Slots do not say that: handlers that compute, and daemons that share a processor, start far
// fewer than they have slots for. Without other daemons there is no limit.

interface ClaimLimitOptions {
  /** Whether other daemons could run the jobs. */
  hasPeers(): boolean;
  /** Tests pass their own. */
  now?(): number;
  utilization?(since: EventLoopUtilization | undefined): EventLoopUtilization;
}

// How long a claimed job may wait for its start.
const maxWaitMs = 150;
// Below this the limit may grow.
const shortMs = 75;
// Before anything is known of the jobs.
const firstLimit = 8;
const maxLimit = 6000;
// Above this share of its time the event loop decides how many jobs end, not what they wait for.
const busyShare = 0.8;
const minSampleMs = 25;
// By then jobs that compute have begun to.
const minGrowthMs = 5;
const notifyEveryMs = 100;

export class ClaimLimit {
  readonly #options: ClaimLimitOptions;
  #limit = firstLimit;
  #notifiedAt = Number.NEGATIVE_INFINITY;
  #sampledAt: number;
  #sample: EventLoopUtilization;
  // Since the last sample: the longest wait of a job that started, how many ended, and the longest time one took.
  #waitMs = 0;
  #ended = 0;
  #durationMs = 0;

  constructor(options: ClaimLimitOptions) {
    this.#options = options;
    this.#sampledAt = this.#now();
    this.#sample = this.#utilization(undefined);
  }

  /** An attempt has started, this long after its claim. */
  started(waitMs: number): void {
    if (waitMs > this.#waitMs) this.#waitMs = waitMs;
  }

  /** An attempt has ended, this long after its start. */
  ended(durationMs: number): void {
    this.#ended += 1;
    if (durationMs > this.#durationMs) this.#durationMs = durationMs;
  }

  /** How many jobs may be held in all; `running` is how many of those that are held have started. */
  get(running: number): number {
    if (!this.#options.hasPeers()) return Number.POSITIVE_INFINITY;
    const elapsedMs = this.#now() - this.#sampledAt;
    const isBusy = this.#utilization(this.#sample).utilization > busyShare;
    const limit = this.#next(elapsedMs, isBusy, running);
    if (limit === this.#limit && elapsedMs < minSampleMs) return limit;
    this.#limit = Math.max(1, Math.min(maxLimit, limit));
    this.#waitMs = 0;
    this.#ended = 0;
    this.#durationMs = 0;
    this.#sampledAt = this.#now();
    this.#sample = this.#utilization(undefined);
    return this.#limit;
  }

  #next(elapsedMs: number, isBusy: boolean, running: number): number {
    const limit = this.#limit;
    // At most halved at a time: a single sample may be of a moment in which the process was not scheduled.
    if (this.#waitMs > maxWaitMs) return Math.floor(limit * Math.max(0.5, maxWaitMs / this.#waitMs));
    if (this.#waitMs > shortMs) return limit;
    // All that may be held has ended, or waits for something else than this event loop: more can be held beside it.
    const hasEnded = this.#ended >= limit && (!isBusy || this.#durationMs < shortMs);
    const isWaiting = !isBusy && running >= limit / 2 && elapsedMs >= minGrowthMs;
    return hasEnded || isWaiting ? limit * 2 : limit;
  }

  /** True at most every `notifyEveryMs`: other daemons are to be notified of work that is left to them. */
  mayNotify(): boolean {
    if (this.#now() < this.#notifiedAt + notifyEveryMs) return false;
    this.#notifiedAt = this.#now();
    return true;
  }

  #now(): number {
    return this.#options.now?.() ?? performance.now();
  }

  #utilization(since: EventLoopUtilization | undefined): EventLoopUtilization {
    if (this.#options.utilization !== undefined) return this.#options.utilization(since);
    return since === undefined ? performance.eventLoopUtilization() : performance.eventLoopUtilization(since);
  }
}
