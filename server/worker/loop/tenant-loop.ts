// The worker loop of one tenant, and the life of a job in it: claim → hold → start → take ended attempts → write their
// outcomes → start the jobs that were claimed with them. Its parts return values or set signals; this file decides
// what happens next. It never polls: enqueues, advanced lanes, due times and the daemon's poll wake it.
import { setImmediate as immediate } from 'node:timers/promises';
import { isConnectionError } from '../../database/sql-errors.ts';
import type { Claimed } from '../../jobs/claim/claim.ts';
import type { NewJob } from '../../jobs/enqueue/enqueue.ts';
import type { Reservation } from '../../jobs/enqueue/insert-jobs.ts';
import { nextBatchInMs, queueDueJobs } from '../../jobs/finish/due-jobs.ts';
import { EarliestTimer, Signal } from '../../kernel/service.ts';
import type { Tenant } from '../../tenants/tenant.ts';
import { hasCapacities } from '../../tenants/tenant-store.ts';
import type { Attempt, UnresponsiveEnd } from '../attempt/attempt.ts';
import type { LoopContext } from '../worker-context.ts';
import { ClaimRoom, peerRecheckMs } from './claim-room.ts';
import { Claimer } from './claimer.ts';
import { LimitGate } from './limit-gate.ts';
import { LoopObserver } from './loop-observer.ts';
import type { OutcomeQueue } from './outcome-queues.ts';
import { Outcomes, type PendingOutcome } from './outcomes.ts';
import { RunningAttempts } from './running-attempts.ts';
import { SlotReservation, type SlotWaiter } from './slots.ts';

export class TenantLoop implements SlotWaiter {
  readonly key: string;
  readonly slotFree = new Signal();
  tenant: Tenant;
  readonly #context: LoopContext;
  readonly observer: LoopObserver;
  readonly #claimer: Claimer;
  readonly attempts: RunningAttempts;
  readonly #outcomes: Outcomes;
  readonly #room: ClaimRoom;
  readonly #gate: LimitGate;
  /** What is in flight. A drain waits until it is known which jobs the claims and reservations took. */
  readonly #inFlight = new Set<Promise<void>>();
  readonly #wakeTimer = new EarliestTimer(() => this.wake());
  readonly #gateTimer = new EarliestTimer(() => this.#track(this.#openGate()));
  readonly #dueTimer = new EarliestTimer(() => this.#track(this.#queueDue()));
  #scheduled = false;
  #stopped = false;

  constructor(tenant: Tenant, daemonContext: LoopContext) {
    const context = { ...daemonContext, db: daemonContext.db.forTenant(tenant.schema) };
    this.key = tenant.slug;
    this.tenant = tenant;
    this.#context = context;
    this.observer = new LoopObserver(context.metrics, context.logger);
    this.#claimer = new Claimer(context);
    this.attempts = new RunningAttempts(this, context, this.observer);
    this.#outcomes = new Outcomes(tenant, context, this.observer);
    this.#room = new ClaimRoom(context, { claimer: this.#claimer, attempts: this.attempts, outcomes: this.#outcomes });
    this.#gate = new LimitGate(tenant, context);
    void this.#followSlots();
  }

  wake(): void {
    if (this.#gate.hasLimits) this.wakeGate();
    this.#wakeClaims();
  }

  /** Jobs wait at the gate of the limits, even if the tenant no longer has limits. */
  wakeGate(): void {
    const inMs = this.#gate.runInMs();
    if (inMs !== undefined) this.#gateTimer.in(inMs);
  }

  /** There may be something to claim. Many calls in one turn of the event loop make one claim. */
  #wakeClaims(): void {
    if (this.#context.handlers.types().length === 0) return;
    this.#claimer.wake();
    this.#schedule();
  }

  /** The tenant's row, or limits that job types declare, have changed. */
  update(tenant: Tenant): void {
    this.tenant = tenant;
    void this.#gate.update(tenant).then((limits) => limits === 'changed' && this.wakeGate());
  }

  /** A wake-up by another daemon reaches all, and few find work. A loop that found none waits before its next claim. */
  wakeByPeer(): void {
    const waitMs = this.#claimer.peerWakeUpInMs();
    waitMs <= 0 ? this.wake() : this.#wakeTimer.in(waitMs);
  }

  /** True if these new jobs can be claimed here now. */
  hasRoomFor(jobs: readonly NewJob[]): boolean {
    return !this.#stopped && this.#room.canClaim(this.tenant, jobs, this.#context.handlers.types());
  }

  async #followSlots(): Promise<never> {
    for (;;) {
      await this.slotFree.next();
      if (this.#gate.hasLimits) this.wakeGate();
      this.#schedule();
    }
  }

  /** A PENDING job of this tenant is due in `ms`. */
  dueIn(ms: number): void {
    this.#dueTimer.in(ms);
  }

  #schedule(): void {
    if (this.#scheduled) return;
    this.#scheduled = true;
    setImmediate(() => {
      this.#scheduled = false;
      this.#turn();
    });
  }

  /** Everything that happened in one turn of the event loop shares its statements. */
  #turn(): void {
    this.#takeEnded();
    for (const queue of this.#outcomes.takeUnwritten()) void this.#writeAndStart(queue);
    if (this.#stopped) return;
    // Ready attempts do not wait for the answer of a claim.
    this.#startReady();
    this.#claim();
  }

  #claim(): void {
    while (!this.#stopped && this.#claimer.maySend) {
      const room = this.#room.forClaim(this.tenant);
      if (room > 0) {
        this.#track(this.#claimAndStart(room));
        continue;
      }
      if (this.#claimer.isBusy) return; // its answer leads back here
      this.#claimer.setFull();
      if (this.#room.isLimitedByPeers(this.tenant)) this.#leaveToPeers();
      else this.#context.slots.wait(this);
      return;
    }
  }

  /** Other daemons can start the waiting jobs sooner. The limit is computed again soon, or when an attempt ends. */
  #leaveToPeers(): void {
    this.#wakeTimer.in(peerRecheckMs);
    if (this.attempts.claimLimit.mayNotify()) this.#context.signals.workAvailable(this.tenant, { reach: 'peers' });
  }

  /** Lets jobs with limits into the claim index, as far as this loop has room for them. */
  async #openGate(): Promise<void> {
    const { opened, nextMs } = await this.#gate.run(this.#room.available(this.tenant));
    if (opened > 0) this.#wakeClaims();
    if (nextMs !== undefined) this.#gateTimer.in(nextMs);
  }

  /** Queues the due jobs, and sets the timer for further batches and later due times. */
  async #queueDue(): Promise<void> {
    const { db, config, logger } = this.#context;
    try {
      const queued = await queueDueJobs(db, this.tenant.schema, `worker:${config.workerId}`);
      if (queued > 0) this.#workAvailable('daemon');
      this.dueIn(await nextBatchInMs(db, this.tenant.schema, queued));
    } catch (error) {
      logger.warn({ err: error, tenant: this.key }, 'due jobs could not be queued');
    }
  }

  async #claimAndStart(room: number): Promise<void> {
    const answer = await this.#claimer.next(this.tenant, room);
    if (answer.kind === 'failed') {
      this.observer.claimFailed(this.tenant, answer.error, answer.retryInMs);
      this.#wakeTimer.in(answer.retryInMs);
    } else {
      this.#start(answer.claimed, answer.sentAt);
      if (answer.againInMs !== undefined) this.#wakeTimer.in(answer.againInMs);
    }
    // In the next turn, because the number of jobs that have ended by then decides how many are claimed.
    this.#schedule();
  }

  /** Holds the lease of a claim and starts its jobs, now or as slots become free. */
  #start(claimed: Claimed, sentAt: bigint): void {
    this.observer.claimed(this.tenant, claimed.jobs);
    if (claimed.jobs.length > 0) {
      this.attempts.hold(this.tenant, claimed, sentAt);
      this.#context.monitor?.wake();
      this.#context.signals.eventsWritten(this.tenant);
    }
    this.#startReady();
  }

  #startReady(): void {
    // A claim may be answered after the loop was stopped.
    if (this.#stopped) this.attempts.requeueUnstarted('drained');
    else if (this.attempts.ready.size > 0) this.attempts.startReady(this.tenant, this.#room.limit(this.tenant));
    else if (!this.#claimer.mayHaveWork) this.#context.slots.forget(this.key);
  }

  #takeEnded(): void {
    for (const attempt of this.attempts.takeEnded()) {
      if (attempt.unresponsive !== undefined) void this.#awaitUnresponsive(attempt, attempt.unresponsive);
      else this.#outcomes.add(this.tenant, attempt, attempt.outcome, attempt.batch, attempt.batch.remove(attempt));
    }
  }

  /** Awaits the end of a handler that was asked to stop and still runs. Until then its job keeps the lane. */
  async #awaitUnresponsive(attempt: Attempt, end: UnresponsiveEnd): Promise<void> {
    const { job, batch, begun, startedAt } = attempt;
    const released = await this.attempts.awaitUnresponsive(attempt, end);
    const ended = { job, begun, seconds: (performance.now() - startedAt) / 1000 };
    const { outcome, lease = batch, isLast = false } = released ?? {};
    this.#outcomes.add(this.tenant, ended, outcome, lease, isLast);
    if (this.#stopped) this.#startReady();
    this.#schedule();
  }

  /** Writes the outcomes of a queue, batch by batch; each write may also claim the next jobs of lanes. */
  async #writeAndStart(queue: OutcomeQueue<PendingOutcome>): Promise<void> {
    for (;;) {
      // Attempts that started in this turn of the event loop may end in it too: their outcomes join the batch.
      await immediate();
      this.#takeEnded();
      const freesOthers = this.#gate.countsRunning || hasCapacities(this.tenant.settings);
      if (!this.#stopped && !freesOthers) await this.#outcomes.awaitMore(queue);
      const batch = this.#outcomes.next(queue);
      if (batch === undefined) return;
      const advancesLanes = !this.#stopped && batch.items.some((item) => item.targetId !== null);
      const room = advancesLanes ? this.#room.forNextOfLanes(this.tenant) : 0;
      const claimNext = room > 0 ? this.#claimer.request(room) : undefined;
      const { claimed, lostClaims, runnable, dueInMs } = await this.#outcomes.write(this.tenant, batch, claimNext);
      for (const ms of dueInMs) this.dueIn(ms + 1);
      for (const leaseId of lostClaims) this.#claimer.addLost(leaseId);
      if (lostClaims.length > 0) this.wake();
      // A job that was offered to this claim and not taken is for another daemon.
      const wasOffered = claimNext !== undefined && lostClaims.length === 0;
      const isFull = () => this.#stopped || this.#room.available(this.tenant) <= 0;
      if (runnable) this.#workAvailable(wasOffered || isFull() ? 'all' : 'daemon');
      // The end freed capacity for jobs that did not fit, or a slot of a limit for a job of another daemon.
      else if (hasCapacities(this.tenant.settings)) this.#workAvailable(this.#stopped ? 'all' : 'daemon');
      else if (this.#gate.countsRunning) this.#workAvailable('all');
      if (claimed !== undefined) this.#start(claimed.claimed, claimed.sentAt);
      if (this.#claimer.mayHaveWork) this.#schedule();
    }
  }

  /** `reach`: all daemons, if this one cannot take the job now. */
  #workAvailable(reach: 'all' | 'daemon'): void {
    this.#context.signals.workAvailable(this.tenant, { reach });
    this.wake();
  }

  #track(work: Promise<void>): void {
    this.#inFlight.add(work);
    void work.then(() => this.#inFlight.delete(work));
  }

  /** Reserves slots for jobs that are about to be enqueued, so that they start with the commit that inserts them. */
  reserve(jobs: readonly NewJob[]): Reservation | undefined {
    if (this.#stopped || !this.#room.fits(this.tenant, jobs, this.#context.handlers.types())) return undefined;
    const reservation = new SlotReservation(this, this.#context.slots, this.#claimer.request(jobs.length));
    this.#track(this.#startReserved(reservation));
    return reservation;
  }

  async #startReserved({ answered, leaseId, sentAt }: SlotReservation): Promise<void> {
    const answer = await answered;
    if (answer.kind === 'started') return this.#start({ leaseId, jobs: answer.jobs }, sentAt);
    if (isConnectionError(answer.error)) this.#claimer.addLost(leaseId);
    this.wake();
  }

  /** Stops claiming at once; running attempts continue. */
  async stopClaiming(): Promise<void> {
    this.#stopped = true;
    for (const part of [this.#wakeTimer, this.#gateTimer, this.#dueTimer, this.#gate]) part.stop();
    this.#context.slots.forget(this.key);
    this.attempts.requeueUnstarted('drained');
    await Promise.all(this.#inFlight);
  }

  /** The process is about to exit with its handlers. Writes the outcomes of their attempts. */
  async releaseHandlers(): Promise<void> {
    this.attempts.giveUp();
    this.#takeEnded();
    await this.attempts.releaseHandlers();
    await this.flushed();
  }

  /** Resolves when all known outcomes are written and lost claims are released. */
  async flushed(): Promise<void> {
    await immediate(); // for outcomes of handlers that were just released
    this.#takeEnded();
    for (const queue of this.#outcomes.takeUnwritten()) void this.#writeAndStart(queue);
    await this.#outcomes.idle();
    try {
      if ((await this.#claimer.releaseLost(this.tenant)) > 0) this.#workAvailable('all');
    } catch (error) {
      this.#context.logger.warn({ err: error, tenant: this.key }, 'lost claims could not be released');
    }
  }
}
