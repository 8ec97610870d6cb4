// Builds the periodic tasks of a daemon: the parts that do the work, with their metrics, and the services that run
// them. polled-tasks.ts has the schedule.

import type { Database } from '../database/database.ts';
import type { EventListeners } from '../events/log/event-listeners.ts';
import { sealEvents } from '../events/seals/seal.ts';
import { runOperationsOnce } from '../jobs/actions/run-bulk-operations.ts';
import type { CommitSignals } from '../jobs/commit-signals.ts';
import { DependencyFollower } from '../jobs/flows/follow-dependencies.ts';
import { deliverEvents } from '../jobs/received/deliver-events.ts';
import type { RetentionHooks } from '../jobs/retention/delete-stale.ts';
import type { Config } from '../kernel/config.ts';
import type { Logger } from '../kernel/logger.ts';
import type { Service } from '../kernel/service.ts';
import { type Metrics, reportSetAside } from '../stats/metrics.ts';
import { Statistics } from '../stats/statistics.ts';
import type { TenantRegistry } from '../tenants/registry.ts';
import type { Tenant } from '../tenants/tenant.ts';
import { WebhookDispatcher } from '../webhooks/dispatcher.ts';
import { PerTenantTask, type PerTenantTaskOptions, type PerTenantTasks } from './per-tenant-task.ts';
import { createPolledTasks, type PolledTaskParts } from './polled-tasks.ts';
import { createSessionRetention, type RetentionReport, runRetentionOnce } from './retention.ts';
import { Sweeper } from './sweeper.ts';
import { TenantPoller } from './tenant-poller.ts';

const minuteMs = 60_000;

/** What the per-tenant tasks use. */
interface TaskContext {
  config: Config;
  db: Database;
  registry: TenantRegistry;
  logger: Logger;
  metrics: Metrics;
  signals: CommitSignals;
  listeners: EventListeners;
  retentionHooks?: RetentionHooks | undefined;
  /** While they are under load, statistics, webhooks and seals pause unless they are far behind: jobs come first. */
  workers: { readonly underLoad: boolean };
}

export interface PeriodicTasksOptions extends TaskContext {
  workers: PolledTaskParts['workers'] & { readonly underLoad: boolean };
  schedules: PolledTaskParts['schedules'];
  notifications: { readonly connected: boolean; notify(slug: string): void };
}

export interface PeriodicTasks {
  services: Service[];
  poller: TenantPoller;
  tasks: PerTenantTasks;
  dependencies: DependencyFollower;
  /** Sets the number of other live daemons, which share the polls and scans of idle tenants. */
  setPeers(count: number): void;
}

export function createPeriodicTasks(options: PeriodicTasksOptions): PeriodicTasks {
  const { config, db, registry, logger, workers, schedules, notifications } = options;
  let daemons = 1;
  const { tasks, dependencies } = createPerTenantTasks(options);
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

/** The tasks that run only for tenants that a polled task or a commit has woken. @internal Exported for tests. */
export function createPerTenantTasks(options: TaskContext): {
  tasks: PerTenantTasks;
  dependencies: DependencyFollower;
} {
  const { config, db, registry, logger, metrics, signals, workers } = options;
  const underLoad = () => workers.underLoad;
  const onSetAside = reportSetAside(metrics, logger);
  const statistics = new Statistics({ db, registry, metrics, onSetAside });
  const dispatcher = createDispatcher(options, (slug) => tasks.webhooks.runNow(slug));
  const dependencies = new DependencyFollower({ db, actor: `dependencies:${config.workerId}`, signals, onSetAside });
  const task = (parts: Omit<PerTenantTaskOptions, 'registry' | 'logger'>) =>
    new PerTenantTask({ registry, logger, ...parts });
  const tasks: PerTenantTasks = {
    statistics: task({
      name: 'statistics',
      busyMs: 1000,
      idleMs: minuteMs,
      concurrency: 2,
      underLoad,
      runForTenant: (tenant, run) => statistics.runForTenant(tenant, run),
    }),
    webhooks: task({
      name: 'webhooks',
      busyMs: 1000,
      idleMs: minuteMs,
      concurrency: 4,
      underLoad,
      runForTenant: (tenant, run) => dispatcher.runForTenant(tenant, run),
      onStop: () => dispatcher.stop(),
    }),
    // Listeners of a program that embeds the daemon. Without any, nothing is read.
    listeners: task({
      name: 'listeners',
      busyMs: 100,
      idleMs: minuteMs,
      concurrency: 4,
      runForTenant: async (tenant) => ((await options.listeners.deliver(tenant)) ? 'more' : 'idle'),
    }),
    // Not paused under load, because these jobs are part of it.
    dependencies: task({
      name: 'dependencies',
      busyMs: 40,
      idleMs: minuteMs,
      concurrency: 2,
      runForTenant: (tenant) => dependencies.runForTenant(tenant),
    }),
    // Soon after the commit, because verification cannot vouch for events that are not sealed.
    seals: task({
      name: 'seals',
      busyMs: 2000,
      idleMs: minuteMs,
      concurrency: 2,
      underLoad,
      async runForTenant(tenant) {
        const { handled, complete, busy, setAside } = await sealEvents(db.forTenant(tenant.schema), tenant.schema);
        onSetAside(tenant, setAside);
        if (!complete) return 'more';
        return handled > 0 ? 'some' : busy ? 'busy' : 'idle';
      },
    }),
    // Few at a time, because workers and requests need the connections.
    operations: task({
      name: 'operations',
      busyMs: 1000,
      idleMs: minuteMs,
      concurrency: 2,
      async runForTenant(tenant, { signal }) {
        const { handled, more, waits } = await runOperationsOnce(db.forTenant(tenant.schema), tenant, { signal });
        if (handled > 0) signals.jobsWritten(tenant);
        return more ? 'more' : waits ? 'some' : 'idle';
      },
    }),
    // Delivers events from outside to the jobs that wait for them.
    received: task({
      name: 'received-events',
      busyMs: 100,
      idleMs: minuteMs,
      concurrency: 4,
      async runForTenant(tenant, { signal }) {
        const { woken, more } = await deliverEvents(
          db.forTenant(tenant.schema),
          tenant.schema,
          `worker:${config.workerId}`,
          { signal },
        );
        if (woken > 0) signals.jobsWritten(tenant);
        return more ? 'more' : 'idle';
      },
    }),
    retention: task({
      name: 'retention',
      busyMs: minuteMs,
      idleMs: 60 * minuteMs,
      concurrency: 1,
      async runForTenant(tenant, { signal }) {
        const actor = `sweeper:${config.workerId}`;
        const report = await runRetentionOnce(db.forTenant(tenant.schema), tenant, {
          config,
          actor,
          logger,
          signal,
          hooks: options.retentionHooks,
        });
        countRetention(metrics, tenant, report);
        if (!report.complete) return 'more';
        return report.stale + report.deleted + report.events + report.deliveries > 0 ? 'some' : 'idle';
      },
    }),
  };
  return { tasks, dependencies };
}

function createDispatcher(options: TaskContext, onSlotFree: (slug: string) => void): WebhookDispatcher {
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
