// The daemon's HTTP side: every group of routes with what it needs. Made at the first request: a hundred
// routes take longer than all the rest of a start.
import type { Database } from '../database/database.ts';
import type { EventStreams } from '../events/stream/streams.ts';
import { createApp } from '../http/app.ts';
import { eventStreamRoutes } from '../http/resources/event-stream.ts';
import { eventRoutes } from '../http/resources/events.ts';
import type { ReadinessState } from '../http/resources/health.ts';
import { jobLogRoutes } from '../http/resources/job-logs.ts';
import { schedulerRoutes } from '../http/resources/scheduler.ts';
import { scheduleRoutes } from '../http/resources/schedules.ts';
import type { RouteGroup } from '../http/route.ts';
import { controlRoutes } from '../http/routes.ts';
import { HttpServer } from '../http/server.ts';
import type { Enqueued, NewJob } from '../jobs/enqueue/enqueue.ts';
import type { QueueLimit } from '../jobs/enqueue/queue-limit.ts';
import type { Config } from '../kernel/config.ts';
import type { Logger } from '../kernel/logger.ts';
import type { ClaimWaiters } from '../scheduler/claim-waiters.ts';
import type { Metrics } from '../stats/metrics.ts';
import type { KeyVerifier } from '../tenants/api-keys/verifier.ts';
import type { TenantRegistry } from '../tenants/registry.ts';
import type { Tenant } from '../tenants/tenant.ts';
import type { HandlerRegistry } from '../worker/handlers/handler-registry.ts';
import type { EventConsumers } from './event-consumers.ts';

export interface HttpParts {
  config: Config;
  version: string;
  db: Database;
  logger: Logger;
  registry: TenantRegistry;
  keys: KeyVerifier;
  metrics: Metrics;
  handlers: HandlerRegistry;
  streams: EventStreams;
  waiters: ClaimWaiters;
  queueLimit: QueueLimit;
  eventConsumers: EventConsumers;
  enqueueJobs(tenant: Tenant, jobs: NewJob[], actor: string): Promise<Enqueued[]>;
  wake(tenant: Tenant, enqueued?: Enqueued[]): void;
  wakeOperations(): void;
  refreshSchedules(tenant: Tenant): void;
  readiness(): ReadinessState;
  onRequest(): void;
}

export function createHttp(parts: HttpParts): HttpServer {
  const { config, db, logger, registry, keys, readiness, version, onRequest } = parts;
  const metricsRegistry = parts.metrics.registry;
  const create = () =>
    createApp({ config, db, logger, registry, keys, metricsRegistry, readiness, routes: routesOf(parts), version });
  return new HttpServer(create, { host: config.host, port: config.port, onRequest }, logger);
}

function routesOf(parts: HttpParts): RouteGroup[] {
  const {
    config,
    db,
    logger,
    handlers,
    streams,
    keys,
    registry,
    waiters,
    enqueueJobs,
    wake,
    wakeOperations,
    queueLimit,
  } = parts;
  return [
    eventRoutes({ db }),
    eventStreamRoutes({ db, streams, keys, registry }),
    ...controlRoutes({ db, config, jobTypes: handlers, enqueueJobs, wake, wakeOperations, queueLimit }),
    ...schedulerRoutes({ db, config, waiters, wake, logger, queueLimit }),
    jobLogRoutes({ db }),
    scheduleRoutes({ db, jobTypes: handlers, queueLimit, onChange: parts.refreshSchedules, onEnqueued: wake }),
    ...parts.eventConsumers.routes,
  ];
}
