// What a daemon does by itself, each task with its interval: one table to see it all.
import type { Database } from '../database/database.ts';
import type { Config } from '../kernel/config.ts';
import type { Logger } from '../kernel/logger.ts';
import type { Service } from '../kernel/service.ts';
import { createFollowerPoll, type Followers } from '../maintenance/follower-poll.ts';
import type { OperationRunner } from '../maintenance/operation-runner.ts';
import { Sealer } from '../maintenance/sealer.ts';
import { Sweeper } from '../maintenance/sweeper.ts';
import { type PolledTask, TenantPoller } from '../maintenance/tenant-poller.ts';
import { createWorkPoll } from '../maintenance/work-poll.ts';
import type { ScheduleTicker } from '../schedules/schedule-ticker.ts';
import type { Metrics } from '../stats/metrics.ts';
import { reportSetAside } from '../stats/report-set-aside.ts';
import type { TenantRegistry } from '../tenants/registry.ts';
import type { WorkerPool } from '../worker/loop/worker-pool.ts';

export interface PeriodicTasksOptions {
  config: Config;
  db: Database;
  registry: TenantRegistry;
  logger: Logger;
  metrics: Metrics;
  workers: WorkerPool;
  schedules: ScheduleTicker;
  operations: OperationRunner;
  followers: Omit<Followers, 'seals'>;
  retention: PolledTask;
  wake(slug: string): void;
  /** Wake-ups of other daemons arrive. */
  receivesNotifications(): boolean;
}

export interface PeriodicTasks {
  services: Service[];
  poller: TenantPoller;
}

/** One look serves all of them: an idle daemon sends one statement every few seconds. */
export function createPeriodicTasks(options: PeriodicTasksOptions): PeriodicTasks {
  const { config, db, registry, logger, metrics, workers, schedules, operations, followers } = options;
  const pollMs = config.pollIntervalSeconds * 1000;
  const sweepMs = config.sweepIntervalSeconds * 1000;
  const sealer = new Sealer({
    db,
    registry,
    logger,
    watched: true,
    underLoad: () => workers.underLoad,
    onSetAside: reportSetAside(metrics, logger),
  });
  const watchers = [
    createWorkPoll(pollMs, workers, schedules),
    createFollowerPoll(sweepMs, { ...followers, seals: sealer }),
    operations.watcher(sweepMs),
    createSweeper(options, sweepMs),
    options.retention,
  ];
  const watch = new TenantPoller({
    db,
    registry,
    logger,
    tasks: watchers,
    receivesNotifications: options.receivesNotifications,
  });
  return { services: [sealer, watch], poller: watch };
}

function createSweeper(options: PeriodicTasksOptions, everyMs: number): Sweeper {
  const { config, db, registry, logger, metrics, wake } = options;
  return new Sweeper({
    db,
    registry,
    logger,
    everyMs,
    actor: `sweeper:${config.workerId}`,
    staleLeaseGraceSeconds: config.staleLeaseGraceSeconds,
    orphanAfterSeconds: config.orphanAfterSeconds,
    leaseSeconds: config.leaseSeconds,
    tokenLimit: config.tokenLimit,
    timeoutSeconds: config.jobTimeoutSeconds,
    wake,
    observe: {
      swept: (tenant, kind, count) => {
        metrics.sweeps.add(tenant.slug, kind);
        metrics.swept.add(tenant.slug, kind, count);
        if (kind === 'leases') metrics.zombies.add(tenant.slug, count);
      },
    },
  });
}
