// Computes how many jobs a tenant's loop may claim now, from its slots, the ready queue, the claims in flight, the
// backlog of outcomes and the claim limit. It only computes; the loop claims and starts.
import type { NewJob } from '../../jobs/enqueue/enqueue.ts';
import type { Tenant } from '../../tenants/tenant.ts';
import { hasCapacities } from '../../tenants/tenant-store.ts';
import type { LoopContext } from '../worker-context.ts';
import type { ClaimLimit } from './claim-limit.ts';
import type { Claimer } from './claimer.ts';
import type { ReadyQueue } from './ready-queue.ts';
import type { Slots } from './slots.ts';

// A larger statement holds its locks for longer than it saves.
const maxClaim = 1500;
// The number of unwritten outcomes at which the loop stops claiming.
const maxBacklog = 4000;

interface ClaimRoomParts {
  claimer: Claimer;
  attempts: { readonly ready: ReadyQueue; readonly claimLimit: ClaimLimit };
  outcomes: { readonly pending: number };
}

// After this time a daemon that left work to others checks whether it may hold more.
export const peerRecheckMs = 10;

export class ClaimRoom {
  readonly #tenantConcurrency: number;
  readonly #slots: Slots;
  readonly #claimer: Claimer;
  readonly #ready: ReadyQueue;
  readonly #claimLimit: ClaimLimit;
  readonly #outcomes: { readonly pending: number };

  constructor(
    { config, slots }: Pick<LoopContext, 'config' | 'slots'>,
    { claimer, attempts, outcomes }: ClaimRoomParts,
  ) {
    this.#tenantConcurrency = config.tenantConcurrency;
    this.#slots = slots;
    this.#claimer = claimer;
    this.#ready = attempts.ready;
    this.#claimLimit = attempts.claimLimit;
    this.#outcomes = outcomes;
  }

  /** The number of jobs of the tenant that may run at once. */
  limit({ settings }: Tenant): number {
    return Math.min(settings.concurrency ?? this.#tenantConcurrency, this.#tenantConcurrency);
  }

  /** Room for the free slots, and for those that will be free within a moment. */
  available(tenant: Tenant): number {
    const limit = this.limit(tenant);
    const ahead = tenant.settings.capacity_units === undefined ? this.#ready.ahead(limit) : 0;
    const waiting = this.#ready.size + this.#claimer.requested;
    const bySlots = this.#slots.freeFor(tenant.slug, limit) + ahead - waiting;
    return Math.min(bySlots, this.#leftBesidePeers(tenant), maxClaim);
  }

  /** Room for the next claim; 0 means that the loop should not claim now. */
  forClaim(tenant: Tenant): number {
    if (this.#outcomes.pending >= maxBacklog) return 0;
    const room = this.available(tenant);
    // A claim for a few jobs costs as much as one for many, so it waits while many jobs are ready or being claimed.
    const min = this.#claimer.isBusy ? maxClaim / 2 : this.#ready.size;
    return room > 0 && room >= min ? room : 0;
  }

  /** Room for the next jobs of lanes, claimed with the outcomes that advance the lanes. */
  forNextOfLanes(tenant: Tenant): number {
    return this.#isDrained(tenant) ? Math.max(0, this.available(tenant)) : 0;
  }

  /** True if new jobs may start with their insert. */
  fits(tenant: Tenant, jobs: readonly NewJob[], types: readonly string[]): boolean {
    if (this.#claimer.isBusy || this.#ready.size > 0 || !this.#isDrained(tenant)) return false;
    if (!jobs.every((job) => !job.remote && types.includes(job.type))) return false;
    return Math.min(this.#slots.freeFor(tenant.slug, this.limit(tenant)), this.#leftBesidePeers(tenant)) >= jobs.length;
  }

  /** True if new jobs can be claimed as soon as they are inserted. */
  canClaim(tenant: Tenant, jobs: readonly NewJob[], types: readonly string[]): boolean {
    const isForHere = (job: NewJob) => !job.remote && job.runAt === undefined && types.includes(job.type);
    return !this.#claimer.mayHaveWork && jobs.every(isForHere) && this.available(tenant) >= jobs.length;
  }

  /** True if there are free slots, but the daemon holds as many jobs as its claim limit allows. */
  isLimitedByPeers(tenant: Tenant): boolean {
    return this.#leftBesidePeers(tenant) <= 0 && this.#slots.freeFor(tenant.slug, this.limit(tenant)) > 0;
  }

  #leftBesidePeers(tenant: Tenant): number {
    const running = this.#slots.runningOf(tenant.slug);
    return this.#claimLimit.get(running) - running - this.#ready.size - this.#claimer.requested;
  }

  /** True if no earlier job is known to wait, so a new job may be claimed directly. */
  #isDrained(tenant: Tenant): boolean {
    return this.#claimer.isDrained && !hasCapacities(tenant.settings) && this.#slots.otherWaiters(tenant.slug) === 0;
  }
}
