// The daemon's own workers: loops, slots and heartbeat, with the handlers that they run.
import type { Database } from '../database/database.ts';
import { claimJobs } from '../jobs/claim/claim.ts';
import type { Enqueued, NewJob } from '../jobs/enqueue/enqueue.ts';
import type { QueueLimit } from '../jobs/enqueue/queue-limit.ts';
import { withJobSpan } from '../jobs/model/trace.ts';
import type { Config } from '../kernel/config.ts';
import type { Logger } from '../kernel/logger.ts';
import { claimWithinCapacity } from '../scheduler/claim-within-capacity.ts';
import type { Metrics } from '../stats/metrics.ts';
import { hasCapacities } from '../tenants/capacities.ts';
import type { TenantRegistry } from '../tenants/registry.ts';
import type { Tenant } from '../tenants/tenant.ts';
import type { Attempt } from '../worker/attempt/attempt.ts';
import type { HandlerEnd, HandlerRun } from '../worker/attempt/handler-run.ts';
import { runHandler } from '../worker/attempt/run-handler.ts';
import type { StopReason } from '../worker/attempt/stop-reason.ts';
import type { HandlerRegistry } from '../worker/handlers/handler-registry.ts';
import type { Heartbeat } from '../worker/heartbeat/heartbeat.ts';
import { EventLoopMonitor } from '../worker/loop/event-loop-monitor.ts';
import { observeLoops } from '../worker/loop/observe.ts';
import { Slots } from '../worker/loop/slots.ts';
import { WorkerPool } from '../worker/loop/worker-pool.ts';

export interface WorkersOptions {
  config: Config;
  db: Database;
  registry: TenantRegistry;
  logger: Logger;
  metrics: Metrics;
  handlers: HandlerRegistry;
  heartbeat: Heartbeat;
  queueLimit: QueueLimit;
  /** A handler put jobs in. */
  onEnqueued(tenant: Tenant, enqueued: Enqueued[]): void;
  onSettled(tenant: Tenant): void;
  /** Jobs were claimed and will start. */
  onClaimed(tenant: Tenant): void;
  /** A handler of this type begins. */
  onBegan(type: string): void;
  /** A job may be claimed. `elsewhere`: not by this daemon, at least not now. */
  onRunnable(tenant: Tenant, elsewhere: boolean): void;
}

export function createWorkers(options: WorkersOptions): WorkerPool {
  const { config, db, logger, handlers } = options;
  return new WorkerPool(options.registry, {
    db,
    slots: new Slots(config.workerConcurrency, { reservedShare: config.workerReservedShare }),
    heartbeat: options.heartbeat,
    logger,
    workerId: config.workerId,
    leaseSeconds: config.leaseSeconds,
    cancelGraceMs: config.cancelGraceSeconds * 1000,
    tokenLimit: config.tokenLimit,
    timeoutSeconds: config.jobTimeoutSeconds,
    unresponsiveMaxMs: config.unresponsiveHandlerMaxSeconds * 1000,
    tenantConcurrency: config.tenantConcurrency,
    types: () => handlers.types(),
    claim: (tenant, request) =>
      hasCapacities(tenant.settings)
        ? claimWithinCapacity(db, tenant.schema, request)
        : claimJobs(db, tenant.schema, request),
    run: (tenant, attempt) => runAttempt(options, tenant, attempt),
    onRunnable: options.onRunnable,
    observe: observeLoops(options.metrics, logger, { finished: options.onSettled, claimed: options.onClaimed }),
  });
}

function runAttempt(options: WorkersOptions, tenant: Tenant, attempt: Attempt): Promise<HandlerEnd> {
  const definition = options.handlers.get(attempt.job.type);
  if (definition === undefined) throw new Error(`no handler for ${attempt.job.type}`);
  const run = new AttemptRun(options, tenant, attempt);
  options.onBegan(attempt.job.type);
  return withJobSpan(attempt.job, tenant.slug, () => runHandler(definition, run), failureOf);
}

/** Getters: a signal that nobody looks at is never made. */
class AttemptRun implements HandlerRun {
  readonly tenant: Tenant;
  readonly #options: WorkersOptions;
  readonly #attempt: Attempt;

  constructor(options: WorkersOptions, tenant: Tenant, attempt: Attempt) {
    this.tenant = tenant;
    this.#options = options;
    this.#attempt = attempt;
  }

  get db() {
    return this.#options.db;
  }

  get logger() {
    return this.#options.logger;
  }

  get config() {
    return this.#options.config;
  }

  get jobTypes() {
    return this.#options.handlers;
  }

  get job() {
    return this.#attempt.job;
  }

  get leaseId() {
    return this.#attempt.leaseId;
  }

  get signal() {
    return this.#attempt.signal;
  }

  get kill() {
    return this.#attempt.kill;
  }

  check(): void {
    this.#options.heartbeat.check();
  }

  stop(reason: StopReason): void {
    this.#attempt.stop(reason);
  }

  admit(children: NewJob[]): Promise<void> {
    const { registry, queueLimit } = this.#options;
    // The limit may have changed since the attempt began.
    return queueLimit.admit(registry.bySlug(this.tenant.slug) ?? this.tenant, children);
  }

  onEnqueued(enqueued: Enqueued): void {
    this.#options.onEnqueued(this.tenant, [enqueued]);
  }
}

function failureOf(end: HandlerEnd): string | undefined {
  return end.kind === 'failed' ? end.error.message : undefined;
}

export function createEventLoopMonitor(workers: WorkerPool, metrics: Metrics, logger: Logger): EventLoopMonitor {
  return new EventLoopMonitor({
    logger,
    runningTypes: () => workers.runningTypes,
    isRunning: () => workers.runningCount > 0,
    onDelay: (ms) => metrics.loopDelay.add(ms),
    onBlocked: (seconds) => {
      metrics.loopBlocked.inc();
      metrics.loopBlockedSeconds.inc(seconds);
    },
  });
}
