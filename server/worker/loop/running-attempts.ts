// The attempts of one tenant from their claim to their end: holds their leases, starts them as slots allow, stops them
// at their timeouts and frees their slots. The loop handles their ends.

import type { Schema } from '../../database/identifiers.ts';
import type { StopReason } from '../../durable/stop-reason.ts';
import { requestedStop } from '../../durable/stop-reason.ts';
import type { Claimed } from '../../jobs/claim/claim.ts';
import type { LiveJob } from '../../jobs/claim/lease.ts';
import type { Job } from '../../jobs/model/job.ts';
import { monotonicMs } from '../../kernel/clock.ts';
import { maxTimerMs } from '../../kernel/limits.ts';
import type { Tenant } from '../../tenants/tenant.ts';
import { Attempt, type AttemptBatch, type UnresponsiveEnd } from '../attempt/attempt.ts';
import { type Released, UnresponsiveHandlers } from '../attempt/unresponsive-handler.ts';
import { readStopRequests } from '../heartbeat/read-stop-requests.ts';
import type { LoopContext } from '../worker-context.ts';
import { ClaimLimit } from './claim-limit.ts';
import type { LoopObserver } from './loop-observer.ts';
import { ReadyQueue } from './ready-queue.ts';
import type { SlotWaiter } from './slots.ts';

export const leaseExpiredReason = 'the lease ran out before the attempt began';

// Attempts that time out one after the other share a check.
const minTimeoutMs = 5;

export class RunningAttempts {
  readonly ready: ReadyQueue;
  readonly claimLimit: ClaimLimit;
  readonly #context: LoopContext;
  readonly #observe: LoopObserver;
  readonly #owner: SlotWaiter;
  readonly #batches = new Set<ClaimBatch>();
  readonly #unresponsive: UnresponsiveHandlers;
  /** Attempts that have a slot and begin when their stop requests were read again. */
  readonly #reading = new Set<Attempt>();
  /** Attempts that have ended and that the loop has not taken yet. */
  #ended: Attempt[] = [];
  #count = 0;
  #timeoutAt = Number.POSITIVE_INFINITY;
  #timeoutTimer: NodeJS.Timeout | undefined;

  constructor(owner: SlotWaiter, context: LoopContext, observe: LoopObserver) {
    this.#owner = owner;
    this.#context = context;
    this.#observe = observe;
    this.#unresponsive = new UnresponsiveHandlers(context, observe);
    const hasPeers = () => context.peers.count > 0;
    this.ready = new ReadyQueue({ hasPeers });
    this.claimLimit = new ClaimLimit({ hasPeers });
  }

  /** The number of attempts that run or wait for a slot, and of handlers that were asked to stop and still run. */
  get count(): number {
    return this.#count + this.#unresponsive.size;
  }

  get types(): string[] {
    return [...this.#unfinished().map((attempt) => attempt.job.type), ...this.#unresponsive.types];
  }

  /** Renews the lease of the claim from now on. The attempts are ready to start, or wait for a handler. */
  hold(tenant: Tenant, claimed: Claimed, sentAt: bigint): void {
    const batch = new ClaimBatch(tenant, claimed, this.#batches, {
      onBegun: (attempt) => this.#stopAt(attempt.timeoutAt),
      onEnded: (attempt) => this.#onEnded(attempt),
    });
    const attempts = claimed.jobs.map((job) => new Attempt(job, batch, this.#context));
    batch.add(attempts);
    this.#count += attempts.length;
    this.#context.heartbeat.hold(batch, sentAt);
    this.ready.add(this.#unresponsive.admit(attempts), claimed.isCut);
  }

  /** Starts ready attempts, as far as slots allow. */
  startReady(tenant: Tenant, limit: number): void {
    const { slots, heartbeat } = this.#context;
    if (this.ready.size === 0) return;
    const granted = slots.take(this.#owner, Math.min(limit, slots.runningOf(this.#owner.key) + this.ready.size));
    const late: Attempt[] = [];
    let started = 0;
    for (const attempt of this.ready.take(granted)) {
      // Checked before each start, because the previous handler may have blocked the process, or the claim was answered
      // too late.
      const isLate = heartbeat.startUntilMs(attempt.leaseId) <= monotonicMs();
      if (isLate && heartbeat.isTrusted(attempt.leaseId)) late.push(attempt);
      else if (this.#startIfTrusted(tenant, attempt)) started += 1;
    }
    slots.release(this.#owner.key, granted - started - late.length);
    if (late.length > 0) void this.#readAndStart(tenant, late);
  }

  /** Starts attempts whose stop requests were last read too long ago, unless they are asked to stop. */
  async #readAndStart(tenant: Tenant, late: readonly Attempt[]): Promise<void> {
    const leaseIds = [...new Set(late.map((attempt) => attempt.leaseId))];
    for (const attempt of late) this.#reading.add(attempt);
    try {
      await readStopRequests(this.#context, tenant.schema, leaseIds);
    } catch (error) {
      this.#context.logger.debug({ err: error, tenant: tenant.slug }, 'stop requests could not be read');
      for (const attempt of late) attempt.requeue('its stop requests could not be read');
    }
    for (const attempt of late) {
      // An attempt that has ended meanwhile keeps its slot until the loop takes it.
      if (!attempt.finished && this.#startIfTrusted(tenant, attempt)) this.#reading.delete(attempt);
    }
  }

  /** Requeues an attempt whose lease is over instead. Returns true if it was started. */
  #startIfTrusted(tenant: Tenant, attempt: Attempt): boolean {
    const { heartbeat, monitor } = this.#context;
    if (heartbeat.isTrusted(attempt.leaseId)) {
      this.#observe.started(tenant, attempt.job);
      monitor?.began(attempt.job.type);
      attempt.start();
      this.claimLimit.started(attempt.startedAt - attempt.batch.claimedAt);
      this.#stopAt(attempt.timeoutAt);
    } else attempt.requeue(leaseExpiredReason);
    return attempt.started;
  }

  /** Requeues what was claimed and has not started. */
  requeueUnstarted(reason: string): void {
    this.ready.requeueAll(reason);
    for (const attempt of this.#reading) attempt.requeue(reason);
  }

  /** Returns the attempts that have ended since the last call, and frees their slots. */
  takeEnded(): Attempt[] {
    const ended = this.#ended;
    if (ended.length === 0) return ended;
    this.#ended = [];
    this.#count -= ended.length;
    if (this.#count === 0) this.#clearTimeout();
    let slots = 0;
    for (const attempt of ended) {
      if (attempt.started || this.#reading.delete(attempt)) slots += 1;
      if (!attempt.begun) continue;
      const ms = attempt.seconds * 1000;
      this.ready.observe(ms);
      this.claimLimit.ended(ms);
    }
    this.#context.slots.release(this.#owner.key, slots);
    return ended;
  }

  /** Resolves when the handler has returned or was given up. The attempts that waited for it are then ready. */
  async awaitUnresponsive(attempt: Attempt, end: UnresponsiveEnd): Promise<Released | undefined> {
    const released = await this.#unresponsive.hold(attempt, end);
    this.ready.add(this.#unresponsive.takeFree());
    return released;
  }

  /** Asks all running attempts to stop. */
  stop(reasonFor: (job: Job) => StopReason): void {
    for (const attempt of this.#unfinished()) if (attempt.started) attempt.stop(reasonFor(attempt.job));
  }

  /** Gives up on attempts that were asked to stop, which ends them. */
  giveUp(): void {
    for (const attempt of this.#unfinished()) attempt.giveUp();
  }

  /** Gives up on handlers that still run. Resolves when their outcomes are known. */
  releaseHandlers(): Promise<void> {
    return this.#unresponsive.releaseAll('exiting');
  }

  #unfinished(): Attempt[] {
    return [...this.#batches].flatMap((batch) => batch.attempts().filter((attempt) => !attempt.finished));
  }

  #onEnded(attempt: Attempt): void {
    this.#ended.push(attempt);
    // The slot is freed when the loop takes the ended attempt.
    this.#owner.slotFree.set();
  }

  /** One timer for all attempts, set for the earliest timeout, because almost all attempts end before theirs. */
  #stopAt(timeoutAt: number): void {
    if (timeoutAt >= this.#timeoutAt) return;
    clearTimeout(this.#timeoutTimer);
    this.#timeoutAt = timeoutAt;
    const ms = Math.max(minTimeoutMs, timeoutAt - performance.now());
    this.#timeoutTimer = setTimeout(() => this.#stopTimedOut(), Math.min(ms, maxTimerMs));
  }

  #stopTimedOut(): void {
    this.#clearTimeout();
    // A timer may fire a millisecond early.
    const now = performance.now() + 1;
    const running = this.#unfinished();
    for (const attempt of running) if (attempt.timeoutAt <= now) attempt.timeOut();
    this.#stopAt(running.reduce((earliest, { timeoutAt }) => Math.min(earliest, timeoutAt), Number.POSITIVE_INFINITY));
  }

  #clearTimeout(): void {
    clearTimeout(this.#timeoutTimer);
    this.#timeoutAt = Number.POSITIVE_INFINITY;
  }
}

class ClaimBatch implements AttemptBatch {
  readonly tenant: Tenant;
  readonly schema: Schema;
  readonly leaseId: string;
  readonly jobIds: string[];
  readonly claimedAt = performance.now();
  readonly onBegun: (attempt: Attempt) => void;
  readonly onEnded: (attempt: Attempt) => void;
  readonly #batches: Set<ClaimBatch>;
  readonly #attempts = new Map<string, Attempt>();

  /** The batch is removed from `batches` with its last attempt. */
  constructor(
    tenant: Tenant,
    claimed: Claimed,
    batches: Set<ClaimBatch>,
    { onBegun, onEnded }: Pick<AttemptBatch, 'onBegun' | 'onEnded'>,
  ) {
    this.tenant = tenant;
    this.schema = tenant.schema;
    this.leaseId = claimed.leaseId;
    this.jobIds = claimed.jobs.map((job) => job.id);
    this.onBegun = onBegun;
    this.onEnded = onEnded;
    this.#batches = batches;
    batches.add(this);
  }

  add(attempts: readonly Attempt[]): void {
    for (const attempt of attempts) this.#attempts.set(attempt.job.id, attempt);
  }

  attempts(): Attempt[] {
    return [...this.#attempts.values()];
  }

  has(attempt: Attempt): boolean {
    return this.#attempts.has(attempt.job.id);
  }

  remove(attempt: Attempt): boolean {
    this.#attempts.delete(attempt.job.id);
    if (this.#attempts.size > 0) return false;
    this.#batches.delete(this);
    return true;
  }

  /** A job that has left the batch is not lost: its outcome is written or about to be. */
  onLost(jobId: string): void {
    this.#attempts.get(jobId)?.stop({ kind: 'leaseLost' });
  }

  onStopRequested(job: LiveJob): void {
    const reason = requestedStop(job);
    if (reason !== undefined) this.#attempts.get(job.jobId)?.stop(reason);
  }
}
