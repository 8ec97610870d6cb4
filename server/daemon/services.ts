// Creates every part of a daemon in the order of their dependencies, subscribes them to the signals after commits, and
// lists them in the order in which they start.
import type { Express } from 'express';
import { DaemonRegistration } from '../daemon-registry/registration.ts';
import { keysChanged, tenantsChanged } from '../database/notifications/notifications.ts';
import { ServerMonitor } from '../database/servers/availability.ts';
import { EventStreams } from '../events/stream/streams.ts';
import type { Access } from '../http/request/host-access.ts';
import { HttpServer } from '../http/server.ts';
import { renewal } from '../jobs/claim/lease.ts';
import { EnqueueGroupCommit } from '../jobs/enqueue/group-commit.ts';
import type { DependencyFollower } from '../jobs/flows/follow-dependencies.ts';
import { notifyReceived } from '../jobs/received/receive-event.ts';
import type { Service } from '../kernel/service.ts';
import type { PerTenantTasks } from '../maintenance/per-tenant-task.ts';
import { createPeriodicTasks } from '../maintenance/periodic-tasks.ts';
import type { TenantPoller } from '../maintenance/tenant-poller.ts';
import { ClaimWaiters } from '../scheduler/claim-waiters.ts';
import { ScheduleTicker } from '../schedules/schedule-ticker.ts';
import { KeyVerifier } from '../tenants/api-keys/verifier.ts';
import { Heartbeat } from '../worker/heartbeat/heartbeat.ts';
import { observeHeartbeat } from '../worker/loop/loop-observer.ts';
import { WorkerPool } from '../worker/loop/worker-pool.ts';
import type { ApiParts } from './create-api.ts';
import type { DaemonContext } from './daemon-context.ts';

export interface Services {
  http: HttpServer;
  createApi: CreateApi;
  workers: WorkerPool;
  enqueuer: EnqueueGroupCommit;
  streams: EventStreams;
  tasks: PerTenantTasks;
  registration: DaemonRegistration;
  /** Services of a group start concurrently, after all groups before it. They stop in reverse order. */
  inOrder: Service[][];
}

export function createServices(context: DaemonContext): Services {
  const { config, db, registry, logger, metrics, handlers, notifications, signals, queueLimit } = context;
  const keys = new KeyVerifier(db, config, logger);
  const heartbeat = createHeartbeat(context);
  const workers = new WorkerPool({ ...context, heartbeat });
  const enqueuer = new EnqueueGroupCommit(db, { signals, workers });
  const waiters = createClaimWaiters(context);
  const streams = createStreams(context);
  const schedules = new ScheduleTicker({
    queueLimit,
    db,
    registry,
    jobTypes: handlers,
    logger,
    signals,
  });
  const { poller, tasks, dependencies, ...periodic } = createPeriodicTasks({ ...context, workers, schedules });
  const registration = new DaemonRegistration({
    db,
    logger,
    workerId: config.workerId,
    version: context.version,
    types: () => (config.workerConcurrency === 0 ? [] : handlers.types()),
    running: () => workers.runningCount,
    draining: () => context.lifecycle.isDraining,
    graceLeftMs: () => context.lifecycle.graceLeftMs(),
    onPeers: (live, able) => {
      notifications.setPeers(live > 0);
      periodic.setPeers(live);
      workers.setPeers(able);
    },
  });
  const serverMonitor = new ServerMonitor({
    servers: db.servers,
    logger,
    onServerChanged: () => {
      notifications.reconnect();
      heartbeat.reconnect();
    },
  });
  const parts = { workers, enqueuer, streams, keys, waiters, schedules, tasks };
  const { http, createApi } = createHttp(context, parts);
  notifications.onDaemonJoined(() => workers.onDaemonJoined());
  subscribe(context, { workers, waiters, streams, tasks, poller, dependencies });
  receiveNotifications(context, { keys, streams, poller, workers, tasks, dependencies });
  return {
    http,
    createApi,
    workers,
    enqueuer,
    streams,
    tasks,
    registration,
    // Registered before the first claim: a daemon that does not know that it is alone claims a few jobs only.
    inOrder: [
      [
        ...(handlers.threads === undefined ? [] : [handlers.threads]),
        registry,
        keys,
        notifications,
        heartbeat,
        registration,
      ],
      [workers],
      [waiters, schedules, streams, workers.monitor, ...periodic.services, serverMonitor, metrics],
    ],
  };
}

interface Subscribers {
  workers: WorkerPool;
  waiters: ClaimWaiters;
  streams: EventStreams;
  tasks: PerTenantTasks;
  poller: TenantPoller;
  dependencies: DependencyFollower;
}

/** Subscribes streams, statistics, webhooks, workers and other daemons to the signals after a commit. */
function subscribe(context: DaemonContext, subscribers: Subscribers): void {
  const { db, signals, notifications, listeners, lifecycle, logger } = context;
  const { workers, waiters, streams, tasks, poller, dependencies } = subscribers;
  signals.onEventsWritten(({ slug }, reach) => {
    streams.wake(slug);
    tasks.statistics.wake(slug);
    tasks.webhooks.wake(slug);
    if (listeners.isUsed) tasks.listeners.wake(slug);
    if (dependencies.isActive(slug)) tasks.dependencies.wake(slug);
    if (reach === 'all') notifications.notifyEvents(slug);
  });
  signals.onDependenciesWritten(({ slug }) => tasks.dependencies.wake(slug));
  signals.onEventReceived((tenant) => {
    if (lifecycle.state === 'running') return tasks.received.runNow(tenant.slug);
    // An instance that was not started runs no tasks, so running daemons deliver the event.
    void notifyReceived(db, tenant).catch((error: unknown) =>
      logger.debug({ err: error, tenant: tenant.slug }, 'received event was not announced; a poll will find it'),
    );
  });
  signals.onWorkAvailable(({ slug, schema }, { reach, fromPeer, dueInMs, isLater }) => {
    if (reach !== 'daemon') notifications.notify(slug);
    if (reach === 'peers') return;
    if (dueInMs !== undefined) workers.dueIn(slug, dueInMs);
    poller.wake();
    // A claim after every enqueue of a scheduled job would cost as much as the enqueue, and find nothing.
    if (isLater) return;
    if (fromPeer) workers.wakeByPeer(slug);
    else workers.wake(slug);
    waiters.wake(schema);
  });
}

/**
 * Handles notifications of other daemons. Their own statistics and webhooks read the events; here only the streams do.
 */
function receiveNotifications(
  { notifications, registry, signals, listeners }: DaemonContext,
  { keys, streams, poller, workers, tasks, dependencies }: Omit<Subscribers, 'waiters'> & { keys: KeyVerifier },
): void {
  notifications.onLost(() => {
    registry.refreshNow();
    poller.wake();
  });
  notifications.onEvents((slug) => {
    streams.wake(slug);
    poller.wake();
    if (slug !== undefined && listeners.isUsed) tasks.listeners.wake(slug);
    if (slug !== undefined && dependencies.isActive(slug)) tasks.dependencies.wake(slug);
  });
  // Jobs from a transaction of their caller.
  notifications.onDue((slug) => {
    workers.dueIn(slug, 0);
    tasks.dependencies.wake(slug);
  });
  notifications.onReceived((slug) => tasks.received.runNow(slug));
  // Without a slug, any notification may have been missed.
  notifications.onWake((slug) => {
    if (slug === keysChanged || slug === undefined) keys.forget();
    if (slug === keysChanged) return streams.checkKeys();
    if (slug === tenantsChanged || slug === undefined) void registry.refresh().catch(() => {});
    if (slug === tenantsChanged) return;
    const tenants = slug === undefined ? registry.active() : [registry.bySlug(slug)];
    for (const tenant of tenants) {
      if (tenant === undefined) continue;
      signals.eventsWritten(tenant, 'daemon');
      signals.workAvailable(tenant, { reach: 'daemon', fromPeer: slug !== undefined });
    }
  });
}

function createHeartbeat({ config, databaseUrl, db, logger, metrics }: DaemonContext): Heartbeat {
  return new Heartbeat({
    url: databaseUrl,
    heartbeatSeconds: config.heartbeatIntervalSeconds,
    leaseSeconds: config.leaseSeconds,
    stallSeconds: config.loopStallSeconds,
    logger,
    listeners: observeHeartbeat(metrics, logger),
    roleOf: (schema) => db.tenantRoles?.of(schema),
    renewalOnNode: (schema) => (db.sharded ? db.onNode(schema, renewal.text(schema)) : undefined),
  });
}

function createClaimWaiters({ config, logger }: DaemonContext): ClaimWaiters {
  return new ClaimWaiters(config.pollIntervalSeconds * 1000, logger, {
    total: config.claimWaitersMax,
    perTenant: config.claimWaitersPerTenant,
    perKey: config.claimWaitersPerKey,
  });
}

function createStreams({ config, db, logger }: DaemonContext): EventStreams {
  const options = {
    maxReaders: config.streamReadersMax,
    maxReadersPerTenant: config.streamReadersPerTenant,
    maxReadersPerKey: config.streamReadersPerKey,
    bufferBytes: config.streamBufferBytes,
    pollMs: config.streamPollSeconds * 1000,
    pingMs: config.streamPingSeconds * 1000,
    now: () => db.now(),
  };
  return new EventStreams(db, options, logger);
}

// The daemon's HTTP server. It listens before the API is loaded by the first request.

type CreateApi = (access: Access) => Promise<Express>;

function createHttp(context: DaemonContext, parts: ApiParts): { http: HttpServer; createApi: CreateApi } {
  const { config, logger } = context;
  const createApi = async (access: Access) => {
    const { loadApi } = await import('./load-api.ts');
    return (await loadApi()).createApi(context, parts, access);
  };
  const onRequest = () => parts.workers.monitor.wake();
  const address = { host: config.host, port: config.port };
  const http = new HttpServer(() => createApi({}), { ...address, onRequest }, logger);
  return { http, createApi };
}
