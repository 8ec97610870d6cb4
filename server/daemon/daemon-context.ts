// The dependencies of nearly every part of a daemon, created once and passed down unchanged.
import { Database } from '../database/database.ts';
import { Notifications } from '../database/notifications/notifications.ts';
import { EventListeners } from '../events/log/event-listeners.ts';
import type { ReadinessState } from '../http/resources/health.ts';
import { StepGroupCommit } from '../jobs/attempt/step-group-commit.ts';
import { CommitSignals } from '../jobs/commit-signals.ts';
import { QueueLimit } from '../jobs/enqueue/enqueue-limits.ts';
import type { RetentionHooks } from '../jobs/retention/delete-stale.ts';
import type { Config } from '../kernel/config.ts';
import type { Logger } from '../kernel/logger.ts';
import { Metrics } from '../stats/metrics.ts';
import { TenantRegistry } from '../tenants/registry.ts';
import type { HandlerRegistry } from '../worker/handlers/handler-registry.ts';

export interface DaemonOptions {
  config: Config;
  /** `config.databaseUrl`, or the URL of the embedded Postgres. */
  databaseUrl: string;
  logger: Logger;
  handlers: HandlerRegistry;
  version: string;
  /** The directory of the built dashboard; without it the daemon serves only the API. */
  dashboardDir?: string | undefined;
  /**
   * The daemon is part of another program, which serves the API with `router()`: it has no listener and creates no
   * operator key.
   */
  embedded?: boolean | undefined;
  retentionHooks?: RetentionHooks | undefined;
}

export interface DaemonContext extends DaemonOptions {
  db: Database;
  registry: TenantRegistry;
  metrics: Metrics;
  notifications: Notifications;
  signals: CommitSignals;
  listeners: EventListeners;
  queueLimit: QueueLimit;
  stepCommits: StepGroupCommit;
  lifecycle: Lifecycle;
}

export function createContext(options: DaemonOptions): DaemonContext {
  const { config, databaseUrl, version } = options;
  const logger = options.logger.child({ worker: config.workerId });
  const { databasePoolMax: poolMax, tenantRoles } = config;
  const db = new Database({ url: databaseUrl, poolMax, logger, tenantRoles });
  const notifications = new Notifications({ url: config.listenDatabaseUrl || databaseUrl, db, logger });
  return {
    ...options,
    logger,
    db,
    notifications,
    registry: new TenantRegistry(db, logger, undefined, notifications),
    metrics: new Metrics({ perTenant: config.metricsPerTenant, version, pools: () => ({ main: db.pool }) }),
    signals: new CommitSignals(),
    listeners: new EventListeners(db, logger),
    queueLimit: new QueueLimit(db),
    stepCommits: new StepGroupCommit(db),
    lifecycle: new Lifecycle(),
  };
}

/** The state of the daemon between its start and its stop. */
export class Lifecycle {
  state: 'new' | 'starting' | 'running' | 'stopping' | 'stopped' = 'new';
  isMigrated = false;
  #drainEndsAt = 0;

  get isDraining(): boolean {
    return this.state === 'stopping' || this.state === 'stopped';
  }

  beginDrain(graceMs: number): void {
    this.state = 'stopping';
    this.#drainEndsAt = performance.now() + graceMs;
  }

  /** Undefined if there is no drain. */
  graceLeftMs(): number | undefined {
    return this.isDraining ? Math.max(0, this.#drainEndsAt - performance.now()) : undefined;
  }

  readiness(running: number): ReadinessState {
    const isStarting = this.state === 'starting';
    const graceLeftMs = Math.max(0, this.#drainEndsAt - performance.now());
    return {
      migrated: this.isMigrated,
      draining: this.isDraining,
      ...(this.state === 'stopping' && { drain: { running, grace_left_ms: graceLeftMs } }),
      checks: { workers: { ok: !isStarting, ...(isStarting && { detail: 'starting' }) } },
    };
  }
}
