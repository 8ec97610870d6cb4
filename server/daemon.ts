// The composition root: makes every part, starts them in order, stops them in reverse. Waits for a
// database that is away instead of dying, and answers /livez and /readyz meanwhile.
import { setTimeout as delay } from 'node:timers/promises';
import { type Aftermath, createAftermath } from './daemon/aftermath.ts';
import { Database } from './database/database.ts';
import { migrateControl } from './database/migrate.ts';
import { migrateAllTenants } from './database/migrate-tenants.ts';
import { Notifications, tenantsChanged } from './database/notifications.ts';
import { EventStreams } from './events/stream.ts';
import { createApp } from './http/app.ts';
import type { RouteGroup } from './http/route.ts';
import { controlRoutes } from './http/routes/control.ts';
import { eventStreamRoutes } from './http/routes/event-stream.ts';
import { eventRoutes } from './http/routes/events.ts';
import { jobLogRoutes } from './http/routes/job-logs.ts';
import { schedulerRoutes } from './http/routes/scheduler.ts';
import { scheduleRoutes } from './http/routes/schedules.ts';
import { HttpServer } from './http/server.ts';
import { claimJobs } from './jobs/claim.ts';
import type { Enqueued, NewJob } from './jobs/enqueue.ts';
import { EnqueueGroup } from './jobs/enqueue-group.ts';
import { withJobSpan } from './jobs/trace.ts';
import type { Config } from './kernel/config.ts';
import { errorMessage } from './kernel/errors.ts';
import { Interval } from './kernel/interval.ts';
import type { Logger } from './kernel/logger.ts';
import type { Service } from './kernel/service.ts';
import { OperationRunner } from './maintenance/operation-runner.ts';
import { pollOnce } from './maintenance/poll.ts';
import { Sealer } from './maintenance/sealer.ts';
import { Sweeper } from './maintenance/sweeper.ts';
import { ClaimWaiters } from './scheduler/claim-waiters.ts';
import { claimWithinCapacity } from './scheduler/claim-within-capacity.ts';
import { ScheduleTicker } from './schedules/ticker.ts';
import { Metrics } from './stats/metrics.ts';
import { ensureAdminKey } from './tenants/api-keys/admin-key.ts';
import type { NewApiKey } from './tenants/api-keys/key.ts';
import { KeyVerifier } from './tenants/api-keys/verifier.ts';
import { hasCapacities } from './tenants/capacities.ts';
import { readAllTenants } from './tenants/read.ts';
import { TenantRegistry } from './tenants/registry.ts';
import type { Tenant } from './tenants/tenant.ts';
import type { HandlerEnd } from './worker/handler-run.ts';
import type { HandlerRegistry } from './worker/handlers.ts';
import { Heartbeat } from './worker/heartbeat.ts';
import { LoopWatch } from './worker/loop-watch.ts';
import { observeHeartbeat, observeLoops } from './worker/observe.ts';
import { WorkerPool } from './worker/pool.ts';
import { DaemonRegistration } from './worker/registration.ts';
import { runHandler } from './worker/run-handler.ts';
import { Slots } from './worker/slots.ts';
import type { StopReason } from './worker/stop-reason.ts';

export interface DaemonOptions {
  config: Config;
  /** `config.databaseUrl`, or that of the embedded Postgres. */
  databaseUrl: string;
  logger: Logger;
  handlers: HandlerRegistry;
  version: string;
}

export class Daemon {
  readonly config: Config;
  readonly db: Database;
  readonly registry: TenantRegistry;
  readonly workers: WorkerPool;
  readonly metrics: Metrics;
  /** Made at the first start on a database, when no ADMIN_API_KEY is set; shown once. */
  adminKey: NewApiKey | undefined;
  #logger: Logger;
  #handlers: HandlerRegistry;
  #group: EnqueueGroup;
  #notifications: Notifications;
  #waiters: ClaimWaiters;
  #heartbeat: Heartbeat;
  #keys: KeyVerifier;
  #schedules: ScheduleTicker;
  #http: HttpServer;
  #registration: DaemonRegistration;
  #operations: OperationRunner;
  #streams: EventStreams;
  #aftermath: Aftermath;
  #background: Service[];
  #started: Service[] = [];
  #migrated = false;
  #state: 'new' | 'starting' | 'running' | 'stopping' | 'stopped' = 'new';
  #drainEndsAt = 0;
  #stopping: Promise<void> | undefined;

  constructor(options: DaemonOptions) {
    const { config, databaseUrl, handlers } = options;
    const logger = options.logger.child({ worker: config.workerId });
    this.config = config;
    this.#logger = logger;
    this.#handlers = handlers;
    this.db = new Database({ url: databaseUrl, poolMax: config.databasePoolMax, logger });
    this.metrics = new Metrics({
      perTenant: config.metricsPerTenant,
      version: options.version,
      pools: () => ({ main: this.db.pool }),
    });
    this.registry = new TenantRegistry(this.db, logger);
    this.#keys = new KeyVerifier(this.db, config, logger);
    this.#group = new EnqueueGroup(this.db);
    this.#notifications = new Notifications({ url: config.listenDatabaseUrl || databaseUrl, db: this.db, logger });
    this.#waiters = new ClaimWaiters(config.pollIntervalSeconds * 1000, logger);
    this.#heartbeat = new Heartbeat({
      url: databaseUrl,
      heartbeatSeconds: config.heartbeatIntervalSeconds,
      leaseSeconds: config.leaseSeconds,
      stallSeconds: config.loopStallSeconds,
      logger,
      listeners: observeHeartbeat(this.metrics),
    });
    this.#schedules = new ScheduleTicker({
      db: this.db,
      registry: this.registry,
      jobTypes: handlers,
      logger,
      onEnqueued: (tenant, enqueued) => this.wake(tenant, enqueued),
    });
    this.workers = this.#createWorkers();
    this.#registration = new DaemonRegistration({
      db: this.db,
      logger,
      workerId: config.workerId,
      version: options.version,
      types: () => (config.workerConcurrency === 0 ? [] : handlers.types()),
      running: () => this.workers.runningCount,
      draining: () => this.#state === 'stopping' || this.#state === 'stopped',
    });
    this.#operations = new OperationRunner({
      db: this.db,
      registry: this.registry,
      logger,
      everyMs: config.sweepIntervalSeconds * 1000,
      wake: (slug) => this.#wakeSlug(slug),
    });
    this.#streams = this.#createStreams();
    this.#aftermath = createAftermath({ config, db: this.db, registry: this.registry, logger, metrics: this.metrics });
    this.#background = this.#createBackground();
    this.#http = this.#createHttp(options.version);
    this.registry.isTold = () => this.#notifications.connected;
    this.#notifications.onWake((slug) => {
      if (slug === tenantsChanged || slug === undefined) void this.registry.refresh().catch(() => {});
      if (slug !== tenantsChanged) this.#wakeHere(slug);
    });
  }

  get url(): string {
    return this.#http.url;
  }

  /** Listens at once; resolves when the database is migrated and jobs are claimed. */
  async start(): Promise<void> {
    if (this.#state !== 'new') return;
    this.#state = 'starting';
    await this.#startService(this.#http);
    await this.#untilDatabaseAnswers(() => this.#prepareDatabase());
    for (const service of this.#services()) {
      if (this.#state !== 'starting') return;
      await this.#startService(service);
    }
    if (this.#state === 'starting') this.#state = 'running';
    this.#logger.info({ tenants: this.registry.list().length, types: this.#handlers.types() }, 'daemon is running');
  }

  /** Drains, then stops everything. A second call shortens the grace to nothing. */
  stop(graceMs = this.config.shutdownGracePeriodSeconds * 1000): Promise<void> {
    if (this.#stopping !== undefined) this.workers.hurry();
    this.#stopping ??= this.#stop(graceMs);
    return this.#stopping;
  }

  /** Puts jobs in and wakes whoever may run them. */
  async enqueue(tenant: Tenant, jobs: NewJob[], actor: string): Promise<Enqueued[]> {
    const enqueued = await this.#group.enqueue(tenant.schema, jobs, actor);
    this.wake(tenant, enqueued);
    return enqueued;
  }

  /** There may be work for the tenant: here, or in another daemon. */
  wake(tenant: Tenant, enqueued: Enqueued[] = []): void {
    this.#wakeHere(tenant.slug);
    for (const { job } of enqueued) {
      if (job.status === 'PENDING') this.workers.dueIn(tenant.slug, Date.parse(job.runAt) - Date.parse(job.createdAt));
    }
    this.#notifications.notify(tenant.slug);
  }

  #services(): Service[] {
    return [
      ...(this.#handlers.threads === undefined ? [] : [this.#handlers.threads]),
      this.registry,
      this.#keys,
      this.metrics,
      this.#notifications,
      this.#heartbeat,
      this.workers,
      this.#waiters,
      this.#registration,
      this.#createLoopWatch(),
      this.#operations,
      this.#schedules,
      this.#streams,
      ...this.#aftermath.services,
      ...this.#background,
    ];
  }

  async #startService(service: Service): Promise<void> {
    await service.start();
    this.#started.push(service);
  }

  async #prepareDatabase(): Promise<void> {
    await migrateControl(this.db, this.#logger);
    const tenants = await readAllTenants(this.db);
    const schemas = tenants.filter((t) => t.status !== 'DELETING').map((t) => t.schemaName);
    await migrateAllTenants(this.db, schemas, { concurrency: this.config.migrateConcurrency, logger: this.#logger });
    this.adminKey = await ensureAdminKey(this.db, this.config);
    this.#migrated = true;
  }

  /** A wrong or unreachable database is said plainly, again and again, and waited for. */
  async #untilDatabaseAnswers(prepare: () => Promise<void>): Promise<void> {
    for (let attempt = 1; this.#state === 'starting'; attempt++) {
      try {
        return await prepare();
      } catch (error) {
        if (!isUnavailable(error)) throw error;
        const waitMs = Math.min(500 * 2 ** Math.min(attempt, 6), 15_000) * (0.75 + Math.random() / 4);
        this.#logger.error(
          { reason: errorMessage(error), attempt, retryInMs: Math.round(waitMs) },
          'database cannot be used yet; check DATABASE_URL',
        );
        const until = performance.now() + waitMs;
        while (performance.now() < until && this.#state === 'starting') await delay(50);
      }
    }
  }

  async #stop(graceMs: number): Promise<void> {
    this.#state = 'stopping';
    this.#drainEndsAt = Date.now() + graceMs;
    this.metrics.draining.set(1);
    this.#registration.wake();
    // First, so that readers go to another daemon while jobs here come to their end.
    await this.#streams.closeAll();
    const result = await this.workers.drain(graceMs);
    this.metrics.drains.inc({ result });
    for (const service of this.#started.reverse()) {
      await service.stop().catch((error) => this.#logger.error({ err: error, service: service.name }, 'stop failed'));
    }
    await this.db.close();
    this.#state = 'stopped';
    this.#logger.info({ result }, 'daemon stopped');
  }

  #createWorkers(): WorkerPool {
    const { config } = this;
    return new WorkerPool(this.registry, {
      db: this.db,
      slots: new Slots(config.workerConcurrency),
      heartbeat: this.#heartbeat,
      logger: this.#logger,
      workerId: config.workerId,
      leaseSeconds: config.leaseSeconds,
      cancelGraceMs: config.cancelGraceSeconds * 1000,
      tenantConcurrency: config.tenantConcurrency,
      types: () => this.#handlers.types(),
      claim: (tenant, request) =>
        hasCapacities(tenant.settings)
          ? claimWithinCapacity(this.db, tenant.schema, request)
          : claimJobs(this.db, tenant.schema, request),
      run: (tenant, attempt) => {
        const definition = this.#handlers.get(attempt.job.type);
        if (definition === undefined) throw new Error(`no handler for ${attempt.job.type}`);
        const run = {
          db: this.db,
          tenant,
          job: attempt.job,
          leaseId: attempt.leaseId,
          logger: this.#logger,
          config,
          // Getters: a signal that nobody looks at is never made.
          get signal() {
            return attempt.signal;
          },
          get kill() {
            return attempt.kill;
          },
          stop: (reason: StopReason) => attempt.stop(reason),
          jobTypes: this.#handlers,
          onEnqueued: (enqueued: Enqueued) => this.wake(tenant, [enqueued]),
        };
        return withJobSpan(attempt.job, tenant.slug, () => runHandler(definition, run), failureOf);
      },
      observe: observeLoops(this.metrics, this.#logger, (tenant) => this.#aftermath.wake(tenant.slug)),
    });
  }

  /** All periodic tasks, with their intervals. */
  #createBackground(): Service[] {
    const { config, db, registry } = this;
    const sweeper = new Sweeper({
      db,
      registry,
      logger: this.#logger,
      actor: `sweeper:${config.workerId}`,
      staleLeaseGraceSeconds: config.staleLeaseGraceSeconds,
      orphanAfterSeconds: config.orphanAfterSeconds,
      tokenLimit: config.tokenLimit,
      wake: (slug) => this.#wakeSlug(slug),
      observe: {
        swept: (tenant, kind, count) => {
          this.metrics.sweeps.add(tenant.slug, kind);
          this.metrics.swept.add(tenant.slug, kind, count);
          if (kind === 'leases') this.metrics.zombies.add(tenant.slug, count);
        },
      },
    });
    const every = (name: string, seconds: number, run: () => Promise<unknown>) =>
      new Interval(name, seconds * 1000, run, this.#logger);
    return [
      every('poll', config.pollIntervalSeconds, () => pollOnce(db, registry, this.workers, this.#schedules)),
      new Sealer({ db, registry, logger: this.#logger }),
      every('sweep', config.sweepIntervalSeconds, () => sweeper.runOnce()),
    ];
  }

  #createStreams(): EventStreams {
    const { config } = this;
    const options = {
      mostReaders: config.streamReadersMax,
      bufferBytes: config.streamBufferBytes,
      pollMs: config.streamPollSeconds * 1000,
      pingMs: config.streamPingSeconds * 1000,
    };
    return new EventStreams(this.db, options, this.#logger);
  }

  #createLoopWatch(): LoopWatch {
    return new LoopWatch({
      logger: this.#logger,
      runningTypes: () => this.workers.runningTypes,
      onBlocked: (seconds) => {
        this.metrics.loopBlocked.inc();
        this.metrics.loopBlockedSeconds.inc(seconds);
      },
    });
  }

  #wakeSlug(slug: string): void {
    this.#wakeHere(slug);
    this.#notifications.notify(slug);
  }

  /** The tenant's own workers, and the remote ones that wait for work here; without a slug, all of them. */
  #wakeHere(slug: string | undefined): void {
    this.workers.wake(slug);
    this.#streams.wake(slug);
    if (slug !== undefined) this.#aftermath.wake(slug);
    const tenants = slug === undefined ? this.registry.active() : [this.registry.bySlug(slug)];
    for (const tenant of tenants) if (tenant) this.#waiters.wake(tenant.schema);
  }

  #createHttp(version: string): HttpServer {
    const routes: RouteGroup[] = [
      eventRoutes({ db: this.db }),
      eventStreamRoutes({ db: this.db, streams: this.#streams, keys: this.#keys, registry: this.registry }),
      ...controlRoutes({
        db: this.db,
        config: this.config,
        jobTypes: this.#handlers,
        enqueueJobs: (tenant, jobs, actor) => this.enqueue(tenant, jobs, actor),
        wake: (tenant, enqueued) => this.wake(tenant, enqueued),
        wakeOperations: () => this.#operations.wake(),
      }),
      ...schedulerRoutes({
        db: this.db,
        config: this.config,
        waiters: this.#waiters,
        wake: (tenant) => this.wake(tenant),
      }),
      jobLogRoutes({ db: this.db }),
      scheduleRoutes({
        db: this.db,
        jobTypes: this.#handlers,
        onChange: (tenant) => void this.#schedules.look(tenant).catch(() => {}),
        onEnqueued: (tenant, enqueued) => this.wake(tenant, enqueued),
      }),
      ...this.#aftermath.routes,
    ];
    const app = createApp({
      config: this.config,
      db: this.db,
      logger: this.#logger,
      registry: this.registry,
      keys: this.#keys,
      metricsRegistry: this.metrics.registry,
      readiness: () => ({
        migrated: this.#migrated,
        draining: this.#state === 'stopping' || this.#state === 'stopped',
        ...(this.#state === 'stopping' && {
          drain: { running: this.workers.runningCount, grace_left_ms: Math.max(0, this.#drainEndsAt - Date.now()) },
        }),
        checks: {
          workers: { ok: this.#state !== 'starting', ...(this.#state === 'starting' && { detail: 'starting' }) },
        },
      }),
      routes,
      version,
    });
    return new HttpServer(app, { host: this.config.host, port: this.config.port }, this.#logger);
  }
}

/** Errors of the way to the database, not of what we asked it. */
function isUnavailable(error: unknown): boolean {
  const code = error instanceof Error && 'code' in error ? String(error.code) : '';
  // 28*: wrong user or password, 3D000: no such database, 53*/57P*: too busy, starting or stopping.
  return /^(E[A-Z]+|08|28|3D000|53|57P)/.test(code) || /timeout|terminated|ECONN/i.test(errorMessage(error));
}

function failureOf(end: HandlerEnd): string | undefined {
  return end.kind === 'failed' ? end.error.message : undefined;
}
