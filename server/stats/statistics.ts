// The service behind statistics: rolls up every tenant's events, and keeps the gauges of queue depth
// and age that scrapers see. Several daemons share the work; each shows the same gauges.
import type { Database } from '../database/database.ts';
import type { ReportSetAside } from '../events/log/set-aside.ts';
import type { Logger } from '../kernel/logger.ts';
import type { Service } from '../kernel/service.ts';
import { PerTenantTask, type TaskResult } from '../tenants/per-tenant-task.ts';
import type { TenantRegistry } from '../tenants/registry.ts';
import type { Tenant } from '../tenants/tenant.ts';
import type { Metrics } from './metrics.ts';
import { readCounts, readOldestSeconds, type StatusCounts } from './read-counts.ts';
import { rollUpOnce } from './roll-up.ts';

export interface StatisticsOptions {
  /** Jobs come first: see TenantRounds. */
  underLoad?: () => boolean;
  db: Database;
  registry: TenantRegistry;
  logger: Logger;
  metrics: Metrics;
  onSetAside?: ReportSetAside | undefined;
  /** Time between rounds; an idle tenant is visited less often unless it is woken. */
  everyMs?: number;
  /** Somebody wakes it where something happened, whichever daemon did it: see TenantRounds. */
  watched?: boolean;
  gaugesMs?: number;
}

interface QueueDepth {
  counts: StatusCounts;
  oldestSeconds: number;
  readAt: number;
}

// Of a burst, one visit takes this much; the rest waits for the next, so that counting does not
// compete with the work that is counted.
const stepsPerRun = 2;

export class Statistics implements Service {
  readonly name = 'statistics';
  #options: StatisticsOptions;
  #task: PerTenantTask;
  #depths = new Map<string, QueueDepth>();
  /** Tenants whose gauges may be behind. */
  #stale = new Set<string>();
  #gaugesMs: number;

  constructor(options: StatisticsOptions) {
    this.#options = options;
    // Scrapers come every 15 seconds or so.
    this.#gaugesMs = options.gaugesMs ?? 10_000;
    const { registry, logger, everyMs = 1000 } = options;
    this.#task = new PerTenantTask({
      name: this.name,
      registry,
      logger,
      runForTenant: (tenant, signal) => this.#rollUpTenant(tenant, signal),
      busyMs: everyMs,
      idleMs: everyMs * 60,
      concurrency: 2,
      watched: options.watched ?? false,
      ...(options.underLoad && { underLoad: options.underLoad }),
    });
  }

  async start(): Promise<void> {
    await this.#task.start();
  }

  async stop(): Promise<void> {
    await this.#task.stop();
  }

  /** Something happened at this tenant. */
  wake(slug: string): void {
    this.#stale.add(slug);
    this.#task.wake(slug);
  }

  /** One round over all tenants. For tests and for scripts. */
  async runOnce(): Promise<void> {
    await this.#task.runOnce(true);
  }

  async #rollUpTenant(tenant: Tenant, signal: AbortSignal): Promise<TaskResult> {
    let handled = 0;
    let complete = false;
    let busy = false;
    const { underLoad } = this.#options;
    for (let step = 0; step < stepsPerRun && !complete && !signal.aborted; step++) {
      if (step > 0 && underLoad?.() === true) break;
      const followed = await rollUpOnce(this.#options.db, tenant.schema);
      handled += followed.handled;
      this.#options.onSetAside?.(tenant, followed.setAside);
      ({ complete, busy } = followed);
    }
    if (handled > 0 || busy) this.#stale.add(tenant.slug);
    const depth = this.#depths.get(tenant.slug);
    if (depth === undefined || performance.now() - depth.readAt >= this.#gaugesMs) await this.#readDepth(tenant);
    if (handled > 0 || !complete) return 'some';
    // What waits grows older without an event.
    const waits = (this.#depths.get(tenant.slug)?.counts.QUEUED ?? 0) > 0;
    return busy || waits || this.#stale.has(tenant.slug) ? 'none' : 'rest';
  }

  async #readDepth(tenant: Tenant): Promise<void> {
    const { db } = this.#options;
    this.#stale.delete(tenant.slug);
    const counts = await readCounts(db, tenant.schema);
    const oldestSeconds = counts.QUEUED === 0 ? 0 : await readOldestSeconds(db, tenant.schema);
    this.#depths.set(tenant.slug, { counts, oldestSeconds, readAt: performance.now() });
    this.#setGauges();
  }

  #setGauges(): void {
    const { metrics, registry } = this.#options;
    metrics.queueJobs.reset();
    metrics.oldestSeconds.reset();
    const totals = new Map<string, number>();
    let oldest = 0;
    for (const [slug, { counts, oldestSeconds }] of this.#depths) {
      if (registry.bySlug(slug) === undefined) {
        this.#depths.delete(slug);
        this.#stale.delete(slug);
        continue;
      }
      oldest = Math.max(oldest, oldestSeconds);
      if (metrics.perTenant) metrics.oldestSeconds.set(slug, oldestSeconds);
      for (const [status, count] of Object.entries(counts)) {
        if (metrics.perTenant) metrics.queueJobs.set(slug, status, count);
        totals.set(status, (totals.get(status) ?? 0) + count);
      }
    }
    if (metrics.perTenant) return;
    metrics.oldestSeconds.set('', oldest);
    for (const [status, count] of totals) metrics.queueJobs.set('', status, count);
  }
}
