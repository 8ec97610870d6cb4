// Route groups that belong together: control (jobs, targets, bulk operations) and scheduler (remote workers).
import type { Config } from '../kernel/config.ts';
import type { JobRouteDependencies } from './resources/jobs/create-jobs.ts';
import { graphRoutes } from './resources/jobs/graph.ts';
import { jobActionRoutes } from './resources/jobs/job-actions.ts';
import { jobRoutes } from './resources/jobs/jobs.ts';
import { type OperationDependencies, operationRoutes } from './resources/jobs/operations.ts';
import { targetRoutes } from './resources/jobs/targets.ts';
import { whyRoutes } from './resources/jobs/why.ts';
import { type SchedulerDependencies, schedulerJobRoutes } from './resources/scheduler/scheduler-jobs.ts';
import { schedulerLeaseRoutes } from './resources/scheduler/scheduler-leases.ts';
import { schedulerQuestionRoutes } from './resources/scheduler/scheduler-questions.ts';
import { schedulerStatsRoutes } from './resources/scheduler/scheduler-stats.ts';
import type { RouteGroup } from './route.ts';

export interface ControlDependencies extends JobRouteDependencies, OperationDependencies {
  config: Pick<Config, 'workerConcurrency' | 'tenantConcurrency'>;
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
  return [schedulerJobRoutes(deps), schedulerLeaseRoutes(deps), schedulerQuestionRoutes(deps), schedulerStatsRoutes()];
}
