// Settlers side by side, for when one is not enough. All outcomes of a lease go through the same one, so
// that the last of them cannot overtake the others.
import type { Settlement } from '../jobs/settle.ts';
import { Settler, type SettlerOptions } from './settler.ts';

// While one waits for its commit and one for the process to run what it took, a third keeps Postgres busy.
const most = 3;
// While the first has less than this to write, another would only make small transactions of one.
const enoughForMore = 100;

export class Settlers<T extends Settlement> {
  readonly #first: Settler<T>;
  readonly #all: Settler<T>[];
  readonly #byLease = new Map<string, Settler<T>>();

  constructor(options: SettlerOptions<T>) {
    this.#first = new Settler(options);
    this.#all = [this.#first];
    while (this.#all.length < most) this.#all.push(new Settler(options));
  }

  /** How many outcomes wait for the next write. */
  get pending(): number {
    return this.#all.reduce((sum, settler) => sum + settler.pending, 0);
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
    // What one of them takes with its last outcome may go back through another.
    while (this.#all.some((settler) => settler.load > 0)) {
      await Promise.all(this.#all.map((settler) => settler.idle()));
    }
  }

  #choose(): Settler<T> {
    if (this.#first.load < enoughForMore) return this.#first;
    return this.#all.reduce((least, settler) => (settler.load < least.load ? settler : least));
  }
}
