// One tenant's worker loop: sleeps until woken, claims what its slots can start now, starts it.
// It never polls by itself; wake-ups come from enqueues, settled lanes, due times and the shared poll.
import { v7 as uuidv7 } from 'uuid';
import type { Database } from '../database/database.ts';
import type { Claimed, ClaimRequest } from '../jobs/claim.ts';
import { type Job, priorityRank } from '../jobs/job.ts';
import type { Outcome, Settlement } from '../jobs/settle.ts';
import type { Logger } from '../kernel/logger.ts';
import { Rate } from '../kernel/rate.ts';
import { hasCapacities } from '../tenants/capacities.ts';
import type { Tenant } from '../tenants/tenant.ts';
import { Attempt, type Executor } from './attempt.ts';
import { Batch } from './batch.ts';
import { DueTimer } from './due-timer.ts';
import type { Heartbeat } from './heartbeat.ts';
import { LostClaims } from './lost-claims.ts';
import type { HandlerEnd } from './run-handler.ts';
import { Settler } from './settler.ts';
import type { HungryTenant, Slots } from './slots.ts';
import type { StopReason } from './stop-reason.ts';

export interface LoopDependencies {
  db: Database;
  slots: Slots;
  heartbeat: Heartbeat;
  logger: Logger;
  workerId: string;
  leaseSeconds: number;
  cancelGraceMs: number;
  tenantConcurrency: number;
  types(): readonly string[];
  claim(tenant: Tenant, request: ClaimRequest): Promise<Claimed>;
  run(tenant: Tenant, attempt: Attempt): Promise<HandlerEnd>;
  observe: LoopObserver;
}

/** `outcome` is undefined if it was not accepted: the job was no longer ours. */
export interface EndedAttempt {
  outcome: Outcome | undefined;
  seconds: number;
}

/** What is to be written of an attempt, and what is to be done once it is. */
interface Ending extends Settlement {
  seconds: number;
  /** The claim that ends with this attempt. */
  lastOf: Batch | undefined;
}

/** What the loop tells to whoever counts. */
export interface LoopObserver {
  claimed(tenant: Tenant, jobs: Job[]): void;
  claimFailed(tenant: Tenant): void;
  settled(tenant: Tenant, ended: readonly EndedAttempt[]): void;
  abandoned(tenant: Tenant, job: Job): void;
}

// A statement beyond this size holds its locks longer than it saves.
const largestClaim = 2000;
// Jobs that are about to start are claimed ahead, so that quick ones share statements and commits.
// They are leased and kept alive like any other; what has not begun in time goes back.
const aheadMs = 100;
const mostAhead = 2000;
const returnAfterMs = 1000;
// Outcomes that may wait for their commit before the loop stops taking more.
const largestBacklog = 4000;

export class TenantLoop implements HungryTenant {
  readonly key: string;
  tenant: Tenant;
  readonly running = new Map<string, Attempt>();
  readonly #deps: LoopDependencies;
  readonly #settler: Settler<Ending>;
  #claiming: Promise<void> | undefined;
  #again = false;
  #woken = false;
  #stopped = false;
  /** Claimed ahead, in the order in which they will start. */
  #ready: Attempt[] = [];
  #returnTimer: NodeJS.Timeout | undefined;
  /** How long an attempt takes of late; unknown means long. */
  #averageMs = Number.POSITIVE_INFINITY;
  readonly #claimRate = new Rate();
  /** All slots were taken when the loop last looked: the next that ends here makes it look again. */
  #full = false;
  #backlogged = false;
  #failures = 0;
  readonly #lostClaims: LostClaims;
  #retryTimer: NodeJS.Timeout | undefined;
  readonly #due: DueTimer;

  constructor(tenant: Tenant, deps: LoopDependencies) {
    this.key = tenant.slug;
    this.tenant = tenant;
    this.#deps = deps;
    const actor = `worker:${deps.workerId}`;
    this.#lostClaims = new LostClaims(deps.db, tenant.schema, actor);
    this.#settler = new Settler({
      db: deps.db,
      schema: tenant.schema,
      actor,
      logger: deps.logger,
      trustedForMs: (leaseId) => deps.heartbeat.trustedForMs(leaseId),
      onRunnable: () => this.wake(),
      onSettled: (items, accepted) => this.#onSettled(items, accepted),
      onWritten: () => {
        if (!this.#backlogged) return;
        this.#backlogged = false;
        this.wake();
      },
    });
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
    if (this.#stopped || this.#woken) return;
    this.#woken = true;
    setImmediate(() => {
      this.#woken = false;
      this.#pump();
    });
  }

  /** A PENDING job of this tenant is due in `ms`. */
  dueIn(ms: number): void {
    this.#due.dueIn(ms);
  }

  /** Jobs claimed in the last second or so. */
  get claimsPerSecond(): number {
    return this.#claimRate.perSecond();
  }

  /** Stops claiming at once; what runs goes on. */
  async stopClaiming(): Promise<void> {
    this.#stopped = true;
    clearTimeout(this.#retryTimer);
    this.#deps.slots.forget(this.key);
    this.#returnReady('drained');
    await this.#claiming;
    await this.#due.stop();
  }

  /** Tells everything that runs to stop. */
  stopRunning(reasonFor: (job: Job) => StopReason): void {
    for (const attempt of [...this.running.values()]) attempt.stop(reasonFor(attempt.job));
  }

  /** All outcomes known so far are written. */
  async flushed(): Promise<void> {
    await this.#settler.idle();
  }

  #pump(): void {
    if (this.#stopped) return;
    if (this.#claiming !== undefined) {
      this.#again = true;
      // What is ready does not wait for the answer of the next claim.
      this.#deps.slots.release(this.key, this.#startReady());
      return;
    }
    this.#claiming = this.#claimAll().finally(() => {
      this.#claiming = undefined;
      if (this.#again) {
        this.#again = false;
        this.wake();
      }
    });
  }

  async #claimAll(): Promise<void> {
    const types = this.#deps.types();
    if (types.length === 0) return;
    this.#full = false;
    while (!this.#stopped) {
      const free = this.#startReady();
      if (this.#settler.pending >= largestBacklog) {
        this.#backlogged = true;
        return;
      }
      const wanted = Math.min(free + this.#ahead() - this.#ready.length, largestClaim);
      // A claim for a few, while many are ready, would cost as much as one for many.
      if (wanted <= 0 || (free === 0 && this.#ready.length > wanted)) {
        this.#full = true;
        return;
      }
      const leaseId = uuidv7();
      const sentAt = process.hrtime.bigint();
      let claimed: Claimed;
      try {
        await this.#lostClaims.disown();
        claimed = await this.#deps.claim(this.tenant, {
          leaseId,
          owner: this.#deps.workerId,
          limit: wanted,
          leaseSeconds: this.#deps.leaseSeconds,
          types,
        });
        this.#failures = 0;
      } catch (error) {
        this.#lostClaims.add(leaseId, error);
        this.#backOff(error);
        return;
      }
      this.#take(claimed, sentAt);
      if (claimed.jobs.length < wanted) {
        this.#startReady();
        this.#full = this.#ready.length > 0;
        if (!this.#full) this.#deps.slots.forget(this.key);
        return;
      }
    }
  }

  get #limit(): number {
    return Math.min(this.tenant.settings.concurrency ?? this.#deps.tenantConcurrency, this.#deps.tenantConcurrency);
  }

  /** How many jobs this tenant's slots will begin within the next moment, beyond those that are free. */
  #ahead(): number {
    if (this.#averageMs > aheadMs || this.tenant.settings.capacity_units !== undefined) return 0;
    return Math.min(mostAhead, Math.floor((this.#limit * aheadMs) / Math.max(1, this.#averageMs)));
  }

  /** Starts what is ready, as far as slots go. Returns how many slots are still free. */
  #startReady(): number {
    const { slots } = this.#deps;
    const granted = slots.take(this, this.#limit);
    // One that was stopped while it waited has ended already and must not take a slot.
    this.#ready = this.#ready.filter((attempt) => !attempt.settled);
    const starting = this.#ready.splice(0, granted);
    slots.release(this.key, granted - starting.length);
    for (const attempt of starting) attempt.start();
    if (this.#ready.length > 0) this.#returnTimer ??= setTimeout(() => this.#returnOld(), returnAfterMs);
    return granted - starting.length;
  }

  /** Slots did not come free as expected: others may run these jobs. */
  #returnOld(): void {
    this.#returnTimer = undefined;
    const tooOld = performance.now() - returnAfterMs / 2;
    const old = this.#ready.filter((attempt) => attempt.claimedAt < tooOld);
    this.#ready = this.#ready.filter((attempt) => attempt.claimedAt >= tooOld);
    for (const attempt of old) attempt.giveBack('not started in time');
    // What runs now is not quick: claiming ahead again would only pass the same jobs to and fro.
    if (old.length > 0) this.#averageMs = Number.POSITIVE_INFINITY;
    if (this.#ready.length > 0) this.#returnTimer = setTimeout(() => this.#returnOld(), returnAfterMs / 2);
  }

  #backOff(error: unknown): void {
    this.#failures += 1;
    const delay = Math.min(100 * 2 ** this.#failures, 10_000) * (0.5 + Math.random() / 2);
    this.#deps.logger.warn({ err: error, tenant: this.key, delayMs: Math.round(delay) }, 'claim failed');
    this.#deps.observe.claimFailed(this.tenant);
    clearTimeout(this.#retryTimer);
    if (!this.#stopped) this.#retryTimer = setTimeout(() => this.wake(), delay);
  }

  #take(claimed: Claimed, sentAt: bigint): void {
    const { heartbeat, observe } = this.#deps;
    observe.claimed(this.tenant, claimed.jobs);
    this.#claimRate.add(claimed.jobs.length);
    if (claimed.jobs.length === 0) return;
    const batch = new Batch(
      this.tenant.schema,
      claimed.leaseId,
      claimed.jobs.map((job) => job.id),
    );
    heartbeat.hold(batch, sentAt);
    const waiting = this.#ready.length > 0;
    const executor: Executor = {
      cancelGraceMs: this.#deps.cancelGraceMs,
      run: (attempt) => this.#deps.run(this.tenant, attempt),
      settle: (attempt, outcome) => this.#settle(batch, attempt, outcome),
      onAbandoned: (attempt) => observe.abandoned(this.tenant, attempt.job),
    };
    for (const job of claimed.jobs) {
      const attempt = new Attempt(job, claimed.leaseId, executor);
      batch.add(attempt);
      this.running.set(job.id, attempt);
      this.#ready.push(attempt);
    }
    // An urgent job does not wait behind what was claimed before it.
    if (waiting) this.#ready.sort((a, b) => priorityRank(a.job.priority) - priorityRank(b.job.priority));
    // The claim may have been answered after the loop was stopped.
    if (this.#stopped) this.#returnReady('drained');
  }

  #returnReady(reason: string): void {
    clearTimeout(this.#returnTimer);
    this.#returnTimer = undefined;
    for (const attempt of this.#ready.splice(0)) attempt.giveBack(reason);
  }

  #settle(batch: Batch, attempt: Attempt, outcome: Outcome | undefined): void {
    const { heartbeat, slots, observe } = this.#deps;
    const { job } = attempt;
    const seconds = (performance.now() - attempt.startedAt) / 1000;
    const last = batch.remove(attempt);
    this.running.delete(job.id);
    if (attempt.started) {
      slots.release(this.key, 1);
      if (this.#full || this.#ready.length > 0) this.wake();
      const ms = seconds * 1000;
      this.#averageMs = Number.isFinite(this.#averageMs) ? this.#averageMs * 0.98 + ms * 0.02 : ms;
    }
    if (outcome === undefined) {
      observe.settled(this.tenant, [{ outcome, seconds }]);
      if (last) heartbeat.drop(batch);
      return;
    }
    const lastOf = last ? batch : undefined;
    this.#settler.add(
      { jobId: job.id, leaseId: attempt.leaseId, targetId: job.targetId, outcome, seconds, lastOf },
      last,
    );
  }

  #onSettled(items: Ending[], accepted: (item: Ending) => boolean): void {
    const { heartbeat, observe } = this.#deps;
    const ended: EndedAttempt[] = [];
    for (const item of items) {
      // Until its outcome is written the job is still ours to keep alive.
      if (item.lastOf !== undefined) heartbeat.drop(item.lastOf);
      const outcome = accepted(item) ? item.outcome : undefined;
      ended.push({ outcome, seconds: item.seconds });
      if (outcome?.kind === 'retry' || outcome?.kind === 'recoverLater') this.dueIn(outcome.delayMs + 1);
    }
    observe.settled(this.tenant, ended);
    // What ended made room for what did not fit.
    if (hasCapacities(this.tenant.settings)) this.wake();
  }
}
