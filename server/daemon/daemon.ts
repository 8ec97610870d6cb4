// The composition root: makes every part, starts them in order, stops them in reverse. Waits for a
// database that is away instead of dying, and answers /livez and /readyz meanwhile.
import { setTimeout as delay } from 'node:timers/promises';
import { DaemonRegistration } from '../daemons/registration.ts';
import { Database } from '../database/database.ts';
import { daemonJoined, keysChanged, Notifications, tenantsChanged } from '../database/notifications.ts';
import { ServerWatch } from '../database/server-watch.ts';
import { requireWritable } from '../database/write-check.ts';
import { EventStreams } from '../events/stream/streams.ts';
import type { ReadinessState } from '../http/resources/health.ts';
import type { HttpServer } from '../http/server.ts';
import { resumeDrainedJobs } from '../jobs/actions/resume-drained.ts';
import type { Enqueued, NewJob } from '../jobs/enqueue/enqueue.ts';
import { EnqueueGroupCommit } from '../jobs/enqueue/group-commit.ts';
import { QueueLimit } from '../jobs/enqueue/queue-limit.ts';
import type { Config } from '../kernel/config.ts';
import type { Logger } from '../kernel/logger.ts';
import type { Service } from '../kernel/service.ts';
import { OperationRunner } from '../maintenance/operation-runner.ts';
import type { RetentionHooks } from '../maintenance/retention.ts';
import { ClaimWaiters } from '../scheduler/claim-waiters.ts';
import { ScheduleTicker } from '../schedules/schedule-ticker.ts';
import { type DrainResult, Metrics } from '../stats/metrics.ts';
import type { NewApiKey } from '../tenants/api-keys/key.ts';
import { ensureAdminKey } from '../tenants/api-keys/key-store.ts';
import { KeyVerifier } from '../tenants/api-keys/verifier.ts';
import { migrateEverything } from '../tenants/migrate-all.ts';
import { TenantRegistry } from '../tenants/registry.ts';
import type { Tenant } from '../tenants/tenant.ts';
import type { HandlerRegistry } from '../worker/handlers/handler-registry.ts';
import { Heartbeat } from '../worker/heartbeat/heartbeat.ts';
import type { EventLoopMonitor } from '../worker/loop/event-loop-monitor.ts';
import { observeHeartbeat } from '../worker/loop/observe.ts';
import type { WorkerPool } from '../worker/loop/worker-pool.ts';
import { createEventConsumers, type EventConsumers } from './event-consumers.ts';
import { createHttp } from './http.ts';
import { createPeriodicTasks, type PeriodicTasks } from './periodic-tasks.ts';
import { untilDatabaseAnswers } from './prepare-database.ts';
import { createEventLoopMonitor, createWorkers } from './workers.ts';

// How long a stop waits for services that are still starting.
const startTimeoutMs = 2000;

export interface DaemonOptions {
  config: Config;
  /** `config.databaseUrl`, or that of the embedded Postgres. */
  databaseUrl: string;
  logger: Logger;
  handlers: HandlerRegistry;
  version: string;
  /** Called after a finished job became stale, and after it was deleted. */
  retentionHooks?: RetentionHooks;
}

export class Daemon {
  readonly config: Config;
  readonly db: Database;
  readonly registry: TenantRegistry;
  readonly workers: WorkerPool;
  readonly metrics: Metrics;
  /** Made at the first start on a database, when no ADMIN_API_KEY is set; shown once. */
  adminKey: NewApiKey | undefined;
  /** How the drain went; undefined before its end. */
  drainResult: DrainResult | undefined;
  #logger: Logger;
  #handlers: HandlerRegistry;
  #group: EnqueueGroupCommit;
  #notifications: Notifications;
  #waiters: ClaimWaiters;
  #heartbeat: Heartbeat;
  #keys: KeyVerifier;
  #schedules: ScheduleTicker;
  #http: HttpServer;
  #registration: DaemonRegistration;
  #operations: OperationRunner;
  #streams: EventStreams;
  #eventConsumers: EventConsumers;
  #loopMonitor: EventLoopMonitor;
  #periodic: PeriodicTasks;
  #serverWatch: ServerWatch;
  #started: Service[] = [];
  #starting: Promise<void> | undefined;
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
    this.#group = new EnqueueGroupCommit(this.db);
    this.#notifications = new Notifications({ url: config.listenDatabaseUrl || databaseUrl, db: this.db, logger });
    this.#waiters = new ClaimWaiters(config.pollIntervalSeconds * 1000, logger, {
      total: config.claimWaitersMax,
      perTenant: config.claimWaitersPerTenant,
      perKey: config.claimWaitersPerKey,
    });
    this.#heartbeat = new Heartbeat({
      url: databaseUrl,
      heartbeatSeconds: config.heartbeatIntervalSeconds,
      leaseSeconds: config.leaseSeconds,
      stallSeconds: config.loopStallSeconds,
      logger,
      listeners: observeHeartbeat(this.metrics, logger),
    });
    const queueLimit = new QueueLimit(this.db);
    this.#schedules = new ScheduleTicker({
      queueLimit,
      db: this.db,
      registry: this.registry,
      jobTypes: handlers,
      logger,
      onEnqueued: (tenant, enqueued) => this.wake(tenant, enqueued),
    });
    const parts = { config, db: this.db, registry: this.registry, logger, metrics: this.metrics, queueLimit };
    this.workers = createWorkers({
      ...parts,
      handlers,
      heartbeat: this.#heartbeat,
      onEnqueued: (tenant, enqueued) => this.wake(tenant, enqueued),
      onSettled: (tenant) => this.#tellAll(tenant.slug),
      onClaimed: (tenant) => {
        this.#loopMonitor.wake();
        this.#tellAll(tenant.slug);
      },
      onBegan: (type) => this.#loopMonitor.began(type),
      onRunnable: (tenant, elsewhere) => {
        this.#waiters.wake(tenant.schema);
        if (elsewhere) this.#notifications.notify(tenant.slug);
      },
    });
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
      wake: (slug) => this.#wakeSlug(slug),
    });
    this.#streams = this.#createStreams();
    this.#eventConsumers = createEventConsumers({
      ...parts,
      underLoad: () => this.workers.underLoad,
      ...(options.retentionHooks && { retentionHooks: options.retentionHooks }),
    });
    this.#loopMonitor = createEventLoopMonitor(this.workers, this.metrics, logger);
    this.#periodic = createPeriodicTasks({
      ...parts,
      workers: this.workers,
      schedules: this.#schedules,
      operations: this.#operations,
      followers: this.#eventConsumers.followers,
      retention: this.#eventConsumers.retention,
      wake: (slug) => this.#wakeSlug(slug),
      receivesNotifications: () => this.#notifications.connected,
    });
    this.#http = createHttp({
      ...parts,
      version: options.version,
      handlers,
      streams: this.#streams,
      keys: this.#keys,
      waiters: this.#waiters,
      eventConsumers: this.#eventConsumers,
      enqueueJobs: (tenant, jobs, actor) => this.enqueue(tenant, jobs, actor),
      wake: (tenant, enqueued) => this.wake(tenant, enqueued),
      wakeOperations: () => this.#operations.wake(),
      refreshSchedules: (tenant) => void this.#schedules.refresh(tenant).catch(() => {}),
      readiness: () => this.#readiness(),
      onRequest: () => this.#loopMonitor.wake(),
    });
    this.#serverWatch = new ServerWatch({
      servers: this.db.servers,
      logger,
      onMoved: () => {
        this.#notifications.reconnect();
        this.#heartbeat.reconnect();
      },
    });
    this.#notifications.hasListeners = () => !this.#registration.alone;
    this.registry.receivesNotifications = () => this.#notifications.connected;
    this.#notifications.onLost = () => {
      this.registry.refreshNow();
      this.#periodic.poller.wake();
    };
    this.#notifications.onEvents((slug) => this.#streams.wake(slug));
    this.#notifications.onWake((slug) => {
      if (slug === keysChanged || slug === undefined) this.#keys.forget();
      if (slug === keysChanged) return this.#streams.checkKeys();
      if (slug === tenantsChanged || slug === undefined) void this.registry.refresh().catch(() => {});
      if (slug === daemonJoined) this.#registration.joined();
      else if (slug !== tenantsChanged) this.#wakeHere(slug);
    });
  }

  get url(): string {
    return this.#http.url;
  }

  /** Listens at once; resolves when the database is migrated and jobs are claimed. */
  async start(): Promise<void> {
    if (this.#state !== 'new') return;
    this.#state = 'starting';
    await this.#startAll([this.#http]);
    await untilDatabaseAnswers(
      () => this.#prepareDatabase(),
      () => this.#state === 'starting',
      this.#logger,
    );
    for (const group of this.#services()) {
      if (this.#state !== 'starting') return;
      this.#starting = this.#startAll(group);
      await this.#starting;
    }
    if (this.#state === 'starting') this.#state = 'running';
    if (this.config.resumeDrainedJobs) await this.#resumeDrained();
    this.#logger.info({ tenants: this.registry.list().length, types: this.#handlers.types() }, 'daemon is running');
  }

  /** Drains, then stops everything. A second call shortens the grace to nothing. */
  stop(graceMs = this.config.shutdownGracePeriodSeconds * 1000): Promise<void> {
    if (this.#stopping !== undefined) this.workers.endGraceNow();
    this.#stopping ??= this.#stop(graceMs);
    return this.#stopping;
  }

  /** Puts jobs in and wakes whoever may run them. */
  async enqueue(tenant: Tenant, jobs: NewJob[], actor: string): Promise<Enqueued[]> {
    const enqueued = await this.#group.enqueue(tenant.schema, jobs, actor, (given) =>
      this.workers.reserve(tenant.slug, given),
    );
    if (enqueued.every((one) => one.kind === 'created' && one.started)) this.#tellAll(tenant.slug);
    else this.wake(tenant, enqueued);
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

  /** What shutdowns have paused goes on, as a bulk operation that a restart cannot lose. */
  async #resumeDrained(): Promise<void> {
    try {
      const count = await resumeDrainedJobs(this.db, this.registry.active(), this.config.workerId);
      if (count > 0) this.#logger.info({ jobs: count }, 'resuming jobs that a drain has paused');
      this.#operations.wake();
    } catch (error) {
      this.#logger.error({ err: error }, 'jobs that a drain has paused could not be resumed');
    }
  }

  /** Those of a group start side by side, when all before them have. */
  #services(): Service[][] {
    return [
      [
        ...(this.#handlers.threads === undefined ? [] : [this.#handlers.threads]),
        this.registry,
        this.#keys,
        this.#notifications,
        this.#heartbeat,
      ],
      [this.workers],
      [
        this.#waiters,
        this.#operations,
        this.#schedules,
        this.#streams,
        ...this.#eventConsumers.services,
        this.#loopMonitor,
        ...this.#periodic.services,
        this.#registration,
        this.#serverWatch,
        this.metrics,
      ],
    ];
  }

  #readiness(): ReadinessState {
    const starting = this.#state === 'starting';
    return {
      migrated: this.#migrated,
      draining: this.#state === 'stopping' || this.#state === 'stopped',
      ...(this.#state === 'stopping' && {
        drain: {
          running: this.workers.runningCount,
          grace_left_ms: Math.max(0, this.#drainEndsAt - performance.now()),
        },
      }),
      checks: { workers: { ok: !starting, ...(starting && { detail: 'starting' }) } },
    };
  }

  /** Side by side; those that have started are known as such even if one of them fails. */
  async #startAll(services: Service[]): Promise<void> {
    const results = await Promise.allSettled(services.map((service) => service.start()));
    this.#started.push(...services.filter((_, i) => results[i]?.status === 'fulfilled'));
    const failed = results.find((result) => result.status === 'rejected');
    if (failed !== undefined) throw failed.reason;
  }

  async #prepareDatabase(): Promise<void> {
    await requireWritable(this.db);
    await migrateEverything(this.db, { concurrency: this.config.migrateConcurrency, logger: this.#logger });
    this.adminKey = await ensureAdminKey(this.db, this.config);
    this.#migrated = true;
  }

  async #stop(graceMs: number): Promise<void> {
    this.#state = 'stopping';
    this.#drainEndsAt = performance.now() + graceMs;
    this.metrics.draining.set(1);
    this.#registration.wake();
    // First, so that readers go to another daemon while jobs here come to their end.
    await this.#streams.closeAll();
    const result = await this.workers.drain(graceMs);
    this.metrics.drains.inc({ result });
    this.drainResult = result;
    // A start that hangs in a dead connection is not waited for.
    await Promise.race([this.#starting?.catch(() => {}), delay(startTimeoutMs, undefined, { ref: false })]);
    for (const service of this.#started.reverse()) {
      await service.stop().catch((error) => this.#logger.error({ err: error, service: service.name }, 'stop failed'));
    }
    await this.workers.releaseHandlers();
    await this.db.close();
    this.#state = 'stopped';
    this.#logger.info({ result }, 'daemon stopped');
  }

  #createStreams(): EventStreams {
    const { config } = this;
    const options = {
      maxReaders: config.streamReadersMax,
      maxReadersPerTenant: config.streamReadersPerTenant,
      maxReadersPerKey: config.streamReadersPerKey,
      bufferBytes: config.streamBufferBytes,
      pollMs: config.streamPollSeconds * 1000,
      pingMs: config.streamPingSeconds * 1000,
      now: () => this.db.now(),
    };
    return new EventStreams(this.db, options, this.#logger);
  }

  #wakeSlug(slug: string): void {
    this.#wakeHere(slug);
    this.#notifications.notify(slug);
  }

  /** The tenant's own workers, and the remote ones that wait for work here; without a slug, all of them. */
  #wakeHere(slug: string | undefined): void {
    this.#periodic.poller.wake();
    this.workers.wake(slug);
    this.#notifyEventConsumers(slug);
    const tenants = slug === undefined ? this.registry.active() : [this.registry.bySlug(slug)];
    for (const tenant of tenants) if (tenant) this.#waiters.wake(tenant.schema);
  }

  /** Those who follow the events, here and in other daemons. */
  #tellAll(slug: string): void {
    this.#notifyEventConsumers(slug);
    this.#notifications.notifyEvents(slug);
  }

  /** Those who follow the events here. */
  #notifyEventConsumers(slug: string | undefined): void {
    this.#streams.wake(slug);
    if (slug !== undefined) this.#eventConsumers.wake(slug);
  }
}
