// Attempts that were claimed ahead of their slots, so that short jobs share statements and commits. Their leases are
// renewed like all others. An attempt that does not start in time is requeued: soon if other daemons could run it.
import { priorityRank } from '../../jobs/model/job.ts';
import type { Attempt } from '../attempt/attempt.ts';

// The limits of claiming ahead, in time and in number.
const aheadMs = 100;
const maxAhead = 4500;
const requeueAfterMs = 1000;
// A daemon without peers would claim the same jobs again. On a machine that is too busy that made it slower still.
const requeueAloneAfterMs = 10_000;

export class ReadyQueue {
  readonly #hasPeers: () => boolean;
  #attempts: Attempt[] = [];
  #timer: NodeJS.Timeout | undefined;
  /** Moving average of the duration of attempts. Infinity until the first one ends. */
  #averageMs = Number.POSITIVE_INFINITY;
  /** What waits has as many bytes as one claim may have. */
  #isHeavy = false;

  constructor({ hasPeers }: { hasPeers(): boolean }) {
    this.#hasPeers = hasPeers;
  }

  get size(): number {
    return this.#attempts.length;
  }

  /**
   * How many jobs `slots` slots will start within `aheadMs`, beyond those that are free. None while large payloads
   * wait: thousands of them would fill the memory.
   */
  ahead(slots: number): number {
    if (this.#averageMs > aheadMs || (this.#isHeavy && this.size > 0)) return 0;
    return Math.min(maxAhead, Math.floor((slots * aheadMs) / Math.max(1, this.#averageMs)));
  }

  /** Records the duration of an attempt. */
  observe(ms: number): void {
    this.#averageMs = Number.isFinite(this.#averageMs) ? this.#averageMs * 0.98 + ms * 0.02 : ms;
  }

  /** `isCut`: their claim left out others, because of the bytes of all. */
  add(attempts: readonly Attempt[], isCut = false): void {
    const waiting = this.#attempts.length > 0;
    this.#isHeavy = isCut || (waiting && this.#isHeavy);
    for (const attempt of attempts) this.#attempts.push(attempt);
    // An urgent job starts before jobs that were claimed earlier.
    if (waiting) this.#attempts.sort((a, b) => priorityRank(a.job.priority) - priorityRank(b.job.priority));
  }

  /** Removes and returns the next attempts to start. The others are requeued if they wait too long. */
  take(count: number): Attempt[] {
    const taken: Attempt[] = [];
    let n = 0;
    for (; n < this.#attempts.length && taken.length < count; n++) {
      const attempt = this.#attempts[n] as Attempt;
      // An attempt that was stopped while it waited has ended and must not take a slot.
      if (!attempt.finished) taken.push(attempt);
    }
    this.#attempts.splice(0, n);
    if (this.#attempts.length > 0) this.#timer ??= setTimeout(() => this.#requeueOld(), requeueAfterMs);
    return taken;
  }

  requeueAll(reason: string): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    for (const attempt of this.#attempts.splice(0)) attempt.requeue(reason);
  }

  /** Slots did not become free as expected. */
  #requeueOld(): void {
    this.#timer = undefined;
    const tooOld = performance.now() - (this.#hasPeers() ? requeueAfterMs / 2 : requeueAloneAfterMs);
    const old = this.#attempts.filter((attempt) => attempt.batch.claimedAt < tooOld);
    this.#attempts = this.#attempts.filter((attempt) => attempt.batch.claimedAt >= tooOld);
    for (const attempt of old) attempt.requeue('not started in time');
    // The running jobs are not short. Claiming ahead again would claim and requeue the same jobs.
    if (old.length > 0) this.#averageMs = Number.POSITIVE_INFINITY;
    if (this.#attempts.length > 0) this.#timer = setTimeout(() => this.#requeueOld(), requeueAfterMs / 2);
  }
}
