// Per-tenant tasks. They run only for tenants that a polled task (tasks.ts) or a commit has woken.

import type { Database } from '../database/database.ts';
import type { EventListeners } from '../events/log/event-listeners.ts';
import type { ReportSetAside } from '../events/log/set-aside.ts';
import { sealEvents } from '../events/seals/seal.ts';
import { runOperationsOnce } from '../jobs/actions/run-bulk-operations.ts';
import type { CommitSignals } from '../jobs/commit-signals.ts';
import { queueDueJobs } from '../jobs/finish/due-jobs.ts';
import { cancelChildren } from '../jobs/flows/cancel-children.ts';
import { followDependencies } from '../jobs/flows/follow-dependencies.ts';
import { deliverEvents } from '../jobs/received/deliver-events.ts';
import type { RetentionHooks } from '../jobs/retention/delete-stale.ts';
import type { Config } from '../kernel/config.ts';
import type { Logger } from '../kernel/logger.ts';
import type { Statistics } from '../stats/statistics.ts';
import type { TenantRegistry } from '../tenants/registry.ts';
import type { Tenant } from '../tenants/tenant.ts';
import type { WebhookDispatcher } from '../webhooks/dispatcher.ts';
import { PerTenantTask, type PerTenantTaskOptions, type TaskResult } from './per-tenant-task.ts';
import { type RetentionReport, runRetentionOnce } from './retention.ts';

const minuteMs = 60_000;

interface PerTenantTaskParts {
  config: Config;
  db: Database;
  registry: Pick<TenantRegistry, 'list'>;
  logger: Logger;
  statistics: Statistics;
  dispatcher: WebhookDispatcher;
  /** While this is true, statistics, webhooks and seals pause unless they are far behind, because jobs come first. */
  underLoad(): boolean;
  signals: Pick<CommitSignals, 'jobsWritten'>;
  onSetAside: ReportSetAside;
  onRetention(tenant: Tenant, report: RetentionReport): void;
  retentionHooks?: RetentionHooks | undefined;
  listeners: EventListeners;
  dependencies: DependencyResolver;
}

export type PerTenantTasks = Record<
  'statistics' | 'webhooks' | 'seals' | 'operations' | 'received' | 'retention' | 'listeners' | 'dependencies',
  PerTenantTask
>;

export function createPerTenantTasks(parts: PerTenantTaskParts): PerTenantTasks {
  const { config, db, registry, logger, statistics, dispatcher, underLoad } = parts;
  const task = (options: Omit<PerTenantTaskOptions, 'registry' | 'logger'>) =>
    new PerTenantTask({ registry, logger, ...options });
  return {
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
      runForTenant: async (tenant) => ((await parts.listeners.deliver(tenant)) ? 'more' : 'idle'),
    }),
    // Not paused under load, because these jobs are part of it.
    dependencies: task({
      name: 'dependencies',
      busyMs: 40,
      idleMs: minuteMs,
      concurrency: 2,
      runForTenant: (tenant) => parts.dependencies.runForTenant(tenant),
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
        parts.onSetAside(tenant, setAside);
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
        if (handled > 0) parts.signals.jobsWritten(tenant);
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
        if (woken > 0) parts.signals.jobsWritten(tenant);
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
          hooks: parts.retentionHooks,
        });
        parts.onRetention(tenant, report);
        if (!report.complete) return 'more';
        return report.stale + report.deleted + report.events + report.deliveries > 0 ? 'some' : 'idle';
      },
    }),
  };
}

// Queues jobs when the jobs they wait for have ended, tenant by tenant. Tracks which tenants have such jobs, so that
// commits of other tenants cost nothing here.

interface ResolverOptions {
  db: Database;
  actor: string;
  signals: Pick<CommitSignals, 'jobsWritten'>;
  onSetAside: ReportSetAside;
}

const dueAtOnce = 500;

export class DependencyResolver {
  readonly #options: ResolverOptions;
  /** By slug. */
  readonly #active = new Set<string>();

  constructor(options: ResolverOptions) {
    this.#options = options;
  }

  /** True if jobs of the tenant wait for others, as far as this daemon knows. The poll finds the rest. */
  isActive(slug: string): boolean {
    return this.#active.has(slug);
  }

  async runForTenant(tenant: Tenant): Promise<TaskResult> {
    const { db, actor, onSetAside } = this.#options;
    const followed = await followDependencies(db.forTenant(tenant.schema), tenant.schema);
    if (followed === undefined) {
      this.#active.delete(tenant.slug);
      return 'idle';
    }
    this.#active.add(tenant.slug);
    onSetAside(tenant, followed.setAside);
    const more = await cancelChildren(db.forTenant(tenant.schema), tenant.schema, actor);
    if (followed.handled > 0 || more) await this.#queueDue(tenant);
    if (!followed.complete || more) return 'more';
    return followed.busy ? 'some' : 'idle';
  }

  async #queueDue(tenant: Tenant): Promise<void> {
    const { db, actor, signals } = this.#options;
    for (;;) {
      const queued = await queueDueJobs(db.forTenant(tenant.schema), tenant.schema, actor, dueAtOnce);
      if (queued > 0) signals.jobsWritten(tenant);
      if (queued < dueAtOnce) return;
    }
  }
}
