// What happens after the fact, off the hot path: statistics, webhooks and retention, with their
// routes. The daemon's watch tells them where there is something to do; a wake-up, that it is now.
import type { Database } from '../database/database.ts';
import { statsRoutes } from '../http/resources/stats.ts';
import { webhookRoutes } from '../http/resources/webhooks.ts';
import { adminWorkerRoutes } from '../http/resources/workers.ts';
import type { RouteGroup } from '../http/route.ts';
import type { Config } from '../kernel/config.ts';
import type { Logger } from '../kernel/logger.ts';
import type { Service } from '../kernel/service.ts';
import type { Followers } from '../maintenance/follower-poll.ts';
import type { RetentionHooks, RetentionReport } from '../maintenance/retention.ts';
import { createRetention } from '../maintenance/retention-task.ts';
import type { PolledTask } from '../maintenance/tenant-poller.ts';
import type { Metrics } from '../stats/metrics.ts';
import { reportSetAside } from '../stats/report-set-aside.ts';
import { Statistics } from '../stats/statistics.ts';
import type { TenantRegistry } from '../tenants/registry.ts';
import type { Tenant } from '../tenants/tenant.ts';
import { WebhookDispatcher } from '../webhooks/dispatcher.ts';

export interface EventConsumersOptions {
  config: Config;
  db: Database;
  registry: TenantRegistry;
  logger: Logger;
  metrics: Metrics;
  retentionHooks?: RetentionHooks;
  underLoad(): boolean;
}

export interface EventConsumers {
  services: Service[];
  routes: RouteGroup[];
  followers: Omit<Followers, 'seals'>;
  retention: PolledTask;
  /** Something happened at this tenant. Cheap enough for every job. */
  wake(slug: string): void;
}

export function createEventConsumers(options: EventConsumersOptions): EventConsumers {
  const { config, db, registry, logger, metrics, retentionHooks } = options;
  const { underLoad } = options;
  const onSetAside = reportSetAside(metrics, logger);
  const statistics = new Statistics({ db, registry, logger, metrics, underLoad, watched: true, onSetAside });
  const webhooks = new WebhookDispatcher({
    db,
    registry,
    logger,
    workerId: config.workerId,
    underLoad,
    watched: true,
    onSetAside,
    allowPrivate: config.webhookAllowPrivate,
    concurrency: config.webhookConcurrency,
    timeoutMs: config.webhookTimeoutSeconds * 1000,
    maxAttempts: config.webhookMaxAttempts,
    observe: (tenant, outcome, seconds) => {
      metrics.webhooks.add(tenant.slug, outcome);
      metrics.webhookSeconds.of(tenant.slug).observe(seconds);
    },
  });
  const retention = createRetention({
    db,
    registry,
    logger,
    config,
    observe: (tenant, report) => count(metrics, tenant, report),
    ...(retentionHooks && { hooks: retentionHooks }),
  });
  return {
    services: [statistics, webhooks, retention.service],
    retention: retention.watcher,
    followers: { statistics, webhooks },
    routes: [
      statsRoutes({ db }),
      webhookRoutes({ db, registry, wake: (slug) => webhooks.wake(slug) }),
      adminWorkerRoutes({ db }),
    ],
    wake: (slug) => {
      statistics.wake(slug);
      webhooks.wake(slug);
    },
  };
}

function count(metrics: Metrics, tenant: Tenant, { complete, ...rows }: RetentionReport): void {
  metrics.sweeps.add(tenant.slug, 'retention');
  const total = Object.values(rows).reduce((sum, n) => sum + n, 0);
  metrics.swept.add(tenant.slug, 'retention', total);
}
