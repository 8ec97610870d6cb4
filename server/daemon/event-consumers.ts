// What follows the events off the hot path: statistics, webhooks and retention, with their routes. The daemon's poll
// finds the tenants that need them; a wake-up runs them at once.
import { statsRoutes } from '../http/resources/stats.ts';
import { webhookRoutes } from '../http/resources/webhooks.ts';
import { adminWorkerRoutes } from '../http/resources/workers.ts';
import type { RouteGroup } from '../http/route.ts';
import type { Service } from '../kernel/service.ts';
import type { Followers } from '../maintenance/follower-poll.ts';
import type { RetentionReport } from '../maintenance/retention.ts';
import { createRetention } from '../maintenance/retention-task.ts';
import type { PolledTask } from '../maintenance/tenant-poller.ts';
import type { Metrics } from '../stats/metrics.ts';
import { reportSetAside } from '../stats/report-set-aside.ts';
import { Statistics } from '../stats/statistics.ts';
import type { Tenant } from '../tenants/tenant.ts';
import { WebhookDispatcher } from '../webhooks/dispatcher.ts';
import type { WorkerPool } from '../worker/loop/worker-pool.ts';
import type { DaemonContext } from './context.ts';

export interface EventConsumers {
  services: Service[];
  routes: RouteGroup[];
  followers: Omit<Followers, 'seals'>;
  retention: PolledTask;
  /** Events of this tenant were written. Cheap enough for every commit. */
  wake(slug: string): void;
}

export function createEventConsumers(context: DaemonContext, workers: WorkerPool): EventConsumers {
  const { config, db, registry, logger, metrics } = context;
  const underLoad = () => workers.underLoad;
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
