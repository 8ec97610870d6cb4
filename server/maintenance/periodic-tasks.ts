// Builds the periodic tasks of a daemon: the parts that do the work, with their metrics, and the services that run
// them. tasks.ts has the schedule.

import type { Database } from '../database/database.ts';
import type { EventListeners } from '../events/log/event-listeners.ts';
import type { CommitSignals } from '../jobs/commit-signals.ts';
import type { RetentionHooks } from '../jobs/retention/delete-stale.ts';
import type { Config } from '../kernel/config.ts';
import type { Logger } from '../kernel/logger.ts';
import type { Service } from '../kernel/service.ts';
import { type Metrics, reportSetAside } from '../stats/metrics.ts';
import { Statistics } from '../stats/statistics.ts';
import type { TenantRegistry } from '../tenants/registry.ts';
import type { Tenant } from '../tenants/tenant.ts';
import { WebhookDispatcher } from '../webhooks/dispatcher.ts';
import { createPerTenantTasks, DependencyResolver, type PerTenantTasks } from './create-per-tenant-tasks.ts';
import { createSessionRetention, type RetentionReport } from './retention.ts';
import { Sweeper } from './sweeper.ts';
import { createPolledTasks, type PolledTaskParts } from './tasks.ts';
import { TenantPoller } from './tenant-poller.ts';

export interface PeriodicTasksOptions {
  config: Config;
  db: Database;
  registry: TenantRegistry;
  logger: Logger;
  metrics: Metrics;
  workers: PolledTaskParts['workers'] & { readonly underLoad: boolean };
  schedules: PolledTaskParts['schedules'];
  signals: CommitSignals;
  retentionHooks?: RetentionHooks | undefined;
  listeners: EventListeners;
  notifications: { readonly connected: boolean; notify(slug: string): void };
}

export interface PeriodicTasks {
  services: Service[];
  poller: TenantPoller;
  tasks: PerTenantTasks;
  dependencies: DependencyResolver;
  /** Sets the number of other live daemons, which share the polls and scans of idle tenants. */
  setPeers(count: number): void;
}

export function createPeriodicTasks(options: PeriodicTasksOptions): PeriodicTasks {
  const { config, db, registry, logger, metrics, workers, schedules, signals, notifications } = options;
  let daemons = 1;
  const underLoad = () => workers.underLoad;
  const onSetAside = reportSetAside(metrics, logger);
  const dependencies = new DependencyResolver({
    db,
    actor: `dependencies:${config.workerId}`,
    signals,
    onSetAside,
  });
  const tasks: PerTenantTasks = createPerTenantTasks({
    config,
    db,
    registry,
    logger,
    underLoad,
    signals,
    onSetAside,
    statistics: new Statistics({ db, registry, metrics, onSetAside }),
    dispatcher: createDispatcher(options, (slug) => tasks.webhooks.runNow(slug)),
    retentionHooks: options.retentionHooks,
    listeners: options.listeners,
    dependencies,
    onRetention: (tenant, report) => countRetention(metrics, tenant, report),
  });
  const poller = new TenantPoller({
    db,
    registry,
    logger,
    tasks: createPolledTasks({
      ...{ config, workers, schedules, tasks },
      wakePeers: (slug) => notifications.notify(slug),
      sweeper: createSweeper(options, () => daemons),
    }),
    notifications,
  });
  return {
    services: [...Object.values(tasks), createSessionRetention(db, logger), poller],
    poller,
    tasks,
    dependencies,
    setPeers(count) {
      daemons = 1 + count;
      poller.setPeers(count);
    },
  };
}

function createDispatcher(options: PeriodicTasksOptions, onSlotFree: (slug: string) => void): WebhookDispatcher {
  const { config, db, logger, metrics } = options;
  return new WebhookDispatcher({
    db,
    logger,
    workerId: config.workerId,
    allowPrivate: config.webhookAllowPrivate,
    concurrency: config.webhookConcurrency,
    timeoutMs: config.webhookTimeoutSeconds * 1000,
    maxAttempts: config.webhookMaxAttempts,
    onSetAside: reportSetAside(metrics, logger),
    onSlotFree,
    observe: (tenant, outcome, seconds) => {
      metrics.webhooks.add(tenant.slug, outcome);
      metrics.webhookSeconds.of(tenant.slug).observe(seconds);
    },
  });
}

function createSweeper(options: PeriodicTasksOptions, daemons: () => number): Sweeper {
  const { config, db, registry, logger, metrics, signals } = options;
  return new Sweeper({
    daemons,
    db,
    registry,
    logger,
    actor: `sweeper:${config.workerId}`,
    staleLeaseGraceSeconds: config.staleLeaseGraceSeconds,
    orphanAfterSeconds: config.orphanAfterSeconds,
    leaseSeconds: config.leaseSeconds,
    tokenLimit: config.tokenLimit,
    // The second sweep is the first to scan.
    repairDelayMs: (config.sweepIntervalSeconds * 1000) / 2,
    timeoutSeconds: config.jobTimeoutSeconds,
    signals,
    observe: (tenant, kind, count) => {
      metrics.sweeps.add(tenant.slug, kind);
      metrics.swept.add(tenant.slug, kind, count);
      if (kind === 'leases') metrics.zombies.add(tenant.slug, count);
    },
  });
}

function countRetention(metrics: Metrics, tenant: Tenant, { complete, ...rows }: RetentionReport): void {
  metrics.sweeps.add(tenant.slug, 'retention');
  const total = Object.values(rows).reduce((sum, count) => sum + count, 0);
  metrics.swept.add(tenant.slug, 'retention', total);
}
