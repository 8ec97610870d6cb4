// One tenant's worker loop: sleeps until woken, claims what its slots can start now, starts it.
// It never polls by itself; wake-ups come from enqueues, settled lanes, due times and the shared poll.
import { v7 as uuidv7 } from 'uuid';
import type { Claimed, NamedClaim } from '../../jobs/claim/claim.ts';
import type { NewJob } from '../../jobs/enqueue/enqueue.ts';
import type { Reservation } from '../../jobs/enqueue/insert-jobs.ts';
import type { FinishedAttempt } from '../../jobs/finish/finish.ts';
import type { Outcome } from '../../jobs/finish/outcome.ts';
import { requeueUnstarted } from '../../jobs/finish/requeue-unstarted.ts';
import type { Job } from '../../jobs/model/job.ts';
import { timeoutOf } from '../../jobs/model/timeout.ts';
import { Rate } from '../../kernel/rate.ts';
import { hasCapacities } from '../../tenants/capacities.ts';
import type { Tenant } from '../../tenants/tenant.ts';
import { type Abandoned, Attempt, type Executor } from '../attempt/attempt.ts';
import { JobStopped, type StopReason } from '../attempt/stop-reason.ts';
import type { HeldLease } from '../heartbeat/heartbeat.ts';
import { ClaimBatch } from './claim-batch.ts';
import { Claimer } from './claimer.ts';
import { DueTimer } from './due-timer.ts';
import type { EndedAttempt, LoopDependencies } from './loop-dependencies.ts';
import { LostClaims } from './lost-claims.ts';
import { OutcomeWriterPool } from './outcome-writer-pool.ts';
import { ReadyQueue } from './ready-queue.ts';
import { Reservations } from './reservations.ts';
import type { SlotWaiter } from './slots.ts';
import { UnresponsiveHandlers } from './unresponsive-handlers.ts';

/** What is to be written of an attempt, and what is to be done once it is. */
interface PendingOutcome extends FinishedAttempt {
  job: Job;
  seconds: number;
  /** The lease that ends with this attempt. */
  lastOf: HeldLease | undefined;
  /** False: the job was claimed and given back without being run. */
  began: boolean;
}

// Beyond this size a statement holds its locks longer than it saves, and there is one more beside it.
const maxClaim = 1500;
const leaseRanOut = 'the lease ran out before the attempt began';
// Outcomes that may wait for their commit before the loop stops taking more.
const maxBacklog = 4000;

export class TenantLoop implements SlotWaiter {
  readonly key: string;
  tenant: Tenant;
  readonly running = new Map<string, Attempt>();
  readonly #deps: LoopDependencies;
  readonly #outcomeWriters: OutcomeWriterPool<PendingOutcome>;
  readonly #ready = new ReadyQueue();
  readonly #claimer: Claimer;
  #scheduled = false;
  #stopped = false;
  readonly #reservations: Reservations;
  readonly #claimRate = new Rate();
  readonly #lostClaims: LostClaims;
  readonly #due: DueTimer;
  readonly #unresponsive: UnresponsiveHandlers;

  constructor(tenant: Tenant, deps: LoopDependencies) {
    this.key = tenant.slug;
    this.tenant = tenant;
    this.#deps = deps;
    const actor = `worker:${deps.workerId}`;
    this.#lostClaims = new LostClaims(deps.db, tenant.schema, actor);
    this.#claimer = new Claimer({
      lost: this.#lostClaims,
      next: () => this.#claim(),
      send: (request) => deps.claim(this.tenant, request),
      onClaimed: (claimed, sentAt) => this.#begin(claimed, sentAt),
      onFailed: (error, delayMs) => {
        deps.logger.warn({ err: error, tenant: this.key, delayMs }, 'claim failed');
        deps.observe.claimFailed(this.tenant);
      },
      onNoRoom: () => deps.slots.wait(this),
      onDue: () => this.#schedule(),
    });
    this.#reservations = new Reservations((count) => deps.slots.release(this.key, count));
    this.#outcomeWriters = new OutcomeWriterPool({
      db: deps.db,
      schema: tenant.schema,
      actor,
      logger: deps.logger,
      trustedForMs: (leaseId) => deps.heartbeat.trustedForMs(leaseId),
      nextClaim: () => this.#nextClaim(),
      onClaimed: (claimed, sentAt) => this.#begin(claimed, sentAt),
      onClaimLost: (leaseId, error) => this.#loseClaim(leaseId, error),
      onRunnable: (offered) => this.#onRunnable(offered || this.#stopped || this.#room() <= 0),
      onFinished: (items, accepted) => this.#onFinished(items, accepted),
      onWritten: () => {
        if (this.#claimer.mayHaveWork) this.#schedule();
      },
    });
    this.#unresponsive = new UnresponsiveHandlers(
      {
        ...deps,
        schema: tenant.schema,
        maxMs: deps.unresponsiveMaxMs,
        tokenLimit: () => this.tenant.settings.token_limit ?? deps.tokenLimit,
      },
      (attempts) => {
        this.#queue(attempts);
        this.#schedule();
      },
    );
    this.#due = new DueTimer({
      db: deps.db,
      schema: tenant.schema,
      actor,
      onQueued: () => this.wake(),
      onError: (error) => deps.logger.warn({ err: error, tenant: this.key }, 'due jobs could not be queued'),
    });
  }

  /** There may be something to claim. Cheap; many calls of one turn make one claim. */
  wake(): void {
    if (this.#deps.types().length === 0) return;
    this.#claimer.wake();
    this.#schedule();
  }

  onSlotFree(): void {
    this.#schedule();
  }

  /** A PENDING job of this tenant is due in `ms`. */
  dueIn(ms: number): void {
    this.#due.dueIn(ms);
  }

  /** Jobs claimed in the last second or so. */
  get claimsPerSecond(): number {
    return this.#claimRate.perSecond();
  }

  /** Slots for jobs that are about to be put in, so that they start with the commit that brings them. */
  reserve(jobs: readonly NewJob[]): Reservation | undefined {
    const { slots } = this.#deps;
    const types = this.#deps.types();
    const ours = jobs.every((job) => !job.remote && types.includes(job.type));
    if (!ours || this.#claimer.busy || this.#ready.size > 0 || !this.#isDrained) return undefined;
    if (slots.freeFor(this.key, this.#limit) < jobs.length) return undefined;
    const { leaseId, owner, leaseSeconds } = this.#request(jobs.length, types);
    const sentAt = process.hrtime.bigint();
    const end = this.#reservations.begin(slots.take(this, slots.runningOf(this.key) + jobs.length));
    return {
      leaseId,
      owner,
      leaseSeconds,
      started: (started) => {
        end();
        this.#begin({ leaseId, jobs: started }, sentAt);
      },
      failed: (error) => {
        end();
        this.#loseClaim(leaseId, error);
      },
    };
  }

  /** Stops claiming at once; what runs goes on. */
  async stopClaiming(): Promise<void> {
    this.#stopped = true;
    this.#deps.slots.forget(this.key);
    this.#ready.requeueAll('drained');
    await this.#claimer.stop();
    await this.#reservations.idle();
    await this.#due.stop();
  }

  /** Attempts that run or are about to, and handlers that were told to stop and still run. */
  get runningCount(): number {
    return this.running.size + this.#unresponsive.size;
  }

  get runningTypes(): string[] {
    return [...[...this.running.values()].map((attempt) => attempt.job.type), ...this.#unresponsive.types];
  }

  /** Tells everything that runs to stop. What waits for a handler that does not stop is given back in the end. */
  stopRunning(reasonFor: (job: Job) => StopReason): void {
    for (const attempt of [...this.running.values()]) if (attempt.started) attempt.stop(reasonFor(attempt.job));
  }

  /** The process is about to exit, and its handlers with it: writes how their attempts end. */
  async releaseHandlers(): Promise<void> {
    for (const attempt of [...this.running.values()]) attempt.giveUp();
    await this.#unresponsive.releaseAll('exiting');
    await this.flushed();
  }

  /** All outcomes known so far are written, and claims whose answers were lost are given back. */
  async flushed(): Promise<void> {
    await this.#outcomeWriters.idle();
    try {
      if ((await this.#lostClaims.release()) > 0) this.#onRunnable(true);
    } catch (error) {
      this.#deps.logger.warn({ err: error, tenant: this.key }, 'lost claims could not be given back');
    }
  }

  #onRunnable(elsewhere: boolean): void {
    this.#deps.onRunnable(this.tenant, elsewhere);
    this.wake();
  }

  #schedule(): void {
    if (this.#stopped || this.#scheduled) return;
    this.#scheduled = true;
    setImmediate(() => {
      this.#scheduled = false;
      this.#pump();
    });
  }

  #pump(): void {
    if (this.#stopped) return;
    // What is ready does not wait for the answer of a claim.
    this.#startReady();
    this.#claimer.send();
  }

  /** The next claim, if there is room for it. */
  #claim(): NamedClaim | undefined {
    const wanted = this.#wanted();
    return wanted > 0 ? this.#request(wanted, this.#deps.types()) : undefined;
  }

  #request(limit: number, types: readonly string[]): NamedClaim {
    const { workerId, leaseSeconds } = this.#deps;
    return { leaseId: uuidv7(), owner: workerId, limit, leaseSeconds, types };
  }

  /** The next jobs of lanes that move on may be taken with the outcomes, unless others come first. */
  #nextClaim(): NamedClaim | undefined {
    if (!this.#isDrained) return undefined;
    const room = this.#room();
    return room > 0 ? this.#request(room, this.#deps.types()) : undefined;
  }

  /** As far as is known: whoever comes by now may be taken, none comes before. */
  get #isDrained(): boolean {
    if (this.#stopped || !this.#claimer.isDrained || hasCapacities(this.tenant.settings)) return false;
    return this.#deps.slots.otherWaiters(this.key) === 0;
  }

  get #limit(): number {
    return Math.min(this.tenant.settings.concurrency ?? this.#deps.tenantConcurrency, this.#deps.tenantConcurrency);
  }

  /** How many jobs could be taken: for the free slots, and for those that come free within a moment. */
  #room(): number {
    const ahead = this.tenant.settings.capacity_units === undefined ? this.#ready.ahead(this.#limit) : 0;
    const free = this.#deps.slots.freeFor(this.key, this.#limit);
    return Math.min(free + ahead - this.#ready.size - this.#claimer.requested, maxClaim);
  }

  /** How many to claim now; 0 means that it is not the time. */
  #wanted(): number {
    if (this.#outcomeWriters.pending >= maxBacklog) return 0;
    const room = this.#room();
    // A claim for a few, while many are ready or on their way, would cost as much as one for many.
    const least = this.#claimer.busy ? maxClaim / 2 : this.#ready.size;
    return room > 0 && room >= least ? room : 0;
  }

  /** Starts what is ready, as far as slots go. */
  #startReady(): void {
    const { slots, heartbeat, observe } = this.#deps;
    if (this.#ready.size === 0) {
      if (!this.#claimer.mayHaveWork) slots.forget(this.key);
      return;
    }
    const granted = slots.take(this, Math.min(this.#limit, slots.runningOf(this.key) + this.#ready.size));
    const taken = this.#ready.take(granted);
    let started = 0;
    for (const attempt of taken) {
      // Looked at before each: a handler before it may have blocked the process, or a claim was answered too late.
      if (heartbeat.isTrusted(attempt.leaseId)) {
        observe.started(this.tenant, attempt.job);
        attempt.start();
      } else attempt.requeue(leaseRanOut);
      if (attempt.started) started += 1;
    }
    slots.release(this.key, granted - started);
  }

  #loseClaim(leaseId: string, error: unknown): void {
    this.#lostClaims.add(leaseId, error);
    this.wake();
  }

  #begin(claimed: Claimed, sentAt: bigint): void {
    this.#take(claimed, sentAt);
    this.#startReady();
  }

  #take(claimed: Claimed, sentAt: bigint): void {
    const { heartbeat, observe } = this.#deps;
    observe.claimed(this.tenant, claimed.jobs);
    this.#claimRate.add(claimed.jobs.length);
    if (claimed.jobs.length === 0) return;
    const batch = new ClaimBatch(
      this.tenant.schema,
      claimed.leaseId,
      claimed.jobs.map((job) => job.id),
    );
    heartbeat.hold(batch, sentAt);
    const executor: Executor = {
      cancelGraceMs: this.#deps.cancelGraceMs,
      timeoutSeconds: (job) => timeoutOf(job, this.tenant, this.#deps.timeoutSeconds),
      run: (attempt) => this.#deps.run(this.tenant, attempt),
      finish: (attempt, outcome) => this.#finish(batch, attempt, outcome),
      abandon: (attempt, abandoned) => this.#abandon(batch, attempt, abandoned),
    };
    const attempts = claimed.jobs.map((job) => new Attempt(job, claimed.leaseId, executor));
    for (const attempt of attempts) {
      batch.add(attempt);
      this.running.set(attempt.job.id, attempt);
    }
    this.#queue(this.#unresponsive.admit(attempts));
  }

  #queue(attempts: Attempt[]): void {
    this.#ready.add(attempts);
    // The claim may have been answered after the loop was stopped.
    if (this.#stopped) this.#ready.requeueAll('drained');
  }

  /** The handler still runs. It gives its slot away, and its job keeps the lane. */
  #abandon(batch: ClaimBatch, attempt: Attempt, { reason, outcome, ended, patienceMs }: Abandoned): void {
    const { observe } = this.#deps;
    const { job, leaseId } = attempt;
    let owned = true;
    const leaveBatch = () => {
      owned = false;
      if (batch.remove(attempt)) this.#endLease(batch);
    };
    this.#leave(attempt);
    // A lost lease is trusted no longer, whatever the database says of it.
    if (outcome === undefined) leaveBatch();
    this.#unresponsive.add(
      {
        job,
        leaseId,
        reason: `${new JobStopped(reason).message}, and the handler has not stopped`,
        outcome,
        ended,
        patienceMs,
        onFenced: () => {
          if (owned) leaveBatch();
          observe.unresponsive(this.tenant, job, 'fenced');
        },
      },
      (handler, decided) => {
        const seconds = secondsOf(attempt);
        if (handler.release === 'expired') observe.unresponsive(this.tenant, job, 'released');
        if (handler.fenced && decided !== undefined) this.#write(handler, decided, seconds, handler);
        else if (owned && decided !== undefined)
          this.#write(attempt, decided, seconds, batch.remove(attempt) ? batch : undefined);
        else {
          this.#deps.heartbeat.drop(handler);
          observe.finished(this.tenant, [{ job, outcome: undefined, seconds }]);
        }
      },
    );
  }

  #finish(batch: ClaimBatch, attempt: Attempt, outcome: Outcome | undefined): void {
    const seconds = secondsOf(attempt);
    const last = batch.remove(attempt);
    this.#leave(attempt);
    if (outcome !== undefined) {
      this.#write(attempt, outcome, seconds, last ? batch : undefined);
      return;
    }
    this.#deps.observe.finished(this.tenant, [{ job: attempt.job, outcome, seconds }]);
    if (last) this.#endLease(batch);
  }

  /** It runs no longer, or has no claim to its slot any more. */
  #leave(attempt: Attempt): void {
    this.running.delete(attempt.job.id);
    if (!attempt.started) return;
    this.#deps.slots.release(this.key, 1);
    this.#ready.observe(secondsOf(attempt) * 1000);
    if (this.#claimer.mayHaveWork || this.#ready.size > 0) this.#schedule();
  }

  /** Nothing of the lease is left to be written. */
  #endLease(batch: ClaimBatch): void {
    this.#deps.heartbeat.drop(batch);
    this.#outcomeWriters.forget(batch.leaseId);
  }

  #write(
    { job, leaseId, started: began = true }: Pick<Attempt, 'job' | 'leaseId'> & { readonly started?: boolean },
    outcome: Outcome,
    seconds: number,
    lastOf: HeldLease | undefined,
  ): void {
    const item = { job, jobId: job.id, leaseId, targetId: job.targetId, outcome, seconds, lastOf, began };
    this.#outcomeWriters.add(item, lastOf !== undefined);
  }

  /** Its lease may have expired while the process stood still: it must not count as an attempt that was lost. */
  #requeueUnstarted({ leaseId, job }: PendingOutcome): void {
    const { db, logger, workerId } = this.#deps;
    const unstarted = { leaseId, jobs: [job], actor: `worker:${workerId}`, reason: leaseRanOut };
    requeueUnstarted(db, this.tenant.schema, unstarted).then(
      (count) => {
        if (count > 0) this.wake();
      },
      (error: unknown) => logger.warn({ err: error, jobId: job.id }, 'job that never began could not be requeued'),
    );
  }

  #onFinished(items: PendingOutcome[], accepted: (item: PendingOutcome) => boolean): void {
    const { heartbeat, observe } = this.#deps;
    const ended: EndedAttempt[] = [];
    for (const item of items) {
      // Until its outcome is written the job is still ours to keep alive.
      if (item.lastOf !== undefined) heartbeat.drop(item.lastOf);
      const outcome = accepted(item) ? item.outcome : undefined;
      ended.push({ job: item.job, outcome, seconds: item.seconds });
      if (outcome?.kind === 'retry' || outcome?.kind === 'recoverLater') this.dueIn(outcome.delayMs + 1);
      if (outcome === undefined && !item.began) this.#requeueUnstarted(item);
    }
    observe.finished(this.tenant, ended);
    // What ended made room for what did not fit.
    if (hasCapacities(this.tenant.settings)) this.#onRunnable(this.#stopped);
  }
}

function secondsOf(attempt: Attempt): number {
  return (performance.now() - attempt.startedAt) / 1000;
}
