// Limits how many jobs of a tenant this daemon holds, running or ready, while other daemons could run them: as many as
// it starts within a moment. The number of slots is no measure for that: handlers that compute, and daemons that share
// a processor, start far fewer jobs than they have slots. Without other daemons there is no limit.
import { type EventLoopUtilization, performance } from 'node:perf_hooks';

interface ClaimLimitOptions {
  /** True if other daemons could run the jobs. */
  hasPeers(): boolean;
  /** Replaced in tests. */
  now?(): number;
  utilization?(since: EventLoopUtilization | undefined): EventLoopUtilization;
}

// The maximum time between a claim and the start of its jobs.
const maxWaitMs = 150;
// Below this wait the limit may grow.
const shortMs = 75;
// The limit before anything is known of the jobs.
const firstLimit = 8;
const maxLimit = 6000;
// Above this utilization the event loop limits how many jobs end, not the I/O that they wait for.
const busyShare = 0.8;
const minSampleMs = 25;
// Jobs that compute have begun to do so by then.
const minGrowthMs = 5;
const notifyEveryMs = 100;

export class ClaimLimit {
  readonly #options: ClaimLimitOptions;
  #limit = firstLimit;
  #notifiedAt = Number.NEGATIVE_INFINITY;
  #sampledAt: number;
  #sample: EventLoopUtilization;
  // Since the last sample: the longest wait before a start, the number of ended jobs, and the longest duration.
  #waitMs = 0;
  #ended = 0;
  #durationMs = 0;

  constructor(options: ClaimLimitOptions) {
    this.#options = options;
    this.#sampledAt = this.#now();
    this.#sample = this.#utilization(undefined);
  }

  /** An attempt started `waitMs` after its claim. */
  started(waitMs: number): void {
    if (waitMs > this.#waitMs) this.#waitMs = waitMs;
  }

  /** An attempt ended `durationMs` after its start. */
  ended(durationMs: number): void {
    this.#ended += 1;
    if (durationMs > this.#durationMs) this.#durationMs = durationMs;
  }

  /** Returns how many jobs may be held; `running` is the number of held jobs that have started. */
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
    // At most halved at a time, because a sample may cover a moment in which the process was not scheduled.
    if (this.#waitMs > maxWaitMs) return Math.floor(limit * Math.max(0.5, maxWaitMs / this.#waitMs));
    if (this.#waitMs > shortMs) return limit;
    // The held jobs have ended, or wait for something other than this event loop, so more can be held.
    const hasEnded = this.#ended >= limit && (!isBusy || this.#durationMs < shortMs);
    const isWaiting = !isBusy && running >= limit / 2 && elapsedMs >= minGrowthMs;
    return hasEnded || isWaiting ? limit * 2 : limit;
  }

  /** Returns true at most every `notifyEveryMs`, for notifications of work that is left to other daemons. */
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
