// The daemon's slots, shared fairly: while others are hungry nobody takes more than its share, and
// a freed slot goes first to the tenant that runs least. No I/O here.

export interface HungryTenant {
  readonly key: string;
  /** Called when it may ask again. */
  onSlotFree(): void;
}

export class Slots {
  readonly total: number;
  #used = 0;
  #running = new Map<string, number>();
  #hungry = new Map<string, HungryTenant>();

  constructor(total: number) {
    this.total = total;
  }

  get used(): number {
    return this.#used;
  }

  runningOf(key: string): number {
    return this.#running.get(key) ?? 0;
  }

  /** How many tenants beside this one wait for slots. */
  rivalsOf(key: string): number {
    return this.#hungry.size - (this.#hungry.has(key) ? 1 : 0);
  }

  /** How many the tenant could take now, to have `tenantLimit` in all at most. */
  freeFor(key: string, tenantLimit: number): number {
    const free = this.total - this.#used;
    const share = Math.ceil(free / (this.rivalsOf(key) + 1));
    return Math.max(0, Math.min(share, tenantLimit - this.runningOf(key)));
  }

  /** Takes what is free for the tenant; 0 means wait for `onSlotFree()`. */
  take(tenant: HungryTenant, tenantLimit: number): number {
    const granted = this.freeFor(tenant.key, tenantLimit);
    if (granted === 0) {
      this.wait(tenant);
      return 0;
    }
    this.#hungry.delete(tenant.key);
    this.#used += granted;
    this.#running.set(tenant.key, this.runningOf(tenant.key) + granted);
    return granted;
  }

  /** It has something to claim and no slot for it. */
  wait(tenant: HungryTenant): void {
    this.#hungry.set(tenant.key, tenant);
  }

  release(key: string, count: number): void {
    if (count === 0) return;
    this.#used -= count;
    const left = this.runningOf(key) - count;
    if (left > 0) this.#running.set(key, left);
    else this.#running.delete(key);
    this.#tellHungry();
  }

  /** A tenant that has nothing to claim, or is stopped, is no rival. */
  forget(key: string): void {
    this.#hungry.delete(key);
  }

  #tellHungry(): void {
    if (this.#hungry.size === 0) return;
    const byLeast = [...this.#hungry.values()].sort((a, b) => this.runningOf(a.key) - this.runningOf(b.key));
    for (const tenant of byLeast) tenant.onSlotFree();
  }
}
