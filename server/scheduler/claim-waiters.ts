// Claims of remote workers that wait for work. Waiting costs no query: a wake-up (a submit in this process, a
// notification) or one shared slow poll tries the waiting claims of a queue in turn. Of claims with the same criteria,
// only the first is tried, because the others would find nothing either.
import type { Logger } from '../kernel/logger.ts';
import { Quota, type QuotaLimits } from '../kernel/quota.ts';
import { EarliestTimer, Interval, type Service } from '../kernel/service.ts';

// Tokens of a fast limit are given out together.
const minLimitPauseMs = 20;

export interface WaitingClaim<T> {
  /** Tenant schema. */
  schema: string;
  keyId: string;
  queue: string;
  /** Equal for claims that match the same jobs. */
  criteria: string;
  waitMs: number;
  /** Aborted when the client disconnects. */
  signal: AbortSignal;
  attempt(): Promise<T | undefined>;
}

interface Waiter {
  criteria: string;
  /** An attempt is in flight. The jobs that it claims must not be lost to a timeout. */
  busy: boolean;
  over: boolean;
  attempt(): Promise<unknown>;
  end(value: unknown): void;
  timeOut(): void;
  fail(error: unknown): void;
}

interface Group {
  schema: string;
  waiters: Set<Waiter>;
  trying: boolean;
  again: boolean;
}

export class ClaimWaiters implements Service {
  readonly name = 'claim-waiters';
  #interval: Interval;
  #pollMs: number;
  #groups = new Map<string, Group>();
  /** Timers for tokens that waiting claims need. */
  #timers = new Map<string, EarliestTimer>();
  /** Wake-ups per tenant: a claim that found nothing tries again if there was one in between. */
  #wakes = new Map<string, number>();
  #stopped = false;
  #quota: Quota;

  constructor(pollMs: number, logger: Logger, limits: QuotaLimits = { total: Number.POSITIVE_INFINITY }) {
    this.#quota = new Quota('waiting claims', limits);
    this.#pollMs = pollMs;
    const period = () => (this.#groups.size > 0 ? pollMs : Number.POSITIVE_INFINITY);
    this.#interval = new Interval(this.name, period, async () => this.#pollAll(), logger);
  }

  async start(): Promise<void> {
    this.#stopped = false;
    await this.#interval.start();
  }

  /** Ends every waiting claim without a job, so that the HTTP server can stop. */
  async stop(): Promise<void> {
    this.#stopped = true;
    await this.#interval.stop();
    for (const timer of this.#timers.values()) timer.stop();
    this.#timers.clear();
    for (const group of this.#groups.values()) for (const waiter of group.waiters) waiter.timeOut();
  }

  get size(): number {
    return this.#quota.used;
  }

  /** There may be work for remote workers of this tenant; without a queue, in any of its queues. */
  wake(schema: string, queue?: string): void {
    this.#wakes.set(schema, this.#wakesOf(schema) + 1);
    for (const [key, group] of this.#groups) {
      if (queue === undefined ? group.schema === schema : key === keyOf(schema, queue)) void this.#tryAll(group);
    }
  }

  /** A limited job may be claimed in `ms`. */
  wakeIn(schema: string, queue: string, ms: number): void {
    if (this.#stopped) return;
    const key = keyOf(schema, queue);
    const onTime = () => {
      this.#timers.delete(key);
      const group = this.#groups.get(key);
      if (group !== undefined) void this.#tryAll(group);
    };
    const timer = this.#timers.get(key) ?? new EarliestTimer(onTime);
    this.#timers.set(key, timer);
    timer.in(Math.max(minLimitPauseMs, ms));
  }

  /** Returns the result of the first successful attempt; undefined after `waitMs`. */
  async claim<T>(claim: WaitingClaim<T>): Promise<T | undefined> {
    for (;;) {
      const wakes = this.#wakesOf(claim.schema);
      const got = await claim.attempt();
      if (got !== undefined || claim.waitMs <= 0 || this.#stopped || claim.signal.aborted) return got;
      if (wakes === this.#wakesOf(claim.schema)) return this.#wait(claim);
    }
  }

  async #wait<T>(claim: WaitingClaim<T>): Promise<T | undefined> {
    const leaveQuota = this.#quota.enter({ tenantId: claim.schema, keyId: claim.keyId });
    const group = this.#groupOf(claim.schema, claim.queue);
    return new Promise((resolve, reject) => {
      const leave = () => {
        leaveQuota();
        clearTimeout(timer);
        claim.signal.removeEventListener('abort', waiter.timeOut);
        group.waiters.delete(waiter);
        if (group.waiters.size === 0) this.#groups.delete(keyOf(claim.schema, claim.queue));
      };
      const waiter: Waiter = {
        criteria: claim.criteria,
        busy: false,
        over: false,
        attempt: claim.attempt,
        timeOut: () => {
          waiter.over = true;
          if (!waiter.busy) waiter.end(undefined);
        },
        end: (value) => {
          leave();
          resolve(value as T | undefined);
        },
        fail: (error) => {
          leave();
          reject(error);
        },
      };
      const timer = setTimeout(waiter.timeOut, claim.waitMs);
      claim.signal.addEventListener('abort', waiter.timeOut);
      group.waiters.add(waiter);
      this.#interval.within(this.#pollMs);
    });
  }

  async #tryAll(group: Group): Promise<void> {
    group.again = true;
    if (group.trying) return;
    group.trying = true;
    while (group.again) {
      group.again = false;
      const empty = new Set<string>();
      for (const waiter of group.waiters) {
        if (!empty.has(waiter.criteria)) await tryOne(waiter, empty);
      }
    }
    group.trying = false;
  }

  #pollAll(): void {
    for (const group of this.#groups.values()) void this.#tryAll(group);
  }

  #groupOf(schema: string, queue: string): Group {
    const key = keyOf(schema, queue);
    const group = this.#groups.get(key) ?? { schema, waiters: new Set(), trying: false, again: false };
    this.#groups.set(key, group);
    return group;
  }

  #wakesOf(schema: string): number {
    return this.#wakes.get(schema) ?? 0;
  }
}

async function tryOne(waiter: Waiter, empty: Set<string>): Promise<void> {
  waiter.busy = true;
  try {
    const got = await waiter.attempt();
    waiter.busy = false;
    if (got === undefined) empty.add(waiter.criteria);
    if (got !== undefined || waiter.over) waiter.end(got);
  } catch (error) {
    waiter.fail(error);
  }
}

function keyOf(schema: string, queue: string): string {
  return `${schema}\n${queue}`;
}
