// The service that applies retention to every tenant: every minute where there is something to
// retire. Where there is not, only the ages of the oldest rows are asked for, once an hour.
import type { Database } from '../database/database.ts';
import { isFinishedSql } from '../jobs/retention/delete-stale.ts';
import { secondsBetweenScans, staleFollower } from '../jobs/retention/mark-stale.ts';
import type { Config } from '../kernel/config.ts';
import type { Logger } from '../kernel/logger.ts';
import { PerTenantTask } from '../tenants/per-tenant-task.ts';
import type { TenantRegistry } from '../tenants/registry.ts';
import type { Tenant } from '../tenants/tenant.ts';
import { msOrInfinity, msUntil, type ProbeResults, type Probes } from './probe-tenants.ts';
import {
  type RetentionHooks,
  type RetentionReport,
  retentionTermsOf,
  runRetentionOnce,
  secondsPerDay,
} from './retention.ts';
import type { PolledTask } from './tenant-poller.ts';

export interface RetentionTaskOptions {
  db: Database;
  registry: TenantRegistry;
  logger: Logger;
  config: Config;
  hooks?: RetentionHooks;
  observe?: (tenant: Tenant, report: RetentionReport) => void;
}

const minuteMs = 60_000;

// When the oldest of each was last of use; always in the past.
const questions: Probes = {
  unread_ms: (s) => oldest(s, 'events', 'at', isUnread(s), 'xid, seq'),
  unseen_ms: (s) => oldest(s, 'jobs', 'created_at', `not exists (${reader(s)} and state ? 'looked_at')`, 'id'),
  looked_ms: (s) => `(${reader(s, msUntil(`(state ->> 'looked_at')::timestamptz`))})`,
  stale_ms: (s) => oldest(s, 'jobs', 'stale_at', `stale_at is not null and ${isFinishedSql}`),
  delivered_ms: (s) => oldest(s, 'webhook_deliveries', 'finished_at', 'finished_at is not null'),
  released_ms: (s) => oldest(s, 'leases', 'released_at', 'released_at is not null'),
  operated_ms: (s) => oldest(s, 'operations', 'finished_at', 'finished_at is not null'),
  minute_ms: (s) => oldest(s, 'stat_minutes', 'minute', `queue = '' and minute > '-infinity'`),
  sealed_ms: (s) => oldest(s, 'event_seals', 'sealed_at', `pruned_at is null and kind = 'events'`, 'number'),
};

function oldest(schema: string, table: string, column: string, condition: string, order = column): string {
  return `(select ${msUntil(column)} from ${schema}.${table} where ${condition} order by ${order} limit 1)`;
}

/** Who reads the log for jobs that become stale. */
function reader(schema: string, columns = '1'): string {
  return `select ${columns} from ${schema}.followers where name = '${staleFollower}'`;
}

/** An event that it has not read. Those of another history, from before a restore, it does not read. */
function isUnread(schema: string): string {
  const read = (part: number, type: string) =>
    `coalesce((${reader(schema, `nullif(split_part(snapshot, '|', ${part}), '')`)}), '0')::${type}`;
  return `(xid, seq) > (${read(3, 'xid8')}, ${read(4, 'bigint')}) and xid < pg_snapshot_xmax(pg_current_snapshot())`;
}

export interface Retention {
  service: PerTenantTask;
  watcher: PolledTask;
}

export function createRetention(options: RetentionTaskOptions): Retention {
  const { db, registry, logger, config, hooks, observe } = options;
  const service = new PerTenantTask({
    name: 'retention',
    registry,
    logger,
    busyMs: minuteMs,
    idleMs: 60 * minuteMs,
    watched: true,
    concurrency: 1,
    runForTenant: async (tenant, signal) => {
      const actor = `sweeper:${config.workerId}`;
      const report = await runRetentionOnce(db, tenant, { config, actor, logger, signal, ...(hooks && { hooks }) });
      observe?.(tenant, report);
      if (!report.complete) return 'more';
      return report.stale + report.deleted + report.events + report.deliveries > 0 ? 'some' : 'rest';
    },
  });
  return { service, watcher: createWatcher(service, config) };
}

function createWatcher(service: PerTenantTask, config: Config): PolledTask {
  return {
    name: 'retention',
    everyMs: minuteMs,
    restMs: 60 * minuteMs,
    suspended: true,
    probes: questions,
    isIdle: (answers, restMs, tenant) => dueInMs(answers, tenant, config) > restMs,
    onResults(found) {
      for (const { tenant, results: answers } of found) {
        if (dueInMs(answers, tenant, config) <= 0) service.wake(tenant.slug);
      }
    },
  };
}

/** Until the first of the tenant's rows has come to its age. */
function dueInMs(answers: ProbeResults, tenant: Tenant, config: Config): number {
  const { staleAfterSeconds, staleForSeconds, eventDays, logSeconds, minuteDays } = retentionTermsOf(tenant, config);
  const ofLog = ['delivered_ms', 'released_ms', 'operated_ms'].map((name) => msOrInfinity(answers[name]));
  return Math.min(
    msOrInfinity(answers.unread_ms) + staleAfterSeconds * 1000,
    msOrInfinity(answers.unseen_ms) + staleAfterSeconds * 1000,
    msOrInfinity(answers.looked_ms) + secondsBetweenScans * 1000,
    msOrInfinity(answers.sealed_ms) + logSeconds * 1000,
    msOrInfinity(answers.stale_ms) + staleForSeconds * 1000,
    msOrInfinity(answers.minute_ms) + minuteDays * secondsPerDay * 1000,
    Math.min(...ofLog) + eventDays * secondsPerDay * 1000,
  );
}
