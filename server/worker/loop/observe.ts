// Turns what loops, heartbeat and sweeper tell into metrics.

import type { Outcome } from '../../jobs/finish/outcome.ts';
import type { Job } from '../../jobs/model/job.ts';
import type { Logger } from '../../kernel/logger.ts';
import type { JobOutcome, Metrics } from '../../stats/metrics.ts';
import type { Tenant } from '../../tenants/tenant.ts';
import type { HeartbeatListeners } from '../heartbeat/heartbeat.ts';
import { logClaim, logEnds, logStart } from './log-attempts.ts';
import type { EndedAttempt, LoopObserver } from './loop-dependencies.ts';

const outcomes: Record<Outcome['kind'], JobOutcome> = {
  complete: 'completed',
  completePartly: 'partial',
  retry: 'retried',
  fail: 'failed',
  stopPaused: 'paused',
  stopCanceled: 'canceled',
  requeue: 'given_back',
  recover: 'lost',
  recoverLater: 'lost',
};

/** How long each waited, by the database's clock. Jobs of a batch mostly share their times. */
function waited(jobs: Job[]): number[] {
  let last: Job | undefined;
  let seconds = 0;
  return jobs.map((job) => {
    if (last === undefined || job.runAt !== last.runAt || job.startedAt !== last.startedAt) {
      const waitedMs = job.startedAt === null ? 0 : Date.parse(job.startedAt) - Date.parse(job.runAt);
      seconds = Math.max(0, waitedMs / 1000);
      last = job;
    }
    return seconds;
  });
}

function byOutcome(ended: readonly EndedAttempt[]): Map<JobOutcome, number[]> {
  const groups = new Map<JobOutcome, number[]>();
  for (const { outcome, seconds } of ended) {
    const kind = outcome === undefined ? 'lost' : outcomes[outcome.kind];
    const group = groups.get(kind);
    if (group) group.push(seconds);
    else groups.set(kind, [seconds]);
  }
  return groups;
}

export interface LoopListeners {
  /** Called when attempts have ended: there is something to count, and perhaps to send. */
  finished(tenant: Tenant): void;
  /** Called for every claim that found jobs. */
  claimed(tenant: Tenant): void;
}

export function observeLoops(metrics: Metrics, logger: Logger, told: LoopListeners): LoopObserver {
  return {
    claimed(tenant: Tenant, jobs: Job[]) {
      if (jobs.length > 0) told.claimed(tenant);
      logClaim(logger, tenant, jobs);
      metrics.claims.add(tenant.slug, jobs.length > 0 ? 'some' : 'none');
      metrics.jobsClaimed.add(tenant.slug, jobs.length);
      metrics.running.add(tenant.slug, jobs.length);
      const wait = metrics.waitSeconds.of(tenant.slug);
      for (const seconds of waited(jobs)) wait.observe(seconds);
    },
    claimFailed(tenant) {
      metrics.claims.add(tenant.slug, 'error');
    },
    started: (tenant, job) => logStart(logger, tenant, job),
    finished(tenant, ended) {
      logEnds(logger, tenant, ended);
      metrics.running.add(tenant.slug, -ended.length);
      for (const [kind, seconds] of byOutcome(ended)) {
        metrics.outcomes.add(tenant.slug, kind, seconds.length);
        const run = metrics.runSeconds.of(tenant.slug, kind);
        for (const one of seconds) run.observe(one);
      }
      told.finished(tenant);
    },
    unresponsive(tenant, job, what) {
      metrics.unresponsiveHandlers.add(tenant.slug, what);
      const fields = {
        tenant: tenant.slug,
        jobId: job.id,
        type: job.type,
        targetId: job.targetId,
        attempt: job.attempt,
      };
      if (what === 'fenced') logger.warn(fields, 'handler did not stop; it was fenced off and keeps its lane');
      else logger.error(fields, 'handler still runs after UNRESPONSIVE_HANDLER_MAX_SECONDS; its lane was released');
    },
  };
}

export function observeHeartbeat(metrics: Metrics, logger: Logger): HeartbeatListeners {
  return {
    renewed: (schema, leases) => {
      metrics.renewals.add('', 'renewed', leases);
      logger.debug({ schema, leases }, 'leases renewed');
    },
    stopAsked: ({ jobId, leaseId, cancelIntent, cancelDetail }) =>
      logger.debug({ jobId, leaseId, intent: cancelIntent, detail: cancelDetail }, 'stop requested'),
    failed: () => metrics.renewals.add('', 'error'),
    lost: (jobs) => metrics.lostLeases.add('', jobs),
  };
}
