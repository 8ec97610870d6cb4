// Jobs that were claimed ahead of their slots, so that quick ones share statements and commits. They
// are leased and kept alive like any other; what has not begun in time goes back to the others.
import { priorityRank } from '../../jobs/model/job.ts';
import type { Attempt } from '../attempt/attempt.ts';

// How much work may lie ready, in time and in number.
const aheadMs = 100;
const maxAhead = 4500;
const requeueAfterMs = 1000;

export class ReadyQueue {
  #attempts: Attempt[] = [];
  #timer: NodeJS.Timeout | undefined;
  /** How long an attempt takes of late; unknown means long. */
  #averageMs = Number.POSITIVE_INFINITY;

  get size(): number {
    return this.#attempts.length;
  }

  /** How many jobs `slots` slots will begin within the next moment, beyond those that are free. */
  ahead(slots: number): number {
    if (this.#averageMs > aheadMs) return 0;
    return Math.min(maxAhead, Math.floor((slots * aheadMs) / Math.max(1, this.#averageMs)));
  }

  /** An attempt took so long. */
  observe(ms: number): void {
    this.#averageMs = Number.isFinite(this.#averageMs) ? this.#averageMs * 0.98 + ms * 0.02 : ms;
  }

  add(attempts: readonly Attempt[]): void {
    const waiting = this.#attempts.length > 0;
    for (const attempt of attempts) this.#attempts.push(attempt);
    // An urgent job does not wait behind what was claimed before it.
    if (waiting) this.#attempts.sort((a, b) => priorityRank(a.job.priority) - priorityRank(b.job.priority));
  }

  /** The next ones to begin. What stays is returned if it has to wait for long. */
  take(count: number): Attempt[] {
    // One that was stopped while it waited has ended already and must not take a slot.
    this.#attempts = this.#attempts.filter((attempt) => !attempt.finished);
    const taken = this.#attempts.splice(0, count);
    if (this.#attempts.length > 0) this.#timer ??= setTimeout(() => this.#requeueOld(), requeueAfterMs);
    return taken;
  }

  requeueAll(reason: string): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    for (const attempt of this.#attempts.splice(0)) attempt.requeue(reason);
  }

  /** Slots did not come free as expected: others may run these jobs. */
  #requeueOld(): void {
    this.#timer = undefined;
    const tooOld = performance.now() - requeueAfterMs / 2;
    const old = this.#attempts.filter((attempt) => attempt.claimedAt < tooOld);
    this.#attempts = this.#attempts.filter((attempt) => attempt.claimedAt >= tooOld);
    for (const attempt of old) attempt.requeue('not started in time');
    // What runs now is not quick: claiming ahead again would only pass the same jobs to and fro.
    if (old.length > 0) this.#averageMs = Number.POSITIVE_INFINITY;
    if (this.#attempts.length > 0) this.#timer = setTimeout(() => this.#requeueOld(), requeueAfterMs / 2);
  }
}
