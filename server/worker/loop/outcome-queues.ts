// Queues of outcomes that wait for their write, and the batches in which they are written.
import type { FinishedAttempt } from '../../jobs/finish/outcome.ts';
import { JsonText } from '../../kernel/json/json-text.ts';

export interface OutcomeBatch<T> {
  items: T[];
  /** Leases whose last outcome is in the batch. The statement decides whether they end. */
  endedLeases: string[];
}

// The writes of lanes claim the next jobs. While one write waits for its commit and the jobs of another are starting, a
// third keeps Postgres busy. Without lanes the claims do that.
const maxLaneQueues = 3;
const maxFreeQueues = 2;
// With fewer outcomes in the first queue, a second would only split one transaction into small ones.
const loadPerQueue = 100;
// A larger statement costs more than it saves.
const maxBatch = 2000;
// Building a larger statement would block the event loop for too long.
const maxBatchChars = 262_144;
const longRun = 100;
// Jobs that come one by one, several a millisecond, would each pay for a commit of their own. Nothing follows from the
// success of a job without a lane, so it is written this long after the write before it, with others.
const minGapMs = 8;
const enoughToWrite = 50;

/**
 * Parallel queues, for when one connection is not enough. All outcomes of a lease go through the same queue, so that
 * the outcome that ends the lease cannot overtake the others.
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

  /** The number of unwritten outcomes. */
  get pending(): number {
    return this.#all.reduce((sum, queue) => sum + queue.pending, 0);
  }

  /** `lease` identifies all outcomes of one lease. */
  add(item: T, lease: object, isLast: boolean): void {
    let queue = this.#byLease.get(lease);
    if (queue === undefined) {
      queue = this.#choose(item.targetId === null ? maxFreeQueues : maxLaneQueues);
      this.#byLease.set(lease, queue);
    }
    queue.add(item, isLast);
  }

  /** Returns the queues without a writer. The caller writes each one, with `next`, until it has no batch left. */
  takeUnwritten(): OutcomeQueue<T>[] {
    const queues = this.#all.filter((queue) => queue.pending > 0 && !queue.hasWriter);
    for (const queue of queues) queue.hasWriter = true;
    return queues;
  }

  /** Returns the next batch of a queue after the one before it was written; undefined if there is none. */
  next(queue: OutcomeQueue<T>): OutcomeBatch<T> | undefined {
    const batch = queue.take();
    queue.hasWriter = batch !== undefined;
    if (batch === undefined && this.#isIdle) for (const resolve of this.#onIdle.splice(0)) resolve();
    return batch;
  }

  /** Resolves when nothing waits and nothing is being written. */
  async idle(): Promise<void> {
    // The last write of one queue may add an outcome to another.
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
  #takenAt = Number.NEGATIVE_INFINITY;
  /** Writes one batch at a time, so that the outcome that ends a lease cannot overtake the others of that lease. */
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

  /** How long to wait for outcomes that can share the next write. The first after a pause does not wait. */
  waitMs(now: number): number {
    const left = this.#takenAt + minGapMs - now;
    if (left <= 0 || this.pending >= enoughToWrite) return 0;
    const canWait = this.#waiting.every(({ targetId, outcome }) => targetId === null && outcome.kind === 'complete');
    return canWait ? left : 0;
  }

  take(): OutcomeBatch<T> | undefined {
    this.#takenAt = performance.now();
    const items = this.#waiting.splice(0, this.#batchSize());
    this.#writing = items.length;
    if (items.length === 0) return undefined;
    const last = items.filter((item) => this.#lastOfLease.delete(item));
    return { items, endedLeases: last.map((item) => item.leaseId) };
  }

  /** A long run of one lease is written alone, because one fence for all is cheaper than one for each. */
  #batchSize(): number {
    const waiting = this.#waiting;
    const max = Math.min(waiting.length, maxBatch, this.#countWithinChars());
    const leaseId = waiting[0]?.leaseId;
    let run = 1;
    while (run < max && waiting[run]?.leaseId === leaseId) run += 1;
    return run >= longRun ? run : max;
  }

  /** Returns at least one. Short results are not counted. */
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
