// Two settlers side by side, for when one is not enough. All outcomes of a lease go through the same
// one, so that the last of them cannot overtake the others.
import type { Settlement } from '../jobs/settle.ts';
import { Settler, type SettlerOptions } from './settler.ts';

// While one has less than this to write, another would only make two small transactions of one.
const enoughForTwo = 100;

export class Settlers<T extends Settlement> {
  readonly #first: Settler<T>;
  readonly #second: Settler<T>;
  readonly #byLease = new Map<string, Settler<T>>();

  constructor(options: SettlerOptions<T>) {
    this.#first = new Settler(options);
    this.#second = new Settler(options);
  }

  /** How many outcomes wait for the next write. */
  get pending(): number {
    return this.#first.pending + this.#second.pending;
  }

  add(item: T, leaseEnded: boolean): void {
    const settler = this.#byLease.get(item.leaseId) ?? this.#choose();
    if (leaseEnded) this.#byLease.delete(item.leaseId);
    else this.#byLease.set(item.leaseId, settler);
    settler.add(item, leaseEnded);
  }

  /** The lease ended without a last outcome. */
  forget(leaseId: string): void {
    this.#byLease.delete(leaseId);
  }

  async idle(): Promise<void> {
    // What one of them takes with its last outcome may go back through the other.
    while (this.#first.load + this.#second.load > 0) await Promise.all([this.#first.idle(), this.#second.idle()]);
  }

  #choose(): Settler<T> {
    return this.#first.load < Math.max(enoughForTwo, this.#second.load) ? this.#first : this.#second;
  }
}
