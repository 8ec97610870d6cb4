// Settlers side by side, for when one is not enough. All outcomes of a lease go through the same one, so
// that the last of them cannot overtake the others.
import type { FinishedAttempt } from '../../jobs/finish/finish.ts';
import { OutcomeWriter, type OutcomeWriterOptions } from './outcome-writer.ts';

// Outcomes of lanes bring the next jobs: while one waits for its commit and one for the process to run what
// it took, a third keeps Postgres busy. Without lanes claims do that.
const maxLaneWriters = 3;
const maxFreeWriters = 2;
// While the first has less than this to write, another would only make small transactions of one.
const pendingPerWriter = 100;

export class OutcomeWriterPool<T extends FinishedAttempt> {
  readonly #first: OutcomeWriter<T>;
  readonly #all: OutcomeWriter<T>[];
  readonly #byLease = new Map<string, OutcomeWriter<T>>();

  constructor(options: OutcomeWriterOptions<T>) {
    this.#first = new OutcomeWriter(options);
    this.#all = [this.#first];
    while (this.#all.length < maxLaneWriters) this.#all.push(new OutcomeWriter(options));
  }

  /** How many outcomes wait for the next write. */
  get pending(): number {
    return this.#all.reduce((sum, settler) => sum + settler.pending, 0);
  }

  add(item: T, leaseEnded: boolean): void {
    const settler =
      this.#byLease.get(item.leaseId) ?? this.#choose(item.targetId === null ? maxFreeWriters : maxLaneWriters);
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

  #choose(most: number): OutcomeWriter<T> {
    if (this.#first.load < pendingPerWriter) return this.#first;
    return this.#all.slice(0, most).reduce((least, settler) => (settler.load < least.load ? settler : least));
  }
}
