// Everything about jobs and targets that people and their programs do: one list for the composition root.
import type { Config } from '../../kernel/config.ts';
import type { RouteGroup } from '../route.ts';
import { jobActionRoutes } from './job-actions.ts';
import type { JobRouteDependencies } from './job-creation.ts';
import { jobRoutes } from './jobs.ts';
import { type OperationDependencies, operationRoutes } from './operations.ts';
import { targetRoutes } from './targets.ts';
import { whyRoutes } from './why.ts';

export interface ControlDependencies extends JobRouteDependencies, OperationDependencies {
  config: Pick<Config, 'workerConcurrency' | 'tenantConcurrency'>;
}

export function controlRoutes(deps: ControlDependencies): RouteGroup[] {
  return [jobRoutes(deps), jobActionRoutes(deps), targetRoutes(deps), whyRoutes(deps), operationRoutes(deps)];
}
