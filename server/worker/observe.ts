// Turns what loops, heartbeat and sweeper tell into metrics.
import type { Job } from '../jobs/job.ts';
import type { Outcome } from '../jobs/settle.ts';
import type { Logger } from '../kernel/logger.ts';
import type { JobOutcome, Metrics } from '../stats/metrics.ts';
import type { Tenant } from '../tenants/tenant.ts';
import type { HeartbeatListeners } from './heartbeat.ts';
import type { LoopObserver } from './loop.ts';

const outcomes: Record<Outcome['kind'], JobOutcome> = {
  complete: 'completed',
  completePartly: 'partial',
  retry: 'retried',
  fail: 'failed',
  stopPaused: 'paused',
  stopCanceled: 'canceled',
  giveBack: 'given_back',
  recover: 'lost',
  recoverLater: 'lost',
};

/** `told` is called for every attempt that ended: there is something to count, and perhaps to send. */
export function observeLoops(metrics: Metrics, logger: Logger, told: (tenant: Tenant) => void): LoopObserver {
  return {
    claimed(tenant: Tenant, jobs: Job[]) {
      metrics.claims.add(tenant.slug, jobs.length > 0 ? 'some' : 'none');
      metrics.jobsClaimed.add(tenant.slug, jobs.length);
      metrics.running.add(tenant.slug, jobs.length);
      for (const job of jobs) {
        const waitedMs = job.startedAt === null ? 0 : Date.parse(job.startedAt) - Date.parse(job.runAt);
        metrics.waitSeconds.observe(tenant.slug, Math.max(0, waitedMs / 1000));
      }
    },
    claimFailed(tenant) {
      metrics.claims.add(tenant.slug, 'error');
    },
    settled(tenant, _job, outcome, seconds) {
      const kind = outcome === undefined ? 'lost' : outcomes[outcome.kind];
      metrics.outcomes.add(tenant.slug, kind);
      metrics.running.add(tenant.slug, -1);
      metrics.runSeconds.observe(tenant.slug, kind, seconds);
      told(tenant);
    },
    abandoned(tenant, job) {
      logger.warn(
        { tenant: tenant.slug, jobId: job.id, type: job.type },
        'handler did not stop in its grace; it was fenced off',
      );
    },
  };
}

export function observeHeartbeat(metrics: Metrics): HeartbeatListeners {
  return {
    renewed: (leases) => metrics.renewals.add('', 'renewed', leases),
    failed: () => metrics.renewals.add('', 'error'),
    lost: (jobs) => metrics.lostLeases.add('', jobs),
  };
}
