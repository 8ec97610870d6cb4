// Metrics and log lines of worker loops and heartbeat: one line for each failed attempt, and at debug level also for
// claims, starts and ends.
import type { Outcome } from '../../jobs/finish/outcome.ts';
import type { Job } from '../../jobs/model/job.ts';
import { Rate } from '../../kernel/clock.ts';
import type { Logger } from '../../kernel/logger.ts';
import type { JobOutcome, Metrics } from '../../stats/metrics.ts';
import type { Tenant } from '../../tenants/tenant.ts';
import type { HeartbeatListeners } from '../heartbeat/heartbeat.ts';

export interface EndedAttempt {
  job: Job;
  outcome: Outcome;
  seconds: number;
}

export class LoopObserver {
  readonly #metrics: Metrics;
  readonly #logger: Logger;
  readonly #claimRate = new Rate();

  constructor(metrics: Metrics, logger: Logger) {
    this.#metrics = metrics;
    this.#logger = logger;
  }

  get claimsPerSecond(): number {
    return this.#claimRate.perSecond();
  }

  claimed({ slug }: Tenant, jobs: Job[]): void {
    const metrics = this.#metrics;
    this.#claimRate.add(jobs.length);
    metrics.claims.add(slug, jobs.length > 0 ? 'some' : 'none');
    metrics.jobsClaimed.add(slug, jobs.length);
    metrics.running.add(slug, jobs.length);
    const wait = metrics.waitSeconds.of(slug);
    for (const seconds of secondsWaited(jobs)) wait.observe(seconds);
    if (jobs.length === 0 || !this.#logger.isLevelEnabled('debug')) return;
    // One line per claim, not per job.
    const [first] = jobs;
    const jobIds = jobs.map((job) => job.id);
    this.#logger.debug({ tenant: slug, leaseId: first?.leaseId, workerId: first?.leaseOwner, jobIds }, 'jobs claimed');
  }

  claimFailed({ slug }: Tenant, error: unknown, retryInMs: number): void {
    this.#metrics.claims.add(slug, 'error');
    this.#logger.warn({ err: error, tenant: slug, delayMs: retryInMs }, 'claim failed');
  }

  started(tenant: Tenant, job: Job): void {
    if (this.#logger.isLevelEnabled('debug')) this.#logger.debug(fieldsOf(tenant, job), 'attempt started');
  }

  /** `lost`: the lease no longer owned the job, or the outcome was given up. */
  finished(tenant: Tenant, ended: readonly EndedAttempt[], lost: readonly Omit<EndedAttempt, 'outcome'>[] = []): void {
    const metrics = this.#metrics;
    this.#logEnds(tenant, ended);
    if (this.#logger.isLevelEnabled('debug')) {
      for (const { job, seconds } of lost) {
        this.#logger.debug({ ...fieldsOf(tenant, job), outcome: 'lost', seconds }, 'attempt ended');
      }
    }
    metrics.running.add(tenant.slug, -ended.length - lost.length);
    for (const [kind, seconds] of byOutcome(ended, lost)) {
      metrics.outcomes.add(tenant.slug, kind, seconds.length);
      const run = metrics.runSeconds.of(tenant.slug, kind);
      for (const one of seconds) run.observe(one);
    }
  }

  /** The job of a handler that does not stop was fenced off, or its lane was released while the handler still runs. */
  unresponsive(tenant: Tenant, job: Job, what: 'fenced' | 'released'): void {
    this.#metrics.unresponsiveHandlers.add(tenant.slug, what);
    const { leaseId: _, ...fields } = fieldsOf(tenant, job);
    if (what === 'fenced') this.#logger.warn(fields, 'handler did not stop; it was fenced off and keeps its lane');
    else this.#logger.error(fields, 'handler still runs after UNRESPONSIVE_HANDLER_MAX_SECONDS; its lane was released');
  }

  #logEnds(tenant: Tenant, ended: readonly EndedAttempt[]): void {
    const debug = this.#logger.isLevelEnabled('debug');
    for (const { job, outcome, seconds } of ended) {
      const error = 'error' in outcome ? outcome.error : undefined;
      if (error === undefined && !debug) continue;
      const fields = { ...fieldsOf(tenant, job), outcome: outcome.kind, seconds };
      if (error === undefined) this.#logger.debug(fields, 'attempt ended');
      else this.#logger.warn({ ...fields, error, see: `/jobs/${job.id}` }, 'attempt failed');
    }
  }
}

export function observeHeartbeat(metrics: Metrics, logger: Logger): HeartbeatListeners {
  return {
    renewed: (schema, leases) => {
      metrics.renewals.add('', 'renewed', leases);
      logger.debug({ schema, leases }, 'leases renewed');
    },
    stopRequested: ({ jobId, leaseId, cancelIntent, cancelDetail }) =>
      logger.debug({ jobId, leaseId, intent: cancelIntent, detail: cancelDetail }, 'stop requested'),
    failed: () => metrics.renewals.add('', 'error'),
    lost: (jobs) => metrics.lostLeases.add('', jobs),
  };
}

const outcomes: Record<Outcome['kind'], JobOutcome> = {
  complete: 'completed',
  completePartly: 'partial',
  retry: 'retried',
  fail: 'failed',
  stopPaused: 'paused',
  stopCanceled: 'canceled',
  suspend: 'suspended',
  suspendAside: 'suspended',
  requeue: 'requeued',
  recover: 'lost',
  recoverLater: 'lost',
};

function byOutcome(ended: readonly EndedAttempt[], lost: readonly { seconds: number }[]): Map<JobOutcome, number[]> {
  const groups = new Map<JobOutcome, number[]>();
  if (lost.length > 0)
    groups.set(
      'lost',
      lost.map(({ seconds }) => seconds),
    );
  for (const { outcome, seconds } of ended) {
    const kind = outcomes[outcome.kind];
    const group = groups.get(kind);
    if (group) group.push(seconds);
    else groups.set(kind, [seconds]);
  }
  return groups;
}

/** Returns how long each job waited, by the database's clock. Jobs of a batch usually share their times. */
function secondsWaited(jobs: Job[]): number[] {
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

function fieldsOf(tenant: Tenant, job: Job) {
  const { id, type, targetId, attempt, leaseId } = job;
  return { tenant: tenant.slug, jobId: id, type, targetId, attempt, leaseId };
}
