// How long one attempt may take: the job's own limit (which its type may have set), else its tenant's, else the
// daemon's; 0 means no limit. A job stores only what was said for it, so a changed default holds for jobs that wait.
import type { Tenant } from '../../tenants/tenant.ts';
import type { Job } from './job.ts';

type WithSettings = Pick<Tenant, 'settings'>;

export function timeoutOf(job: Pick<Job, 'timeoutSeconds'>, tenant: WithSettings, daemonSeconds: number): number {
  return job.timeoutSeconds ?? defaultTimeout(tenant, daemonSeconds);
}

export function defaultTimeout({ settings }: WithSettings, daemonSeconds: number): number {
  return settings.timeout_seconds ?? daemonSeconds;
}

/** SQL over `j`: its attempt has run for longer than it may. */
export function isTimedOutSql(defaultSeconds: string): string {
  return `j.started_at < now() - nullif(coalesce(j.timeout_seconds, ${defaultSeconds}), 0) * interval '1 second'`;
}
