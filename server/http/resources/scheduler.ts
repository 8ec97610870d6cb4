// The scheduler API: one list for the composition root.
import type { RouteGroup } from '../route.ts';
import { type SchedulerDependencies, schedulerJobRoutes } from './scheduler/scheduler-jobs.ts';
import { schedulerLeaseRoutes } from './scheduler/scheduler-leases.ts';
import { schedulerStatsRoutes } from './scheduler/scheduler-stats.ts';

export function schedulerRoutes(deps: SchedulerDependencies): RouteGroup[] {
  return [schedulerJobRoutes(deps), schedulerLeaseRoutes(deps), schedulerStatsRoutes(deps)];
}
