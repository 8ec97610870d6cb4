// Writes the outcomes of one tenant's attempts and handles the results. A batch is written in one transaction, which is
// retried while the database is unavailable and the lease can be trusted. Afterwards leases are dropped, retries get
// their time, and a job that never started is requeued. Returns the next steps of the loop.

import type { Database } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { isConnectionError, isMissingTable, isTransient, sqlState } from '../../database/sql-errors.ts';
import type { Claimed, NamedClaim } from '../../jobs/claim/claim.ts';
import { requeueUnstarted } from '../../jobs/claim/release-claim.ts';
import { type FinishResult, finishAttempts } from '../../jobs/finish/finish.ts';
import type { FinishedAttempt, Outcome } from '../../jobs/finish/outcome.ts';
import type { Job } from '../../jobs/model/job.ts';
import { jobError } from '../../jobs/model/job-errors.ts';
import { transitions } from '../../jobs/model/states.ts';
import { findJob } from '../../jobs/read/read-jobs.ts';
import { errorMessage } from '../../kernel/errors.ts';
import { newId } from '../../kernel/ids.ts';
import type { Logger } from '../../kernel/logger.ts';
import type { Tenant } from '../../tenants/tenant.ts';
import type { HeldLease } from '../heartbeat/heartbeat.ts';
import type { LoopContext } from '../worker-context.ts';
import type { LoopObserver } from './loop-observer.ts';
import { type OutcomeBatch, type OutcomeQueue, OutcomeQueues } from './outcome-queues.ts';
import { leaseExpiredReason } from './running-attempts.ts';

export interface EndedJob {
  job: Job;
  seconds: number;
  /** False if the job was claimed and requeued without being run. */
  begun: boolean;
}

export interface PendingOutcome extends FinishedAttempt, EndedJob {
  /** The lease that ends with this outcome. */
  endedLease: HeldLease | undefined;
}

export interface Written extends Pick<WriteResult<PendingOutcome>, 'claimed' | 'lostClaims' | 'runnable'> {
  /** Milliseconds until retries and waiting jobs are due. */
  dueInMs: number[];
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
    const { job, begun, seconds } = ended;
    // All fields are listed, because spreading `ended` is the slowest step of an attempt's end.
    const item: PendingOutcome = {
      jobId: job.id,
      leaseId: lease.leaseId,
      targetId: job.targetId,
      outcome,
      job,
      begun,
      seconds,
      endedLease: isLast ? lease : undefined,
    };
    this.#queues.add(item, lease, isLast);
  }

  /** The queues without a writer. */
  takeUnwritten(): OutcomeQueue<PendingOutcome>[] {
    return this.#queues.takeUnwritten();
  }

  /** Waits for outcomes that can share the next write of the queue. */
  async awaitMore(queue: OutcomeQueue<PendingOutcome>): Promise<void> {
    const ms = queue.waitMs(performance.now());
    if (ms > 0) await new Promise((resolve) => setTimeout(resolve, ms));
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
    const dueInMs: number[] = [];
    for (const { outcome, endedLease } of accepted) {
      // The lease of the job must be renewed until its outcome is written.
      if (endedLease !== undefined) heartbeat.drop(endedLease);
      if (outcome.kind === 'retry' || outcome.kind === 'recoverLater') dueInMs.push(outcome.delayMs);
      else if (outcome.kind === 'suspend' || outcome.kind === 'suspendAside') {
        // The awaited event may have arrived before the suspension. Then the job is due.
        dueInMs.push(outcome.awaited === undefined ? outcome.leftMs : 0);
      }
    }
    let { runnable } = next;
    for (const item of refused) {
      if (item.endedLease !== undefined) heartbeat.drop(item.endedLease);
      if (!item.begun && (await this.#requeueUnstarted(tenant, item))) runnable = true;
    }
    this.#observe.finished(tenant, accepted, refused);
    signals.eventsWritten(tenant);
    return { ...next, runnable, dueInMs };
  }

  /** The lease expired while the process was suspended. The attempt must not count as lost. */
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

/** @internal */
export interface OutcomeWriterOptions {
  db: Database;
  schema: Schema;
  actor: string;
  logger: Logger;
  /** Milliseconds for which the lease may still be trusted. */
  trustedForMs(leaseId: string): number;
}

interface WriteResult<T> {
  /** Each item of the batch once, with the outcome that was finally written. */
  accepted: T[];
  /** Items whose lease no longer owned the job, or that were given up. */
  refused: T[];
  /** The next jobs of lanes, claimed with the outcomes. `sentAt` is the monotonic time before they were sent. */
  claimed: { claimed: Claimed; sentAt: bigint } | undefined;
  /**
   * Lease ids of claims that may or may not have taken effect. An outcome may take two transactions: if the second one
   * fails for whatever reason, the claim of the first one stays.
   */
  lostClaims: string[];
  /** A lane advanced or a job was requeued, and the job was not claimed here. */
  runnable: boolean;
}

// A lease may expire while the process is suspended, and then the fence decides whether its outcomes still count. So
// they are sent a few times before they are given up.
const minAttempts = 4;

/** @internal Exported for tests. */
export class OutcomeWriter<T extends FinishedAttempt> {
  readonly #options: OutcomeWriterOptions;

  constructor(options: OutcomeWriterOptions) {
    this.#options = options;
  }

  /** Never rejects. */
  async write(batch: OutcomeBatch<T>, claimNext?: NamedClaim): Promise<WriteResult<T>> {
    const { logger, trustedForMs } = this.#options;
    const { items } = batch;
    let claim = claimNext;
    const lostClaims: WriteResult<T>['lostClaims'] = [];
    for (let attempt = 1; ; attempt++) {
      const sentAt = process.hrtime.bigint();
      try {
        const result = await this.#finish(batch, claim);
        if (attempt > 1) await this.#addStored(items, result.accepted);
        const { claimed, runnable } = result;
        return {
          ...split(items, result.accepted),
          claimed: claimed && { claimed, sentAt },
          lostClaims,
          runnable,
        };
      } catch (error) {
        if (claim !== undefined) {
          lostClaims.push(claim.leaseId);
          // With another lease id, because the first try may have taken effect. In that case no lane advances again,
          // and nothing is claimed.
          claim = { ...claim, leaseId: newId() };
        }
        if (!isConnectionError(error) && !isTransient(error)) {
          return { ...(await this.#writeSingly(batch, error)), lostClaims };
        }
        logger.warn({ err: error, jobs: items.length, attempt }, 'outcomes could not be written; retrying');
        const trusted = Math.max(...items.map((item) => trustedForMs(item.leaseId)));
        // The outcome is given up: the job stays RUNNING, its lease expires, and the sweeper decides.
        if (trusted <= 0 && attempt >= minAttempts) return { ...refuse(items), lostClaims };
        const delayMs = Math.min(50 * 2 ** attempt, 1000);
        await new Promise((resolve) => setTimeout(resolve, trusted > 0 ? Math.min(delayMs, trusted) : delayMs));
      }
    }
  }

  #finish({ items, endedLeases }: OutcomeBatch<T>, claimNext: NamedClaim | undefined): Promise<FinishResult> {
    const { db, schema, actor } = this.#options;
    return finishAttempts(db, schema, items, { actor, endedLeases, claimNext });
  }

  /** After a lost answer, zero rows may mean that the first try took effect. The stored outcome decides. */
  async #addStored(items: readonly T[], accepted: Set<string>): Promise<void> {
    for (const item of items) {
      if (!accepted.has(item.jobId) && (await this.#isStored(item))) accepted.add(item.jobId);
    }
  }

  async #isStored(item: FinishedAttempt): Promise<boolean> {
    const job = await findJob(this.#options.db, this.#options.schema, item.jobId);
    return job?.leaseId === item.leaseId && job.status === transitions[item.outcome.kind].to;
  }

  /** One outcome that Postgres refuses must not fail the others. */
  async #writeSingly({ items, endedLeases }: OutcomeBatch<T>, error: unknown): Promise<WriteResult<T>> {
    if (isMissingTable(error)) {
      const fields = { schema: this.#options.schema, outcomes: items.length, reason: errorMessage(error) };
      this.#options.logger.warn(fields, 'outcomes cannot be written: the tables of the tenant do not exist');
      return refuse(items);
    }
    const [first] = items;
    if (items.length > 1) {
      const results: WriteResult<T>[] = [];
      for (const item of items) {
        results.push(await this.write({ items: [item], endedLeases: endedLeases.filter((id) => id === item.leaseId) }));
      }
      return {
        ...refuse(results.flatMap(({ refused }) => refused)),
        accepted: results.flatMap(({ accepted }) => accepted),
        runnable: results.some(({ runnable }) => runnable),
      };
    }
    if (first === undefined) return refuse([]);
    this.#options.logger.error({ err: error, jobId: first.jobId, outcome: first.outcome.kind }, 'outcome was refused');
    if (first.outcome.kind === 'fail') return refuse([first]);
    const message = `The outcome could not be stored: ${sqlState(error) ?? ''} ${errorMessage(error)}`.slice(0, 500);
    const refusal = jobError('RESULT_REFUSED', message);
    return this.write({ items: [{ ...first, outcome: { kind: 'fail', error: refusal } }], endedLeases });
  }
}

function split<T extends FinishedAttempt>(items: T[], ids: Set<string>): Pick<WriteResult<T>, 'accepted' | 'refused'> {
  // Usually all are accepted.
  if (items.every((item) => ids.has(item.jobId))) return { accepted: items, refused: [] };
  return {
    accepted: items.filter((item) => ids.has(item.jobId)),
    refused: items.filter((item) => !ids.has(item.jobId)),
  };
}

function refuse<T>(items: T[]): WriteResult<T> {
  return { accepted: [], refused: items, claimed: undefined, lostClaims: [], runnable: false };
}
