// A task that runs per tenant: for tenants that were woken, and again while there is work. A tenant without work is
// skipped until the tenant poller, or a commit in this process, wakes it.
import pLimit from 'p-limit';
import { errorMessage } from '../kernel/errors.ts';
import type { Logger } from '../kernel/logger.ts';
import { Interval, type Service } from '../kernel/service.ts';
import type { TenantRegistry } from '../tenants/registry.ts';
import type { Tenant } from '../tenants/tenant.ts';

/**
 * `more`: run again at once; `some`: work was done, run again after `busyMs`; `none`: nothing was done, but there may
 * be work without a wake-up; `busy`: another daemon does the work; `idle`: do not run again until woken.
 */
export type TaskResult = 'more' | 'some' | 'none' | 'busy' | 'idle';

interface TaskRun {
  signal: AbortSignal;
  /** The tenant was woken since its last run. */
  woken: boolean;
}

export interface PerTenantTaskOptions {
  name: string;
  registry: Pick<TenantRegistry, 'list'>;
  logger: Logger;
  runForTenant(tenant: Tenant, run: TaskRun): Promise<TaskResult>;
  /** The time between two runs for a tenant that has work. */
  busyMs: number;
  /** The longest time between two runs for a tenant whose last run did nothing. */
  idleMs: number;
  /** The number of tenants handled at the same time. */
  concurrency: number;
  /** While this is true, the task pauses for longer than it runs, unless it is far behind, because jobs come first. */
  underLoad?(): boolean;
  /** Called by `stop` after the last run has ended. */
  onStop?(): Promise<void>;
}

// Under load, each run is followed by a pause of this many times its length, so that a task takes about three percent.
// The pause shrinks with the time since the last run without remaining work, and a task that is this far behind does
// not pause.
const pauseFactor = 32;
const minPauseMs = 5000;
const maxBehindMs = 30_000;
// Daemons that find another at work return less and less often: one does the work, the others only check.
const maxBusyMs = 5000;

interface TenantState {
  dueAt: number;
  /** No run before this time, not even after a wake-up. */
  notBefore: number;
  delayMs: number;
  /** The start of the first run that left work; undefined if the last one left none. */
  behindSince: number | undefined;
  failing: boolean;
}

export class PerTenantTask implements Service {
  readonly name: string;
  #options: PerTenantTaskOptions;
  #interval: Interval;
  #states = new Map<string, TenantState>();
  #woken = new Set<string>();
  #abort = new AbortController();
  #ranAt = Number.NEGATIVE_INFINITY;

  constructor(options: PerTenantTaskOptions) {
    this.name = options.name;
    this.#options = options;
    this.#interval = new Interval(
      options.name,
      () => this.#nextRunMs(),
      () => this.runOnce(),
      options.logger,
    );
  }

  async start(): Promise<void> {
    if (this.#abort.signal.aborted) this.#abort = new AbortController();
    await this.#interval.start();
  }

  /** Starts no new runs and awaits those in progress. */
  async stop(): Promise<void> {
    this.#abort.abort();
    await this.#interval.stop();
    await this.#options.onStop?.();
  }

  /** There may be work for this tenant. Cheap enough for every commit, because wake-ups are collected for `busyMs`. */
  wake(slug: string): void {
    this.#woken.add(slug);
    this.#interval.within(Math.max(this.#options.busyMs / 4, this.#ranAt + this.#options.busyMs - performance.now()));
  }

  /** Like `wake`, without the delay. */
  runNow(slug: string): void {
    this.#woken.add(slug);
    this.#interval.wake();
  }

  /** Runs for every tenant that is due or was woken. */
  async runOnce(): Promise<void> {
    const limit = pLimit(this.#options.concurrency);
    const now = performance.now();
    const tenants = this.#options.registry.list().filter(hasSchema);
    const woken = this.#woken;
    this.#woken = new Set();
    this.#ranAt = now;
    const underLoad = this.#options.underLoad?.() === true;
    const due = tenants.filter(({ id, slug }) => {
      const state = this.#states.get(id);
      if (state !== undefined) return state.dueAt <= now || (woken.has(slug) && state.notBefore <= now);
      if (!woken.has(slug)) return false;
      if (underLoad) this.#states.set(id, this.#newState(now + minPauseMs));
      return !underLoad;
    });
    this.#forgetAllBut(tenants);
    await Promise.all(due.map((tenant) => limit(() => this.#run(tenant, woken.has(tenant.slug)))));
  }

  async #run(tenant: Tenant, woken: boolean): Promise<void> {
    const { runForTenant, logger } = this.#options;
    const state = this.#states.get(tenant.id) ?? this.#newState(0);
    this.#states.set(tenant.id, state);
    const { signal } = this.#abort;
    if (signal.aborted) return;
    let result: TaskResult = 'none';
    const startedAt = performance.now();
    try {
      result = await runForTenant(tenant, { signal, woken });
      state.failing = false;
    } catch (error) {
      // Logged once per outage of the tenant's database, not once per run.
      const fields = { task: this.name, tenant: tenant.slug, reason: errorMessage(error) };
      if (!state.failing) logger.warn({ ...fields, err: error }, 'periodic task failed for a tenant');
      state.failing = true;
    }
    this.#plan(state, result, performance.now() - startedAt);
  }

  #newState(dueAt: number): TenantState {
    return { dueAt, notBefore: dueAt, delayMs: this.#options.busyMs, behindSince: undefined, failing: false };
  }

  /** Sets the time of the tenant's next run. */
  #plan(state: TenantState, result: TaskResult, tookMs: number): void {
    const { busyMs, idleMs } = this.#options;
    const now = performance.now();
    state.behindSince = result === 'more' ? (state.behindSince ?? now - tookMs) : undefined;
    state.notBefore = this.#notBefore(now, tookMs, now - (state.behindSince ?? now));
    if (result === 'busy') {
      state.delayMs = Math.min(state.delayMs * 2, Math.max(busyMs, maxBusyMs));
      state.notBefore = Math.max(state.notBefore, now + state.delayMs * (0.7 + Math.random() * 0.3));
      state.dueAt = state.notBefore;
      return;
    }
    if (result === 'idle') {
      state.delayMs = busyMs;
      // A wake-up during a pause under load is dropped, so that one run follows the pause.
      state.dueAt = state.notBefore > 0 ? state.notBefore : Number.POSITIVE_INFINITY;
      return;
    }
    if (result === 'more') {
      state.delayMs = busyMs;
      state.dueAt = Math.max(state.notBefore, now);
      if (state.notBefore === 0) this.#interval.wake();
      return;
    }
    state.delayMs = result === 'some' ? busyMs : Math.min(state.delayMs * 2, idleMs);
    state.dueAt = Math.max(state.notBefore, now + state.delayMs * (0.7 + Math.random() * 0.3));
  }

  /** 0 means at any time. */
  #notBefore(now: number, tookMs: number, behindMs: number): number {
    const left = 1 - behindMs / maxBehindMs;
    if (left <= 0 || this.#options.underLoad?.() !== true) return 0;
    return now + left * Math.max(minPauseMs, pauseFactor * tookMs);
  }

  #nextRunMs(): number {
    const { busyMs } = this.#options;
    if (this.#woken.size > 0) return busyMs;
    let dueAt = Number.POSITIVE_INFINITY;
    for (const state of this.#states.values()) dueAt = Math.min(dueAt, state.dueAt);
    return Math.max(busyMs, dueAt - performance.now());
  }

  #forgetAllBut(tenants: readonly Tenant[]): void {
    if (this.#states.size <= tenants.length) return;
    const known = new Set(tenants.map((tenant) => tenant.id));
    for (const id of this.#states.keys()) if (!known.has(id)) this.#states.delete(id);
  }
}

/** A suspended tenant starts no jobs, but its events are still sealed, counted, delivered and pruned. */
function hasSchema(tenant: Tenant): boolean {
  return tenant.status === 'ACTIVE' || tenant.status === 'SUSPENDED';
}

/** By name. */
export type PerTenantTasks = Record<
  'statistics' | 'webhooks' | 'seals' | 'operations' | 'received' | 'retention' | 'listeners' | 'dependencies',
  PerTenantTask
>;
