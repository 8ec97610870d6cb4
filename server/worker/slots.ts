// The daemon's slots, shared fairly: while others are hungry nobody takes more than its share, and
// a freed slot goes first to the tenant that runs least. No I/O here.

export interface HungryTenant {
  readonly key: string;
  /** Called when it may ask again. */
  wake(): void;
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

  /** Takes up to `tenantLimit` slots in all for the tenant; 0 means wait for `wake()`. */
  take(tenant: HungryTenant, tenantLimit: number): number {
    this.#hungry.delete(tenant.key);
    const own = this.runningOf(tenant.key);
    const free = this.total - this.#used;
    const rivals = this.#hungry.size;
    const share = rivals === 0 ? free : Math.ceil(free / (rivals + 1));
    const granted = Math.max(0, Math.min(share, tenantLimit - own));
    if (granted === 0) {
      this.#hungry.set(tenant.key, tenant);
      return 0;
    }
    this.#used += granted;
    this.#running.set(tenant.key, own + granted);
    return granted;
  }

  release(key: string, count: number): void {
    if (count === 0) return;
    this.#used -= count;
    const left = this.runningOf(key) - count;
    if (left > 0) this.#running.set(key, left);
    else this.#running.delete(key);
    this.#wakeHungry();
  }

  /** A tenant that has nothing to claim, or is stopped, is no rival. */
  forget(key: string): void {
    this.#hungry.delete(key);
  }

  #wakeHungry(): void {
    if (this.#hungry.size === 0) return;
    const byLeast = [...this.#hungry.values()].sort((a, b) => this.runningOf(a.key) - this.runningOf(b.key));
    for (const tenant of byLeast) tenant.wake();
  }
}
