// Rolls up the events of tenants, and keeps the gauges of queue depth and age up to date. Daemons share the roll-up;
// each exports the same gauges.
import type { Database } from '../database/database.ts';
import type { ReportSetAside } from '../events/log/set-aside.ts';
import type { TenantRegistry } from '../tenants/registry.ts';
import type { Tenant } from '../tenants/tenant.ts';
import type { Metrics } from './metrics.ts';
import { readCounts, readOldestSeconds, type StatusCounts } from './read-counts.ts';
import { rollUpOnce } from './roll-up.ts';

export interface StatisticsOptions {
  db: Database;
  registry: Pick<TenantRegistry, 'bySlug'>;
  metrics: Metrics;
  onSetAside: ReportSetAside;
}

interface QueueDepth {
  counts: StatusCounts;
  oldestSeconds: number;
  readAt: number;
}

// Scrapers usually come every 15 seconds.
const gaugesMs = 10_000;

export class Statistics {
  #options: StatisticsOptions;
  #depths = new Map<string, QueueDepth>();
  /** Tenants whose gauges may be out of date. */
  #outdated = new Set<string>();

  constructor(options: StatisticsOptions) {
    this.#options = options;
  }

  async runForTenant(
    tenant: Tenant,
    { woken }: { woken: boolean },
  ): Promise<'more' | 'some' | 'none' | 'busy' | 'idle'> {
    const db = this.#options.db.forTenant(tenant.schema);
    const { handled, complete, busy, setAside } = await rollUpOnce(db, tenant.schema);
    this.#options.onSetAside(tenant, setAside);
    // Another daemon may have rolled up a tenant that was woken.
    if (handled > 0 || busy || woken) this.#outdated.add(tenant.slug);
    const depth = this.#depths.get(tenant.slug);
    // Only after the events so far are counted, because gauges of a new follower would report zero jobs.
    const isDue = depth === undefined ? complete : performance.now() - depth.readAt >= gaugesMs;
    if (isDue) await this.#readDepth(tenant);
    if (!complete) return 'more';
    if (handled > 0) return 'some';
    if (busy) return 'busy';
    // The age of the oldest waiting job grows without an event.
    const hasWaiting = (this.#depths.get(tenant.slug)?.counts.QUEUED ?? 0) > 0;
    return hasWaiting || this.#outdated.has(tenant.slug) ? 'none' : 'idle';
  }

  async #readDepth(tenant: Tenant): Promise<void> {
    const db = this.#options.db.forTenant(tenant.schema);
    this.#outdated.delete(tenant.slug);
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
        this.#outdated.delete(slug);
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
