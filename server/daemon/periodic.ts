// The periodic tasks, each with its interval: one table to see what a daemon does by itself.
import type { Database } from '../database/database.ts';
import type { Config } from '../kernel/config.ts';
import { Interval } from '../kernel/interval.ts';
import type { Logger } from '../kernel/logger.ts';
import type { Service } from '../kernel/service.ts';
import { pollOnce } from '../maintenance/poll.ts';
import { Sealer } from '../maintenance/sealer.ts';
import { Sweeper } from '../maintenance/sweeper.ts';
import type { ScheduleTicker } from '../schedules/ticker.ts';
import type { Metrics } from '../stats/metrics.ts';
import type { TenantRegistry } from '../tenants/registry.ts';
import type { WorkerPool } from '../worker/pool.ts';

export interface PeriodicOptions {
  config: Config;
  db: Database;
  registry: TenantRegistry;
  logger: Logger;
  metrics: Metrics;
  workers: WorkerPool;
  schedules: ScheduleTicker;
  wake(slug: string): void;
}

export function createPeriodic(options: PeriodicOptions): Service[] {
  const { config, db, registry, logger, workers, schedules } = options;
  const sweeper = createSweeper(options);
  const every = (name: string, seconds: number, run: () => Promise<unknown>) =>
    new Interval(name, seconds * 1000, run, logger);
  return [
    every('poll', config.pollIntervalSeconds, () => pollOnce(db, registry, workers, schedules)),
    every('sweep', config.sweepIntervalSeconds, () => sweeper.runOnce()),
    new Sealer({ db, registry, logger, underLoad: () => workers.underLoad }),
  ];
}

function createSweeper({ config, db, registry, logger, metrics, wake }: PeriodicOptions): Sweeper {
  return new Sweeper({
    db,
    registry,
    logger,
    actor: `sweeper:${config.workerId}`,
    staleLeaseGraceSeconds: config.staleLeaseGraceSeconds,
    orphanAfterSeconds: config.orphanAfterSeconds,
    tokenLimit: config.tokenLimit,
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
