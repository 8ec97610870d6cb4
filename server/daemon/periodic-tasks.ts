// The tasks of a daemon that one poll of all tenants drives: work, followers, operations, the sweeper and retention.
import type { Service } from '../kernel/service.ts';
import { createFollowerPoll } from '../maintenance/follower-poll.ts';
import type { OperationRunner } from '../maintenance/operation-runner.ts';
import { Sealer } from '../maintenance/sealer.ts';
import { Sweeper } from '../maintenance/sweeper.ts';
import { TenantPoller } from '../maintenance/tenant-poller.ts';
import { createWorkPoll } from '../maintenance/work-poll.ts';
import type { ScheduleTicker } from '../schedules/schedule-ticker.ts';
import { reportSetAside } from '../stats/report-set-aside.ts';
import type { WorkerPool } from '../worker/loop/worker-pool.ts';
import { announceWork } from './announce-work.ts';
import type { DaemonContext } from './context.ts';
import type { EventConsumers } from './event-consumers.ts';

export interface PeriodicTasksParts {
  workers: WorkerPool;
  schedules: ScheduleTicker;
  operations: OperationRunner;
  eventConsumers: EventConsumers;
}

export interface PeriodicTasks {
  services: Service[];
  poller: TenantPoller;
}

/** One poll serves all of them: an idle daemon sends one statement every few seconds. */
export function createPeriodicTasks(context: DaemonContext, parts: PeriodicTasksParts): PeriodicTasks {
  const { config, db, registry, logger, metrics, notifications } = context;
  const { workers, schedules, operations, eventConsumers } = parts;
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
  const tasks = [
    createWorkPoll(pollMs, workers, schedules),
    createFollowerPoll(sweepMs, { ...eventConsumers.followers, seals: sealer }),
    operations.watcher(sweepMs),
    createSweeper(context, sweepMs),
    eventConsumers.retention,
  ];
  const receivesNotifications = () => notifications.connected;
  const poller = new TenantPoller({ db, registry, logger, tasks, receivesNotifications });
  return { services: [sealer, poller], poller };
}

function createSweeper(context: DaemonContext, everyMs: number): Sweeper {
  const { config, db, registry, logger, metrics } = context;
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
    wake: (slug) => announceWork(context, slug),
    observe: {
      swept: (tenant, kind, count) => {
        metrics.sweeps.add(tenant.slug, kind);
        metrics.swept.add(tenant.slug, kind, count);
        if (kind === 'leases') metrics.zombies.add(tenant.slug, count);
      },
    },
  });
}
