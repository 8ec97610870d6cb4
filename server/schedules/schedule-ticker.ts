// Fires schedules at their time. The shared poll reports when each tenant's next firing is due, and a timer waits until
// then, so that a tenant without schedules costs nothing.
import type { Logger } from '../kernel/logger.ts';
import type { Service } from '../kernel/service.ts';
import type { TenantRegistry } from '../tenants/registry.ts';
import type { Tenant } from '../tenants/tenant.ts';
import { type Firing, fireDueSchedules } from './fire-schedules.ts';
import { nextFiringInMs } from './schedule.ts';

// A later firing gets no timer, because the poll runs every minute and reports it in time.
const maxTimerMs = 180_000;

export class ScheduleTicker implements Service {
  readonly name = 'schedules';
  readonly #firing: Firing;
  readonly #registry: TenantRegistry;
  readonly #logger: Logger;
  readonly #timers = new Map<string, { timer: NodeJS.Timeout; at: number }>();
  readonly #running = new Map<string, Promise<void>>();
  #stopped = true;

  constructor(options: Firing & { registry: TenantRegistry; logger: Logger }) {
    this.#registry = options.registry;
    this.#logger = options.logger;
    this.#firing = {
      ...options,
      onError: (tenant, scheduleId, error) =>
        this.#logger.error({ err: error, tenant: tenant.slug, scheduleId }, 'firing a schedule failed'),
    };
  }

  async start(): Promise<void> {
    this.#stopped = false;
  }

  async stop(): Promise<void> {
    this.#stopped = true;
    for (const { timer } of this.#timers.values()) clearTimeout(timer);
    this.#timers.clear();
    await Promise.all(this.#running.values());
  }

  /** A firing of the tenant is due in this many milliseconds, by the database's clock. */
  dueIn(slug: string, ms: number): void {
    if (this.#stopped || ms > maxTimerMs) return;
    const at = performance.now() + ms;
    const known = this.#timers.get(slug);
    if (known !== undefined) {
      if (known.at <= at) return;
      clearTimeout(known.timer);
    }
    // Slightly late instead of early, because the schedule is not due before its time.
    const timer = setTimeout(() => this.#tick(slug), ms + 5);
    this.#timers.set(slug, { timer, at });
  }

  /** The tenant's schedules changed on this daemon. */
  async refresh(tenant: Tenant): Promise<void> {
    const ms = await nextFiringInMs(this.#firing.db.forTenant(tenant.schema), tenant.schema);
    if (ms !== undefined) this.dueIn(tenant.slug, ms);
  }

  /** Fires the due schedules of one tenant and sets the timer for the next firing. */
  async runOnce(tenant: Tenant): Promise<number> {
    const jobs = await fireDueSchedules(this.#firing, tenant);
    await this.refresh(tenant);
    return jobs;
  }

  #tick(slug: string): void {
    this.#timers.delete(slug);
    const tenant = this.#registry.active().find((one) => one.slug === slug);
    if (tenant === undefined || this.#stopped || this.#running.has(slug)) return;
    const run = this.runOnce(tenant)
      .then(
        () => {},
        (error) => this.#logger.error({ err: error, tenant: slug }, 'firing the schedules of a tenant failed'),
      )
      .finally(() => this.#running.delete(slug));
    this.#running.set(slug, run);
  }
}
