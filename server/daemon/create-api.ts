// The API of a daemon: every group of routes with its dependencies. The first request loads it (load-api.ts), because
// its packages and a hundred routes take more time and memory than the rest of an idle daemon.
import type { Express, Router } from 'express';
import type { EventStreams } from '../events/stream/streams.ts';
import { createApp } from '../http/app.ts';
import { dashboardPages } from '../http/dashboard.ts';
import { questionPages } from '../http/question-form/question-pages.ts';
import type { Access } from '../http/request/host-access.ts';
import { attentionRoutes } from '../http/resources/attention.ts';
import { budgetRoutes } from '../http/resources/budgets.ts';
import { eventRoutes, eventStreamRoutes, receivedEventRoutes } from '../http/resources/events.ts';
import { adminWorkerRoutes } from '../http/resources/health.ts';
import type { JobRouteDependencies } from '../http/resources/jobs/create-jobs.ts';
import { graphRoutes } from '../http/resources/jobs/graph.ts';
import { jobActionRoutes } from '../http/resources/jobs/job-actions.ts';
import { jobLogRoutes } from '../http/resources/jobs/job-logs.ts';
import { jobRoutes } from '../http/resources/jobs/jobs.ts';
import { laneRoutes } from '../http/resources/jobs/lanes.ts';
import { type OperationDependencies, operationRoutes } from '../http/resources/jobs/operations.ts';
import { targetRoutes } from '../http/resources/jobs/targets.ts';
import { whyRoutes } from '../http/resources/jobs/why.ts';
import { limitRoutes } from '../http/resources/limits.ts';
import { questionLinkRoutes } from '../http/resources/question-links.ts';
import { questionRoutes } from '../http/resources/questions.ts';
import { schedulerCallRoutes } from '../http/resources/scheduler/scheduler-calls.ts';
import { type SchedulerDependencies, schedulerJobRoutes } from '../http/resources/scheduler/scheduler-jobs.ts';
import { schedulerLeaseRoutes } from '../http/resources/scheduler/scheduler-leases.ts';
import { schedulerStatsRoutes } from '../http/resources/scheduler/scheduler-stats.ts';
import { schedulerWaitRoutes } from '../http/resources/scheduler/scheduler-waits.ts';
import { scheduleRoutes } from '../http/resources/schedules.ts';
import { statsRoutes } from '../http/resources/stats.ts';
import { webhookRoutes } from '../http/resources/webhooks.ts';
import type { RouteGroup } from '../http/route.ts';
import type { Enqueuer } from '../jobs/enqueue/enqueue.ts';
import { Pace } from '../kernel/clock.ts';
import type { Config } from '../kernel/config.ts';
import type { PerTenantTasks } from '../maintenance/per-tenant-task.ts';
import type { ClaimWaiters } from '../scheduler/claim-waiters.ts';
import type { ScheduleTicker } from '../schedules/schedule-ticker.ts';
import type { KeyVerifier } from '../tenants/api-keys/verifier.ts';
import type { Tenant } from '../tenants/tenant.ts';
import type { WorkerPool } from '../worker/loop/worker-pool.ts';
import type { DaemonContext } from './daemon-context.ts';

export interface ApiParts {
  workers: WorkerPool;
  enqueuer: Enqueuer;
  streams: EventStreams;
  keys: KeyVerifier;
  waiters: ClaimWaiters;
  schedules: ScheduleTicker;
  tasks: PerTenantTasks;
}

export async function createApi(context: DaemonContext, parts: ApiParts, access: Access): Promise<Express> {
  const { config, db, logger, registry, metrics, version, lifecycle, notifications } = context;
  const { keys, workers } = parts;
  const readiness = () => {
    const state = lifecycle.readiness(workers.runningCount);
    const detail = notifications.problem;
    // Not a reason to take the daemon out of service, because polling finds all work.
    return { ...state, checks: { ...state.checks, notifications: { ok: true, ...(detail && { detail }) } } };
  };
  // A hundred routes with their schemas, created in several steps, so that heartbeats and outcomes do not wait for
  // them.
  const routes: RouteGroup[] = [];
  const pace = new Pace();
  for (const group of routesOf(context, parts)) {
    routes.push(group);
    await pace.pause();
  }
  return createApp({
    config,
    db,
    logger,
    registry,
    keys,
    metricsRegistry: metrics.registry,
    readiness,
    routes,
    pages: [...dashboardPages(context.dashboardDir, access), ...formPages(context, access)],
    version,
    access,
  });
}

/** A form changes data, so a read-only API has none. */
function formPages({ db, registry, signals }: DaemonContext, { readOnly }: Access): Router[] {
  return readOnly ? [] : [questionPages({ db, registry, signals })];
}

function* routesOf(context: DaemonContext, parts: ApiParts): Generator<RouteGroup> {
  const { config, db, logger, registry, handlers, queueLimit, stepCommits, signals } = context;
  const { enqueuer, streams, waiters, schedules, tasks } = parts;
  const wakeOperations = ({ slug }: Tenant) => tasks.operations.runNow(slug);
  const onChange = (tenant: Tenant) => void schedules.refresh(tenant).catch(() => {});
  yield eventRoutes();
  yield receivedEventRoutes({ signals });
  yield eventStreamRoutes({ db, streams, registry });
  yield* controlRoutes({ config, jobTypes: handlers, enqueuer, signals, wakeOperations, queueLimit });
  yield* schedulerRoutes({
    config,
    waiters,
    signals,
    logger,
    queueLimit,
    stepCommits,
    jobTypes: handlers,
  });
  yield jobLogRoutes();
  yield attentionRoutes();
  yield laneRoutes();
  yield questionRoutes({ signals });
  yield limitRoutes({ db, registry });
  yield budgetRoutes({ db, registry });
  yield questionLinkRoutes({ config });
  yield scheduleRoutes({ db, jobTypes: handlers, queueLimit, onChange, signals });
  yield statsRoutes();
  yield webhookRoutes({ db, registry, wake: (slug) => tasks.webhooks.wake(slug) });
  yield adminWorkerRoutes({ db });
}

// Route groups that belong together: control (jobs, targets, bulk operations) and scheduler (remote workers).

export interface ControlDependencies extends JobRouteDependencies, OperationDependencies {
  config: Pick<Config, 'workerConcurrency' | 'tenantConcurrency' | 'questionTimeoutSeconds'>;
}

export function controlRoutes(deps: ControlDependencies): RouteGroup[] {
  return [
    jobRoutes(deps),
    jobActionRoutes(deps),
    targetRoutes(deps),
    whyRoutes(deps),
    graphRoutes(),
    operationRoutes(deps),
  ];
}

export function schedulerRoutes(deps: SchedulerDependencies): RouteGroup[] {
  return [
    schedulerJobRoutes(deps),
    schedulerLeaseRoutes(deps),
    schedulerCallRoutes(deps),
    schedulerWaitRoutes(deps),
    schedulerStatsRoutes(),
  ];
}
