// The table of periodic tasks, as a daemon has it, over given tenants. Workers, schedules and per-tenant tasks report
// their wake-ups; per-tenant tasks run when a test calls them.

import type { Database } from '../../server/database/database.ts';
import { EventListeners } from '../../server/events/log/event-listeners.ts';
import { CommitSignals } from '../../server/jobs/commit-signals.ts';
import { type Config, loadConfig } from '../../server/kernel/config.ts';
import { createLogger } from '../../server/kernel/logger.ts';
import type { PerTenantTask, PerTenantTasks } from '../../server/maintenance/per-tenant-task.ts';
import { createPerTenantTasks } from '../../server/maintenance/periodic-tasks.ts';
import { createPolledTasks } from '../../server/maintenance/polled-tasks.ts';
import { Sweeper } from '../../server/maintenance/sweeper.ts';
import type { PolledTask } from '../../server/maintenance/tenant-poller.ts';
import { Metrics } from '../../server/stats/metrics.ts';
import type { Tenant } from '../../server/tenants/tenant.ts';

export interface TaskOptions {
  config?: Config;
  metrics?: Metrics;
  /** `webhooks acme`, or `workers acme later` for a time that is to come. */
  onWake?(wakeUp: string): void;
}

export function createTasks(
  db: Database,
  tenants: Tenant[],
  { config = loadConfig({}), metrics = new Metrics({ perTenant: true, version: '1' }), onWake }: TaskOptions = {},
): { polled: PolledTask[]; tasks: PerTenantTasks } {
  const logger = createLogger('silent');
  const registry = { list: () => tenants, bySlug: (slug: string) => tenants.find((tenant) => tenant.slug === slug) };
  const { tasks } = createPerTenantTasks({
    config: { ...config, workerId: 'w1', webhookAllowPrivate: true },
    db,
    registry: registry as never,
    logger,
    metrics,
    signals: new CommitSignals(),
    listeners: new EventListeners(db, logger),
    workers: { underLoad: false },
  });
  const sweeper = new Sweeper({
    db,
    registry: registry as never,
    logger,
    actor: 'sweeper:test',
    staleLeaseGraceSeconds: 0,
    orphanAfterSeconds: 7200,
    leaseSeconds: 15,
    timeoutSeconds: 0,
    tokenLimit: 0,
    signals: new CommitSignals(),
    observe: () => {},
  });
  const reports = (name: string, task?: PerTenantTask) => ({
    wake(slug: string) {
      onWake?.(`${name} ${slug}`);
      task?.wake(slug);
    },
    dueIn: (slug: string) => onWake?.(`${name} ${slug} later`),
    wakeGate: (slug: string) => onWake?.(`${name} ${slug} gate`),
  });
  const polled = createPolledTasks({
    config,
    sweeper,
    workers: reports('workers'),
    schedules: reports('schedules'),
    wakePeers: (slug) => onWake?.(`peers ${slug}`),
    tasks: {
      statistics: reports('statistics', tasks.statistics),
      webhooks: reports('webhooks', tasks.webhooks),
      seals: reports('seals', tasks.seals),
      operations: reports('operations', tasks.operations),
      received: reports('received', tasks.received),
      retention: reports('retention', tasks.retention),
      listeners: tasks.listeners,
      dependencies: reports('dependencies', tasks.dependencies),
    },
  });
  return { polled, tasks };
}
