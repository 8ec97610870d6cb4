// Visits tenants again and again: soon where there was something to do, ever more rarely where there
// was not. If somebody watches the tenants, those at rest are visited only when they are woken.
import pLimit from 'p-limit';
import { errorMessage } from '../kernel/errors.ts';
import { Interval } from '../kernel/interval.ts';
import type { Logger } from '../kernel/logger.ts';
import type { Service } from '../kernel/service.ts';
import type { TenantRegistry } from './registry.ts';
import type { Tenant } from './tenant.ts';

/** `more`: come back at once; `some`: something was done; `none`: nothing was there; `rest`: nor will there be by itself. */
export type TaskResult = 'more' | 'some' | 'none' | 'rest';

export interface PerTenantTaskOptions {
  name: string;
  registry: Pick<TenantRegistry, 'list'>;
  logger: Logger;
  runForTenant(tenant: Tenant, signal: AbortSignal): Promise<TaskResult>;
  /** Time between visits to a tenant where something happens. */
  busyMs: number;
  /** Longest time between visits to an idle one. */
  idleMs: number;
  /** Tenants visited at the same time. */
  concurrency: number;
  /** Somebody wakes a tenant whenever there is something to do: tenants at rest, and new ones, are left to that. */
  watched?: boolean;
  /** While this is true, visits rest far longer than they take: jobs come first. */
  underLoad?(): boolean;
}

// A visit is followed by this many times its own length of rest: three percent for each who follows.
const pauseFactor = 32;
const minPauseMs = 5000;

interface Plan {
  dueAt: number;
  /** Not before this, whatever wakes us. */
  notBefore: number;
  delayMs: number;
  failing: boolean;
}

export class PerTenantTask implements Service {
  readonly name: string;
  #options: PerTenantTaskOptions;
  #interval: Interval;
  #plans = new Map<string, Plan>();
  #woken = new Set<string>();
  #abort = new AbortController();
  #ranAt = Number.NEGATIVE_INFINITY;

  constructor(options: PerTenantTaskOptions) {
    this.name = options.name;
    this.#options = options;
    this.#interval = new Interval(
      options.name,
      () => this.#nextMs(),
      () => this.runOnce(),
      options.logger,
    );
  }

  async start(): Promise<void> {
    if (this.#abort.signal.aborted) this.#abort = new AbortController();
    await this.#interval.start();
  }

  /** No new visits; those under way come to their end. */
  async stop(): Promise<void> {
    this.#abort.abort();
    await this.#interval.stop();
  }

  /** Something happened at this tenant: a hint, it would be found without. */
  wake(slug: string): void {
    this.#woken.add(slug);
    this.#interval.within(Math.max(this.#options.busyMs / 4, this.#ranAt + this.#options.busyMs - performance.now()));
  }

  /** Do not wait for the next round. */
  runNow(): void {
    this.#interval.wake();
  }

  /** Visits all tenants that are due, or simply all. */
  async runOnce(everybody = false): Promise<void> {
    const limit = pLimit(this.#options.concurrency);
    const now = performance.now();
    const tenants = this.#options.registry.list().filter(hasSchema);
    this.#ranAt = now;
    const { watched = false } = this.#options;
    const underLoad = this.#options.underLoad?.() === true;
    const due = tenants.filter(({ id, slug }) => {
      const plan = this.#plans.get(id);
      if (everybody) return true;
      if (plan === undefined) return !underLoad && (!watched || this.#woken.has(slug));
      return plan.dueAt <= now || (this.#woken.has(slug) && plan.notBefore <= now);
    });
    this.#woken.clear();
    this.#forgetAllBut(tenants);
    await Promise.all(due.map((tenant) => limit(() => this.#runFor(tenant))));
  }

  async #runFor(tenant: Tenant): Promise<void> {
    const plan = this.#plans.get(tenant.id) ?? {
      dueAt: 0,
      notBefore: 0,
      delayMs: this.#options.busyMs,
      failing: false,
    };
    this.#plans.set(tenant.id, plan);
    if (this.#abort.signal.aborted) return;
    let result: TaskResult = 'none';
    const began = performance.now();
    try {
      result = await this.#options.runForTenant(tenant, this.#abort.signal);
      plan.failing = false;
    } catch (error) {
      // Once per outage of the tenant's database, not once per visit.
      const fields = { task: this.name, tenant: tenant.slug, reason: errorMessage(error) };
      if (!plan.failing) this.#options.logger.warn({ ...fields, err: error }, 'visit to a tenant failed');
      plan.failing = true;
    }
    const { busyMs, idleMs } = this.#options;
    const ended = performance.now();
    plan.notBefore =
      this.#options.underLoad?.() === true ? ended + Math.max(minPauseMs, pauseFactor * (ended - began)) : 0;
    if (result === 'rest' && this.#options.watched) {
      plan.delayMs = busyMs;
      // A wake-up during a rest under load is not kept.
      plan.dueAt = plan.notBefore > 0 ? plan.notBefore : Number.POSITIVE_INFINITY;
      return;
    }
    const nothing = result === 'none' || result === 'rest';
    plan.delayMs = nothing ? Math.min(plan.delayMs * 2, idleMs) : result === 'some' ? busyMs : 0;
    plan.dueAt = Math.max(plan.notBefore, ended + plan.delayMs * (0.7 + Math.random() * 0.3));
    if (plan.delayMs === 0) {
      plan.delayMs = busyMs;
      if (plan.notBefore === 0) this.#interval.wake();
    }
  }

  /** Until the next visit that is due; tenants without a plan are looked for all the time, unless they are watched. */
  #nextMs(): number {
    const { busyMs, watched } = this.#options;
    if (!watched || this.#woken.size > 0) return busyMs;
    let dueAt = Number.POSITIVE_INFINITY;
    for (const plan of this.#plans.values()) dueAt = Math.min(dueAt, plan.dueAt);
    return Math.max(busyMs, dueAt - performance.now());
  }

  #forgetAllBut(tenants: readonly Tenant[]): void {
    if (this.#plans.size <= tenants.length) return;
    const known = new Set(tenants.map((tenant) => tenant.id));
    for (const id of this.#plans.keys()) if (!known.has(id)) this.#plans.delete(id);
  }
}

/** A suspended tenant starts nothing, but what happened there is still told, counted and cleaned up. */
function hasSchema(tenant: Tenant): boolean {
  return tenant.status === 'ACTIVE' || tenant.status === 'SUSPENDED';
}
