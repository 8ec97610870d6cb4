// The outcomes of one tenant's attempts, from their end to what follows from the write: leases are dropped, retries get
// their time, and a job that never started is requeued. Returns what the loop has to do next.

import type { NamedClaim } from '../../jobs/claim/claim.ts';
import { requeueUnstarted } from '../../jobs/claim/release-claim.ts';
import type { FinishedAttempt } from '../../jobs/finish/finish.ts';
import type { Outcome } from '../../jobs/finish/outcome.ts';
import type { Job } from '../../jobs/model/job.ts';
import type { Tenant } from '../../tenants/tenant.ts';
import type { HeldLease } from '../heartbeat/heartbeat.ts';
import type { LoopContext } from '../worker-context.ts';
import type { LoopObserver } from './observe.ts';
import { type OutcomeBatch, type OutcomeQueue, OutcomeQueues } from './outcome-queues.ts';
import { OutcomeWriter, type WriteResult } from './outcome-writer.ts';
import { leaseExpiredReason } from './running-attempts.ts';

export interface EndedJob {
  job: Job;
  seconds: number;
  /** False: the job was claimed and requeued without being run. */
  started: boolean;
}

export interface PendingOutcome extends FinishedAttempt, EndedJob {
  /** The lease that ends with this outcome. */
  endedLease: HeldLease | undefined;
}

export interface Written extends Pick<WriteResult<PendingOutcome>, 'claimed' | 'lostClaims' | 'runnable'> {
  /** In how many milliseconds the retries are due. */
  retriesInMs: number[];
}

export class Outcomes {
  readonly #context: LoopContext;
  readonly #observe: LoopObserver;
  readonly #actor: string;
  readonly #queues = new OutcomeQueues<PendingOutcome>();
  readonly #writer: OutcomeWriter<PendingOutcome>;

  constructor({ schema }: Tenant, context: LoopContext, observe: LoopObserver) {
    const { db, config, logger, heartbeat } = context;
    this.#context = context;
    this.#observe = observe;
    this.#actor = `worker:${config.workerId}`;
    this.#writer = new OutcomeWriter({
      db,
      schema,
      actor: this.#actor,
      logger,
      trustedForMs: (leaseId) => heartbeat.trustedForMs(leaseId),
    });
  }

  get pending(): number {
    return this.#queues.pending;
  }

  /** `isLast`: nothing else is held under the lease. Without an outcome there is nothing to write. */
  add(tenant: Tenant, ended: EndedJob, outcome: Outcome | undefined, lease: HeldLease, isLast: boolean): void {
    if (outcome === undefined) {
      this.#observe.finished(tenant, [], [ended]);
      if (isLast) this.#context.heartbeat.drop(lease);
      return;
    }
    const { job, started, seconds } = ended;
    // Written out: spreading `ended` is the slowest step of an attempt's end.
    const item: PendingOutcome = {
      jobId: job.id,
      leaseId: lease.leaseId,
      targetId: job.targetId,
      outcome,
      job,
      started,
      seconds,
      endedLease: isLast ? lease : undefined,
    };
    this.#queues.add(item, lease, isLast);
  }

  /** The queues that nobody writes yet. */
  takeUnwritten(): OutcomeQueue<PendingOutcome>[] {
    return this.#queues.takeUnwritten();
  }

  next(queue: OutcomeQueue<PendingOutcome>): OutcomeBatch<PendingOutcome> | undefined {
    return this.#queues.next(queue);
  }

  idle(): Promise<void> {
    return this.#queues.idle();
  }

  async write(tenant: Tenant, batch: OutcomeBatch<PendingOutcome>, claimNext?: NamedClaim): Promise<Written> {
    const { heartbeat, signals } = this.#context;
    const { accepted, refused, ...next } = await this.#writer.write(batch, claimNext);
    const retriesInMs: number[] = [];
    for (const { outcome, endedLease } of accepted) {
      // Until its outcome is written the job's lease must be renewed.
      if (endedLease !== undefined) heartbeat.drop(endedLease);
      if (outcome.kind === 'retry' || outcome.kind === 'recoverLater') retriesInMs.push(outcome.delayMs);
    }
    let { runnable } = next;
    for (const item of refused) {
      if (item.endedLease !== undefined) heartbeat.drop(item.endedLease);
      if (!item.started && (await this.#requeueUnstarted(tenant, item))) runnable = true;
    }
    this.#observe.finished(tenant, accepted, refused);
    signals.eventsWritten(tenant);
    return { ...next, runnable, retriesInMs };
  }

  /** The lease expired while the process was suspended: the attempt must not count as lost. */
  async #requeueUnstarted({ schema }: Tenant, { leaseId, job }: PendingOutcome): Promise<boolean> {
    const { db, logger } = this.#context;
    const unstarted = { leaseId, jobs: [job], actor: this.#actor, reason: leaseExpiredReason };
    try {
      return (await requeueUnstarted(db, schema, unstarted)) > 0;
    } catch (error) {
      logger.warn({ err: error, jobId: job.id }, 'job that never began could not be requeued');
      return false;
    }
  }
}
