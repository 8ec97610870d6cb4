// The attempts of one tenant from their claim to their end: holds their leases, starts them as slots allow, and frees
// their slots. What their ends lead to is the loop's.
import type { Claimed } from '../../jobs/claim/claim.ts';
import type { Job } from '../../jobs/model/job.ts';
import type { Tenant } from '../../tenants/tenant.ts';
import { Attempt, type UnresponsiveEnd } from '../attempt/attempt.ts';
import type { StopReason } from '../attempt/stop-reason.ts';
import { ClaimBatch } from './claim-batch.ts';
import type { LoopContext } from './loop-context.ts';
import type { LoopObserver } from './observe.ts';
import { ReadyQueue } from './ready-queue.ts';
import type { SlotWaiter } from './slots.ts';
import { type Released, UnresponsiveHandlers } from './unresponsive-handlers.ts';

export const leaseExpiredReason = 'the lease ran out before the attempt began';

export class RunningAttempts {
  readonly ready = new ReadyQueue();
  readonly #context: LoopContext;
  readonly #observe: LoopObserver;
  readonly #waiter: SlotWaiter;
  readonly #running = new Map<string, Attempt>();
  readonly #unresponsive: UnresponsiveHandlers;

  constructor(waiter: SlotWaiter, context: LoopContext, observe: LoopObserver) {
    this.#waiter = waiter;
    this.#context = context;
    this.#observe = observe;
    this.#unresponsive = new UnresponsiveHandlers(context, observe);
  }

  /** Attempts that run or wait for a slot, and handlers that were asked to stop and still run. */
  get count(): number {
    return this.#running.size + this.#unresponsive.size;
  }

  get types(): string[] {
    return [...[...this.#running.values()].map((attempt) => attempt.job.type), ...this.#unresponsive.types];
  }

  /** Keeps the lease of the claim alive from now on. The attempts are ready to start, or wait for a handler. */
  hold(tenant: Tenant, claimed: Claimed, sentAt: bigint): { attempts: Attempt[]; batch: ClaimBatch } {
    const attempts = claimed.jobs.map((job) => new Attempt(job, claimed.leaseId, tenant, this.#context));
    const batch = new ClaimBatch(tenant.schema, claimed.leaseId, attempts);
    this.#context.heartbeat.hold(batch, sentAt);
    for (const attempt of attempts) this.#running.set(attempt.job.id, attempt);
    this.ready.add(this.#unresponsive.admit(attempts));
    return { attempts, batch };
  }

  /** Starts what is ready, as far as slots allow. */
  startReady(tenant: Tenant, limit: number): void {
    const { slots, heartbeat, monitor } = this.#context;
    if (this.ready.size === 0) return;
    const granted = slots.take(this.#waiter, Math.min(limit, slots.runningOf(this.#waiter.key) + this.ready.size));
    let started = 0;
    for (const attempt of this.ready.take(granted)) {
      // Checked before each: a handler before it may have blocked the process, or a claim was answered too late.
      if (heartbeat.isTrusted(attempt.leaseId)) {
        this.#observe.started(tenant, attempt.job);
        monitor?.began(attempt.job.type);
        attempt.start();
      } else attempt.requeue(leaseExpiredReason);
      if (attempt.started) started += 1;
    }
    slots.release(this.#waiter.key, granted - started);
  }

  /** The attempt has ended, or its handler did not stop and has lost its claim to a slot. */
  freeSlot(attempt: Attempt): void {
    this.#running.delete(attempt.job.id);
    if (!attempt.started) return;
    this.#context.slots.release(this.#waiter.key, 1);
    this.ready.observe(attempt.seconds * 1000);
  }

  /** Resolves when the handler has returned or was given up; what waited for it is ready then. */
  async outlast(attempt: Attempt, batch: ClaimBatch, end: UnresponsiveEnd): Promise<Released | undefined> {
    const released = await this.#unresponsive.hold(attempt, batch, end);
    this.ready.add(this.#unresponsive.takeFree());
    return released;
  }

  /** Asks everything that runs to stop. */
  stop(reasonFor: (job: Job) => StopReason): void {
    for (const attempt of [...this.#running.values()]) if (attempt.started) attempt.stop(reasonFor(attempt.job));
  }

  /** Gives up on handlers that were asked to stop; resolves when it is known what to write of them. */
  async giveUp(): Promise<void> {
    const attempts = [...this.#running.values()];
    for (const attempt of attempts) attempt.giveUp();
    await Promise.all(attempts.filter((attempt) => attempt.finished).map((attempt) => attempt.ended));
    await this.#unresponsive.releaseAll('exiting');
  }
}
