// What the daemon's log says of attempts: a line for each that failed; at debug also claims, starts and ends.
import type { Job } from '../../jobs/model/job.ts';
import type { Logger } from '../../kernel/logger.ts';
import type { Tenant } from '../../tenants/tenant.ts';
import type { EndedAttempt } from './loop-dependencies.ts';

/** One line per claim, not per job; `worker` is a field of every line of this daemon. */
export function logClaim(logger: Logger, tenant: Tenant, jobs: readonly Job[]): void {
  if (jobs.length === 0 || !logger.isLevelEnabled('debug')) return;
  const [first] = jobs;
  const jobIds = jobs.map((job) => job.id);
  logger.debug({ tenant: tenant.slug, leaseId: first?.leaseId, workerId: first?.leaseOwner, jobIds }, 'jobs claimed');
}

export function logStart(logger: Logger, tenant: Tenant, job: Job): void {
  if (logger.isLevelEnabled('debug')) logger.debug(fieldsOf(tenant, job), 'attempt started');
}

export function logEnds(logger: Logger, tenant: Tenant, ended: readonly EndedAttempt[]): void {
  const debug = logger.isLevelEnabled('debug');
  for (const { job, outcome, seconds } of ended) {
    const error = outcome !== undefined && 'error' in outcome ? outcome.error : undefined;
    if (error === undefined && !debug) continue;
    const fields = { ...fieldsOf(tenant, job), outcome: outcome?.kind ?? 'lost', seconds };
    if (error === undefined) logger.debug(fields, 'attempt ended');
    else logger.warn({ ...fields, error }, 'attempt failed');
  }
}

function fieldsOf(tenant: Tenant, job: Job) {
  const { id, type, targetId, attempt, leaseId } = job;
  return { tenant: tenant.slug, jobId: id, type, targetId, attempt, leaseId };
}
