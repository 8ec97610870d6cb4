// The daemon's slots, shared fairly. While other tenants wait, no tenant takes more than its share, and a freed slot
// goes first to the tenant with the fewest running jobs. The last free slots are reserved for tenants without running
// jobs, one each, so that jobs of many hours do not delay another tenant's first job. No I/O here.

import type { NamedClaim } from '../../jobs/claim/claim.ts';
import type { Reservation } from '../../jobs/enqueue/insert-jobs.ts';
import type { Job } from '../../jobs/model/job.ts';
import type { Signal } from '../../kernel/service.ts';

export interface SlotWaiter {
  readonly key: string;
  /** Set when a slot may be free. */
  readonly slotFree: Pick<Signal, 'set'>;
}

export interface SlotsOptions {
  /** The share of all slots, from 0 to 1, that only a tenant's first job may take. */
  reservedShare?: number;
}

export class Slots {
  readonly total: number;
  readonly #reserved: number;
  #tenants = 0;
  #used = 0;
  #running = new Map<string, number>();
  #waiters = new Map<string, SlotWaiter>();

  constructor(total: number, { reservedShare = 0 }: SlotsOptions = {}) {
    this.total = total;
    // Rounded up, so that a small daemon has a reserve too. A daemon with one slot reserves none.
    this.#reserved = total > 1 ? Math.ceil(total * reservedShare) : 0;
  }

  /** The number of tenants of this daemon. No more slots than that are reserved. */
  set tenants(count: number) {
    const fewer = count < this.#tenants;
    this.#tenants = count;
    if (fewer) this.#notifyWaiters();
  }

  get used(): number {
    return this.#used;
  }

  runningOf(key: string): number {
    return this.#running.get(key) ?? 0;
  }

  /** Counts the other tenants that wait for slots. */
  otherWaiters(key: string): number {
    return this.#waiters.size - (this.#waiters.has(key) ? 1 : 0);
  }

  /** Returns how many slots the tenant may take now without exceeding `tenantLimit`. */
  freeFor(key: string, tenantLimit: number): number {
    const free = this.total - this.#used;
    const running = this.runningOf(key);
    const share = Math.ceil((free - this.#reservedAgainst(running)) / (this.otherWaiters(key) + 1));
    const first = running === 0 && free > 0 ? 1 : 0;
    return Math.max(0, Math.min(Math.max(share, first), tenantLimit - running));
  }

  /**
   * Returns how many slots a tenant with this many running jobs leaves free: one for each other tenant that runs
   * nothing.
   */
  #reservedAgainst(running: number): number {
    const idle = this.#tenants - this.#running.size - (running === 0 ? 1 : 0);
    return Math.max(0, Math.min(this.#reserved, idle));
  }

  /** Takes free slots for the tenant and returns their number. After 0 the tenant waits for `slotFree`. */
  take(tenant: SlotWaiter, tenantLimit: number): number {
    const granted = this.freeFor(tenant.key, tenantLimit);
    if (granted === 0) {
      this.wait(tenant);
      return 0;
    }
    this.#waiters.delete(tenant.key);
    this.#used += granted;
    this.#running.set(tenant.key, this.runningOf(tenant.key) + granted);
    return granted;
  }

  /** The tenant has work and no slot for it. */
  wait(tenant: SlotWaiter): void {
    this.#waiters.set(tenant.key, tenant);
  }

  release(key: string, count: number): void {
    if (count === 0) return;
    this.#used -= count;
    const left = this.runningOf(key) - count;
    if (left > 0) this.#running.set(key, left);
    else this.#running.delete(key);
    this.#notifyWaiters();
  }

  /** The tenant has nothing to claim, or is stopped, and does not compete for slots. */
  forget(key: string): void {
    this.#waiters.delete(key);
  }

  #notifyWaiters(): void {
    if (this.#waiters.size === 0) return;
    const fewestFirst = [...this.#waiters.values()].sort((a, b) => this.runningOf(a.key) - this.runningOf(b.key));
    for (const tenant of fewestFirst) tenant.slotFree.set();
  }
}

/** Slots for jobs that are about to be inserted. They are taken until the insert is answered. */
export class SlotReservation implements Reservation {
  readonly leaseId: string;
  readonly owner: string;
  readonly leaseSeconds: number;
  readonly sentAt = process.hrtime.bigint();
  readonly answered: Promise<{ kind: 'started'; jobs: Job[] } | { kind: 'failed'; error: unknown }>;
  started: (jobs: Job[]) => void = () => {};
  failed: (error: unknown) => void = () => {};

  constructor(waiter: SlotWaiter, slots: Slots, { leaseId, owner, leaseSeconds, limit }: NamedClaim) {
    this.leaseId = leaseId;
    this.owner = owner;
    this.leaseSeconds = leaseSeconds;
    const taken = slots.take(waiter, slots.runningOf(waiter.key) + limit);
    this.answered = new Promise((resolve) => {
      // In the next turn: the caller of the enqueue has its answer before the handlers begin, which may block the event
      // loop.
      this.started = (jobs) => {
        setImmediate(() => {
          slots.release(waiter.key, taken);
          resolve({ kind: 'started', jobs });
        });
      };
      this.failed = (error) => {
        slots.release(waiter.key, taken);
        resolve({ kind: 'failed', error });
      };
    });
  }
}
