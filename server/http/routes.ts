// Everything about jobs and targets that people and their programs do: one list for the composition root.
import type { Config } from '../kernel/config.ts';
import type { JobRouteDependencies } from './resources/create-jobs.ts';
import { jobActionRoutes } from './resources/job-actions.ts';
import { jobRoutes } from './resources/jobs.ts';
import { type OperationDependencies, operationRoutes } from './resources/operations.ts';
import { targetRoutes } from './resources/targets.ts';
import { whyRoutes } from './resources/why.ts';
import type { RouteGroup } from './route.ts';

export interface ControlDependencies extends JobRouteDependencies, OperationDependencies {
  config: Pick<Config, 'workerConcurrency' | 'tenantConcurrency'>;
}

export function controlRoutes(deps: ControlDependencies): RouteGroup[] {
  return [jobRoutes(deps), jobActionRoutes(deps), targetRoutes(deps), whyRoutes(deps), operationRoutes(deps)];
}
