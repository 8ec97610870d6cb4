// How many jobs of a tenant this daemon may hold, running or ready, while other daemons could run them: as many as it
// starts within a moment. Slots do not say that: handlers that compute, and daemons that share a processor, start far
// fewer than they have slots for. Without other daemons there is no limit.
import { type EventLoopUtilization, performance } from 'node:perf_hooks';

export interface ClaimLimitOptions {
  /** Whether other daemons could run the jobs. */
  hasPeers(): boolean;
  /** Tests pass their own. */
  now?(): number;
  utilization?(since: EventLoopUtilization | undefined): EventLoopUtilization;
}

// How long a claimed job may wait for its start.
const maxWaitMs = 150;
// Below this the limit may grow.
const shortMs = 75;
// Before anything is known of the jobs.
const firstLimit = 8;
const maxLimit = 6000;
// Above this share of its time the event loop decides how many jobs end, not what they wait for.
const busyShare = 0.8;
const minSampleMs = 25;
// By then jobs that compute have begun to.
const minGrowthMs = 5;
const notifyEveryMs = 100;

export class ClaimLimit {
  readonly #options: ClaimLimitOptions;
  #limit = firstLimit;
  #notifiedAt = Number.NEGATIVE_INFINITY;
  #sampledAt: number;
  #sample: EventLoopUtilization;
  // Since the last sample: the longest wait of a job that started, how many ended, and the longest time one took.
  #waitMs = 0;
  #ended = 0;
  #durationMs = 0;

  constructor(options: ClaimLimitOptions) {
    this.#options = options;
    this.#sampledAt = this.#now();
    this.#sample = this.#utilization(undefined);
  }

  /** An attempt has started, this long after its claim. */
  started(waitMs: number): void {
    if (waitMs > this.#waitMs) this.#waitMs = waitMs;
  }

  /** An attempt has ended, this long after its start. */
  ended(durationMs: number): void {
    this.#ended += 1;
    if (durationMs > this.#durationMs) this.#durationMs = durationMs;
  }

  /** How many jobs may be held in all; `running` is how many of those that are held have started. */
  get(running: number): number {
    if (!this.#options.hasPeers()) return Number.POSITIVE_INFINITY;
    const elapsedMs = this.#now() - this.#sampledAt;
    const isBusy = this.#utilization(this.#sample).utilization > busyShare;
    const limit = this.#next(elapsedMs, isBusy, running);
    if (limit === this.#limit && elapsedMs < minSampleMs) return limit;
    this.#limit = Math.max(1, Math.min(maxLimit, limit));
    this.#waitMs = 0;
    this.#ended = 0;
    this.#durationMs = 0;
    this.#sampledAt = this.#now();
    this.#sample = this.#utilization(undefined);
    return this.#limit;
  }

  #next(elapsedMs: number, isBusy: boolean, running: number): number {
    const limit = this.#limit;
    // At most halved at a time: a single sample may be of a moment in which the process was not scheduled.
    if (this.#waitMs > maxWaitMs) return Math.floor(limit * Math.max(0.5, maxWaitMs / this.#waitMs));
    if (this.#waitMs > shortMs) return limit;
    // All that may be held has ended, or waits for something else than this event loop: more can be held beside it.
    const hasEnded = this.#ended >= limit && (!isBusy || this.#durationMs < shortMs);
    const isWaiting = !isBusy && running >= limit / 2 && elapsedMs >= minGrowthMs;
    return hasEnded || isWaiting ? limit * 2 : limit;
  }

  /** True at most every `notifyEveryMs`: other daemons are to be notified of work that is left to them. */
  mayNotify(): boolean {
    if (this.#now() < this.#notifiedAt + notifyEveryMs) return false;
    this.#notifiedAt = this.#now();
    return true;
  }

  #now(): number {
    return this.#options.now?.() ?? performance.now();
  }

  #utilization(since: EventLoopUtilization | undefined): EventLoopUtilization {
    if (this.#options.utilization !== undefined) return this.#options.utilization(since);
    return since === undefined ? performance.eventLoopUtilization() : performance.eventLoopUtilization(since);
  }
}
