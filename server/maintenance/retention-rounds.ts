// The service that applies retention to every tenant: every minute where there is something to
// retire, once an hour where there is not.
import type { Database } from '../database/database.ts';
import type { Config } from '../kernel/config.ts';
import type { Logger } from '../kernel/logger.ts';
import type { TenantRegistry } from '../tenants/registry.ts';
import { TenantRounds } from '../tenants/rounds.ts';
import type { Tenant } from '../tenants/tenant.ts';
import { type RetentionHooks, type RetentionReport, runRetentionOnce } from './retention.ts';

export interface RetentionRoundsOptions {
  db: Database;
  registry: TenantRegistry;
  logger: Logger;
  config: Config;
  hooks?: RetentionHooks;
  observe?: (tenant: Tenant, report: RetentionReport) => void;
}

const minuteMs = 60_000;

export function createRetention(options: RetentionRoundsOptions): TenantRounds {
  const { db, registry, logger, config, hooks, observe } = options;
  return new TenantRounds({
    name: 'retention',
    registry,
    logger,
    busyMs: minuteMs,
    idleMs: 60 * minuteMs,
    concurrency: 1,
    visit: async (tenant, signal) => {
      const actor = `sweeper:${config.workerId}`;
      const report = await runRetentionOnce(db, tenant, { config, actor, logger, signal, ...(hooks && { hooks }) });
      observe?.(tenant, report);
      if (!report.complete) return 'more';
      return report.stale + report.deleted + report.events + report.deliveries > 0 ? 'some' : 'none';
    },
  });
}
