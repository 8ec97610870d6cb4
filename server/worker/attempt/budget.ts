// How many tokens a job may use: its own limit, else its tenant's, else the daemon's; 0 means any number.
import type { HandlerRun } from './handler-run.ts';

export function tokenLimitOf({ job, tenant, config }: Pick<HandlerRun, 'job' | 'tenant' | 'config'>): number {
  return job.tokenLimit ?? tenant.settings.token_limit ?? config.tokenLimit;
}
