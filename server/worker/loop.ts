// One tenant's worker loop: sleeps until woken, claims what its slots can start now, starts it.
// It never polls by itself; wake-ups come from enqueues, settled lanes, due times and the shared poll.
import { v7 as uuidv7 } from 'uuid';
import type { Claimed, ClaimRequest } from '../jobs/claim.ts';
import type { NewJob } from '../jobs/enqueue.ts';
import type { Reservation } from '../jobs/insert-jobs.ts';
import type { Job } from '../jobs/job.ts';
import type { Outcome, Settlement } from '../jobs/settle.ts';
import { Rate } from '../kernel/rate.ts';
import { hasCapacities } from '../tenants/capacities.ts';
import type { Tenant } from '../tenants/tenant.ts';
import { Attempt, type Executor } from './attempt.ts';
import { Batch } from './batch.ts';
import { DueTimer } from './due-timer.ts';
import type { EndedAttempt, LoopDependencies } from './loop-dependencies.ts';
import { LostClaims } from './lost-claims.ts';
import { ReadyJobs } from './ready.ts';
import { Reservations } from './reservations.ts';
import { RetryTimer } from './retry-timer.ts';
import { Settlers } from './settlers.ts';
import type { HungryTenant } from './slots.ts';
import type { StopReason } from './stop-reason.ts';

/** What is to be written of an attempt, and what is to be done once it is. */
interface Ending extends Settlement {
  seconds: number;
  /** The claim that ends with this attempt. */
  lastOf: Batch | undefined;
}

// A statement beyond this size holds its locks longer than it saves.
const largestClaim = 2000;
// Outcomes that may wait for their commit before the loop stops taking more.
const largestBacklog = 4000;

export class TenantLoop implements HungryTenant {
  readonly key: string;
  tenant: Tenant;
  readonly running = new Map<string, Attempt>();
  readonly #deps: LoopDependencies;
  readonly #settlers: Settlers<Ending>;
  readonly #ready = new ReadyJobs();
  #claiming: Promise<void> | undefined;
  #scheduled = false;
  #stopped = false;
  /** Something happened since the last claim was sent, or it took all that it asked for. */
  #mayBeMore = false;
  /** The last claim took all that it asked for: other jobs wait for the slots. Before the first, nobody knows. */
  #othersWait = true;
  readonly #reservations: Reservations;
  readonly #claimRate = new Rate();
  readonly #lostClaims: LostClaims;
  readonly #retry = new RetryTimer(() => this.wake());
  readonly #due: DueTimer;

  constructor(tenant: Tenant, deps: LoopDependencies) {
    this.key = tenant.slug;
    this.tenant = tenant;
    this.#deps = deps;
    const actor = `worker:${deps.workerId}`;
    this.#lostClaims = new LostClaims(deps.db, tenant.schema, actor);
    this.#reservations = new Reservations((count) => deps.slots.release(this.key, count));
    this.#settlers = new Settlers({
      db: deps.db,
      schema: tenant.schema,
      actor,
      logger: deps.logger,
      trustedForMs: (leaseId) => deps.heartbeat.trustedForMs(leaseId),
      nextClaim: () => this.#nextClaim(),
      onClaimed: (claimed, sentAt) => {
        this.#take(claimed, sentAt);
        this.#startReady();
      },
      onClaimLost: (leaseId, error) => this.#loseClaim(leaseId, error),
      onRunnable: () => this.wake(),
      onSettled: (items, accepted) => this.#onSettled(items, accepted),
      onWritten: () => {
        if (this.#mayBeMore) this.#schedule();
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
    this.#mayBeMore = true;
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
    if (!ours || this.#claiming !== undefined || this.#ready.size > 0 || !this.#nothingWaits) return undefined;
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
        this.#take({ leaseId, jobs: started }, sentAt);
        this.#startReady();
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
    this.#retry.stop();
    this.#deps.slots.forget(this.key);
    this.#ready.returnAll('drained');
    await this.#claiming;
    await this.#reservations.idle();
    await this.#due.stop();
  }

  /** Tells everything that runs to stop. */
  stopRunning(reasonFor: (job: Job) => StopReason): void {
    for (const attempt of [...this.running.values()]) attempt.stop(reasonFor(attempt.job));
  }

  /** All outcomes known so far are written, and claims whose answers were lost are given back. */
  async flushed(): Promise<void> {
    await this.#settlers.idle();
    await this.#lostClaims.disown().catch((error: unknown) => {
      this.#deps.logger.warn({ err: error, tenant: this.key }, 'lost claims could not be given back');
    });
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
    if (this.#claiming !== undefined || !this.#mayBeMore) return;
    this.#claiming = this.#claimAll().finally(() => {
      this.#claiming = undefined;
      // Woken after the last look.
      if (this.#mayBeMore && !this.#retry.waiting && this.#wanted() > 0) this.#schedule();
    });
  }

  async #claimAll(): Promise<void> {
    const types = this.#deps.types();
    if (types.length === 0) {
      this.#mayBeMore = false;
      return;
    }
    while (this.#mayBeMore && !this.#stopped) {
      const wanted = this.#wanted();
      if (wanted === 0) {
        this.#othersWait = true;
        this.#deps.slots.wait(this);
        return;
      }
      const request = this.#request(wanted, types);
      const sentAt = process.hrtime.bigint();
      this.#mayBeMore = false;
      let claimed: Claimed;
      try {
        await this.#lostClaims.disown();
        claimed = await this.#deps.claim(this.tenant, request);
        this.#retry.reset();
      } catch (error) {
        this.#lostClaims.add(request.leaseId, error);
        this.#backOff(error);
        return;
      }
      this.#othersWait = claimed.jobs.length >= wanted;
      if (this.#othersWait) this.#mayBeMore = true;
      this.#take(claimed, sentAt);
      this.#startReady();
    }
  }

  #request(limit: number, types: readonly string[]): ClaimRequest & { leaseId: string } {
    const { workerId, leaseSeconds } = this.#deps;
    return { leaseId: uuidv7(), owner: workerId, limit, leaseSeconds, types };
  }

  /** The next jobs of lanes that move on may be taken with the outcomes, unless others come first. */
  #nextClaim(): (ClaimRequest & { leaseId: string }) | undefined {
    if (!this.#nothingWaits) return undefined;
    const room = this.#room();
    return room > 0 ? this.#request(room, this.#deps.types()) : undefined;
  }

  /** As far as is known: whoever comes by now may be taken, none comes before. */
  get #nothingWaits(): boolean {
    if (this.#stopped || this.#mayBeMore || this.#othersWait || hasCapacities(this.tenant.settings)) return false;
    return this.#deps.slots.rivalsOf(this.key) === 0;
  }

  get #limit(): number {
    return Math.min(this.tenant.settings.concurrency ?? this.#deps.tenantConcurrency, this.#deps.tenantConcurrency);
  }

  /** How many jobs could be taken: for the free slots, and for those that come free within a moment. */
  #room(): number {
    const ahead = this.tenant.settings.capacity_units === undefined ? this.#ready.ahead(this.#limit) : 0;
    return Math.min(this.#deps.slots.freeFor(this.key, this.#limit) + ahead - this.#ready.size, largestClaim);
  }

  /** How many to claim now; 0 means that it is not the time. */
  #wanted(): number {
    if (this.#settlers.pending >= largestBacklog) return 0;
    const room = this.#room();
    // A claim for a few, while many are ready, would cost as much as one for many.
    return room > 0 && this.#ready.size <= room ? room : 0;
  }

  /** Starts what is ready, as far as slots go. */
  #startReady(): void {
    const { slots } = this.#deps;
    if (this.#ready.size === 0) {
      if (!this.#mayBeMore) slots.forget(this.key);
      return;
    }
    const granted = slots.take(this, Math.min(this.#limit, slots.runningOf(this.key) + this.#ready.size));
    const starting = this.#ready.take(granted);
    slots.release(this.key, granted - starting.length);
    for (const attempt of starting) attempt.start();
  }

  #backOff(error: unknown): void {
    const delayMs = this.#retry.begin();
    this.#deps.logger.warn({ err: error, tenant: this.key, delayMs }, 'claim failed');
    this.#deps.observe.claimFailed(this.tenant);
  }

  #loseClaim(leaseId: string, error: unknown): void {
    this.#lostClaims.add(leaseId, error);
    this.wake();
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
    const executor: Executor = {
      cancelGraceMs: this.#deps.cancelGraceMs,
      run: (attempt) => this.#deps.run(this.tenant, attempt),
      settle: (attempt, outcome) => this.#settle(batch, attempt, outcome),
      onAbandoned: (attempt) => observe.abandoned(this.tenant, attempt.job),
    };
    const attempts = claimed.jobs.map((job) => new Attempt(job, claimed.leaseId, executor));
    for (const attempt of attempts) {
      batch.add(attempt);
      this.running.set(attempt.job.id, attempt);
    }
    this.#ready.add(attempts);
    // The claim may have been answered after the loop was stopped.
    if (this.#stopped) this.#ready.returnAll('drained');
  }

  #settle(batch: Batch, attempt: Attempt, outcome: Outcome | undefined): void {
    const { heartbeat, slots, observe } = this.#deps;
    const { job } = attempt;
    const seconds = (performance.now() - attempt.startedAt) / 1000;
    const last = batch.remove(attempt);
    this.running.delete(job.id);
    if (attempt.started) {
      slots.release(this.key, 1);
      this.#ready.observe(seconds * 1000);
      if (this.#mayBeMore || this.#ready.size > 0) this.#schedule();
    }
    if (outcome === undefined) {
      observe.settled(this.tenant, [{ outcome, seconds }]);
      if (last) {
        heartbeat.drop(batch);
        this.#settlers.forget(batch.leaseId);
      }
      return;
    }
    const lastOf = last ? batch : undefined;
    this.#settlers.add(
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
