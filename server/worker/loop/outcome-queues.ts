// Outcomes that wait for their write, in queues side by side, and the batches in which they are written.
import type { FinishedAttempt } from '../../jobs/finish/outcome.ts';
import { JsonText } from '../../kernel/json.ts';

export interface OutcomeBatch<T> {
  items: T[];
  /** Leases of which the last outcome is in the batch. The statement decides whether they end. */
  endedLeases: string[];
}

// Outcomes of lanes bring the next jobs: while one write waits for its commit and one for the process to start what it
// claimed, a third keeps Postgres busy. Without lanes the claims do that.
const maxLaneQueues = 3;
const maxFreeQueues = 2;
// Below this load of the first queue, another would only split one transaction into small ones.
const loadPerQueue = 100;
// Beyond this a statement grows faster than it gains.
const maxBatch = 2000;
// A larger statement would be made in a step that delays others.
const maxBatchChars = 262_144;
const longRun = 100;

/**
 * Outcomes that wait for their write. Queues side by side, for when one connection is not enough; all outcomes of a
 * lease go through the same one, so that the outcome that ends the lease cannot overtake the others.
 * @internal Exported for tests.
 */
export class OutcomeQueues<T extends FinishedAttempt> {
  readonly #first = new OutcomeQueue<T>();
  readonly #all = [this.#first];
  readonly #byLease = new WeakMap<object, OutcomeQueue<T>>();
  #onIdle: (() => void)[] = [];

  constructor() {
    while (this.#all.length < maxLaneQueues) this.#all.push(new OutcomeQueue<T>());
  }

  /** How many outcomes wait for their write. */
  get pending(): number {
    return this.#all.reduce((sum, queue) => sum + queue.pending, 0);
  }

  /** `lease` stands for all outcomes of one lease. */
  add(item: T, lease: object, isLast: boolean): void {
    let queue = this.#byLease.get(lease);
    if (queue === undefined) {
      queue = this.#choose(item.targetId === null ? maxFreeQueues : maxLaneQueues);
      this.#byLease.set(lease, queue);
    }
    queue.add(item, isLast);
  }

  /** The queues without a writer. The caller has to write each, with `next`, until there is no batch left. */
  takeUnwritten(): OutcomeQueue<T>[] {
    const queues = this.#all.filter((queue) => queue.pending > 0 && !queue.hasWriter);
    for (const queue of queues) queue.hasWriter = true;
    return queues;
  }

  /** The next batch of a queue, once the one before it is written; undefined when there is none. */
  next(queue: OutcomeQueue<T>): OutcomeBatch<T> | undefined {
    const batch = queue.take();
    queue.hasWriter = batch !== undefined;
    if (batch === undefined && this.#isIdle) for (const resolve of this.#onIdle.splice(0)) resolve();
    return batch;
  }

  /** Resolves when nothing waits and nothing is being written. */
  async idle(): Promise<void> {
    // What comes along with the last outcome of one queue may be requeued through another.
    while (!this.#isIdle) await new Promise<void>((resolve) => this.#onIdle.push(resolve));
  }

  get #isIdle(): boolean {
    return this.#all.every((queue) => queue.load === 0);
  }

  #choose(max: number): OutcomeQueue<T> {
    if (this.#first.load < loadPerQueue) return this.#first;
    return this.#all.slice(0, max).reduce((shortest, queue) => (queue.load < shortest.load ? queue : shortest));
  }
}

export class OutcomeQueue<T extends FinishedAttempt> {
  #waiting: T[] = [];
  readonly #lastOfLease = new Set<T>();
  #writing = 0;
  /** One batch at a time: the outcome that ends a lease must not overtake the others of that lease. */
  hasWriter = false;

  get pending(): number {
    return this.#waiting.length;
  }

  get load(): number {
    return this.#waiting.length + this.#writing;
  }

  add(item: T, isLast: boolean): void {
    this.#waiting.push(item);
    if (isLast) this.#lastOfLease.add(item);
  }

  take(): OutcomeBatch<T> | undefined {
    const items = this.#waiting.splice(0, this.#batchSize());
    this.#writing = items.length;
    if (items.length === 0) return undefined;
    const last = items.filter((item) => this.#lastOfLease.delete(item));
    return { items, endedLeases: last.map((item) => item.leaseId) };
  }

  /** A long run of one lease is written by itself: one fence for all is cheaper than one for each. */
  #batchSize(): number {
    const waiting = this.#waiting;
    const max = Math.min(waiting.length, maxBatch, this.#countWithinChars());
    const leaseId = waiting[0]?.leaseId;
    let run = 1;
    while (run < max && waiting[run]?.leaseId === leaseId) run += 1;
    return run >= longRun ? run : max;
  }

  /** At least one. Short results are not counted. */
  #countWithinChars(): number {
    let chars = 0;
    const waiting = this.#waiting;
    for (let n = 0; n < waiting.length && n < maxBatch; n++) {
      const outcome = waiting[n]?.outcome;
      if (outcome?.kind !== 'complete' && outcome?.kind !== 'completePartly') continue;
      if (outcome.result instanceof JsonText) chars += outcome.result.text.length;
      if (chars > maxBatchChars && n > 0) return n;
    }
    return maxBatch;
  }
}
