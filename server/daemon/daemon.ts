// The life of a daemon: starts its services in order, drains, and stops them in reverse. It waits for an unavailable
// database instead of exiting, and answers /livez and /readyz meanwhile.
import { setTimeout as delay } from 'node:timers/promises';
import type { RequestHandler } from 'express';
import type { Database } from '../database/database.ts';
import { isOutage } from '../database/servers/availability.ts';
import { requireWritable } from '../database/servers/write-check.ts';
import type { Access } from '../http/request/host-access.ts';
import { mountable } from '../http/server.ts';
import { resumeDrainedJobs } from '../jobs/actions/bulk-operations.ts';
import type { CommitSignals } from '../jobs/commit-signals.ts';
import type { Enqueued, NewJob } from '../jobs/enqueue/enqueue.ts';
import { publishJobTypes } from '../jobs/enqueue/job-types.ts';
import type { Config } from '../kernel/config.ts';
import { errorMessage } from '../kernel/errors.ts';
import type { Logger } from '../kernel/logger.ts';
import type { Service } from '../kernel/service.ts';
import type { DrainResult, Metrics } from '../stats/metrics.ts';
import type { NewApiKey } from '../tenants/api-keys/key.ts';
import { ensureAdminKey } from '../tenants/api-keys/key-store.ts';
import { migrateEverything } from '../tenants/migrate-all.ts';
import type { TenantRegistry } from '../tenants/registry.ts';
import type { Tenant } from '../tenants/tenant.ts';
import type { WorkerPool } from '../worker/loop/worker-pool.ts';
import { createContext, type DaemonContext, type DaemonOptions, type Lifecycle } from './daemon-context.ts';
import { createServices, type Services } from './services.ts';

// The longest time that a stop waits for services that are still starting.
const startTimeoutMs = 2000;

export class Daemon {
  readonly config: Config;
  readonly db: Database;
  readonly registry: TenantRegistry;
  readonly metrics: Metrics;
  readonly signals: CommitSignals;
  readonly workers: WorkerPool;
  /** The operator key, created at the first start on a database if ADMIN_API_KEY is not set; shown once. */
  adminKey: NewApiKey | undefined;
  /** The result of the drain; undefined before its end. */
  drainResult: DrainResult | undefined;
  /** Used by the program that embeds the daemon. */
  readonly context: DaemonContext;
  readonly #lifecycle: Lifecycle;
  readonly #services: Services;
  readonly #started: Service[] = [];
  #starting: Promise<void> | undefined;
  #stopping: Promise<void> | undefined;

  constructor(options: DaemonOptions) {
    this.context = createContext(options);
    this.#services = createServices(this.context);
    this.#lifecycle = this.context.lifecycle;
    this.config = this.context.config;
    this.db = this.context.db;
    this.registry = this.context.registry;
    this.metrics = this.context.metrics;
    this.signals = this.context.signals;
    this.workers = this.#services.workers;
  }

  get url(): string {
    return this.#services.http.url;
  }

  /** Listens at once; resolves when the database is migrated and jobs are claimed. */
  async start(): Promise<void> {
    const lifecycle = this.#lifecycle;
    if (lifecycle.state !== 'new') return;
    const { logger, handlers } = this.context;
    lifecycle.state = 'starting';
    if (!this.context.embedded) await this.#startAll([this.#services.http]);
    await untilDatabaseAnswers(
      () => this.#prepareDatabase(),
      () => this.#isStarting,
      logger,
    );
    for (const group of this.#services.inOrder) {
      if (!this.#isStarting) return;
      this.#starting = this.#startAll(group);
      await this.#starting;
    }
    if (this.#isStarting) lifecycle.state = 'running';
    if (this.config.resumeDrainedJobs) await this.#resumeDrained();
    logger.info({ tenants: this.registry.list().length, types: handlers.types() }, 'daemon is running');
  }

  /** Drains, then stops everything. A second call ends the grace period. */
  stop(graceMs = this.config.shutdownGracePeriodSeconds * 1000): Promise<void> {
    if (this.#stopping !== undefined) this.workers.endGraceNow();
    this.#stopping ??= this.#stop(graceMs);
    return this.#stopping;
  }

  enqueue(tenant: Tenant, jobs: NewJob[], actor: string): Promise<Enqueued[]> {
    return this.#services.enqueuer.enqueue(tenant, jobs, actor);
  }

  /** An event from outside was committed and must be delivered. */
  onEventReceived(tenant: Tenant): void {
    this.signals.eventReceived(tenant);
  }

  /** The API and the dashboard, for a server of the program that embeds the daemon. */
  router(access: Access = {}): RequestHandler {
    return mountable(() => this.#services.createApi(access));
  }

  get #isStarting(): boolean {
    return this.#lifecycle.state === 'starting';
  }

  async #prepareDatabase(): Promise<void> {
    const { db, config } = this;
    await requireWritable(db);
    await migrateEverything(db, { concurrency: config.migrateConcurrency, logger: this.context.logger });
    if (!this.context.embedded) this.adminKey = await ensureAdminKey(db, config);
    if (config.workerConcurrency > 0) await publishJobTypes(db, this.context.handlers);
    this.#lifecycle.isMigrated = true;
  }

  /** Services that have started are stopped later, even if another one of their group fails to start. */
  async #startAll(services: Service[]): Promise<void> {
    const results = await Promise.allSettled(services.map((service) => service.start()));
    this.#started.push(...services.filter((_, i) => results[i]?.status === 'fulfilled'));
    const failed = results.find((result) => result.status === 'rejected');
    if (failed !== undefined) throw failed.reason;
  }

  /** Resumes the jobs that drains have paused, as a bulk operation that survives a restart. */
  async #resumeDrained(): Promise<void> {
    const { logger } = this.context;
    try {
      let jobs = 0;
      for (const tenant of this.registry.active()) {
        const count = await resumeDrainedJobs(this.db.forTenant(tenant.schema), [tenant], this.config.workerId);
        if (count > 0) this.#services.tasks.operations.runNow(tenant.slug);
        jobs += count;
      }
      if (jobs > 0) logger.info({ jobs }, 'resuming jobs that a drain has paused');
    } catch (error) {
      logger.error({ err: error }, 'jobs that a drain has paused could not be resumed');
    }
  }

  async #stop(graceMs: number): Promise<void> {
    const { logger } = this.context;
    this.#lifecycle.beginDrain(graceMs);
    this.metrics.draining.set(1);
    this.#services.registration.wake();
    // Closed first, so that readers reconnect to another daemon while jobs here finish.
    await this.#services.streams.closeAll();
    const result = await this.workers.drain(graceMs);
    this.metrics.drains.inc({ result });
    this.drainResult = result;
    // A start that hangs in a dead connection is not awaited.
    await Promise.race([this.#starting?.catch(() => {}), delay(startTimeoutMs, undefined, { ref: false })]);
    for (const service of this.#started.reverse()) {
      await service.stop().catch((error) => logger.error({ err: error, service: service.name }, 'stop failed'));
    }
    await this.workers.releaseHandlers();
    await this.db.close();
    this.#lifecycle.state = 'stopped';
    logger.info({ result }, 'daemon stopped');
  }
}

/** Retries `prepare` while the database is unreachable or unusable, as long as `wanted`. */
async function untilDatabaseAnswers(
  prepare: () => Promise<void>,
  wanted: () => boolean,
  logger: Logger,
): Promise<void> {
  let reported = '';
  for (let attempt = 1; wanted(); attempt++) {
    try {
      return await prepare();
    } catch (error) {
      if (!isUnavailable(error)) throw error;
      const waitMs = Math.min(500 * 2 ** Math.min(attempt, 6), 15_000) * (0.75 + Math.random() / 4);
      // Logged once for each reason; Availability logs an unreachable database.
      if (!isOutage(error) && errorMessage(error) !== reported) {
        reported = errorMessage(error);
        logger.error({ reason: reported }, 'database cannot be used yet; check DATABASE_URL');
      }
      const until = performance.now() + waitMs;
      while (performance.now() < until && wanted()) await delay(50);
    }
  }
}

/** Errors of the connection, not of a statement. */
function isUnavailable(error: unknown): boolean {
  const code = error instanceof Error && 'code' in error ? String(error.code) : '';
  // 28*: wrong user or password, 3D000: no such database, 53*/57P*: too busy, starting or stopping, 58*: its disk fails.
  // 25006: a standby, or read-only. 55P03: another daemon migrates.
  return (
    isOutage(error) ||
    /^(E[A-Z]+|08|25006|28|3D000|53|55P03|57P|58)/.test(code) ||
    /timeout|terminated|ECONN/i.test(errorMessage(error))
  );
}
