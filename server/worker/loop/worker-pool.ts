// All worker loops of a daemon: one per active tenant, started and stopped as tenants are created, suspended and
// deleted. Owns the drain: stops claiming, waits for the grace period, then stops the remaining attempts.

import type { StopReason } from '../../durable/stop-reason.ts';
import type { NewJob } from '../../jobs/enqueue/enqueue.ts';
import type { Reservation } from '../../jobs/enqueue/insert-jobs.ts';
import type { Job } from '../../jobs/model/job.ts';
import type { Logger } from '../../kernel/logger.ts';
import type { Service } from '../../kernel/service.ts';
import type { DrainResult } from '../../stats/metrics.ts';
import type { Tenant } from '../../tenants/tenant.ts';
import type { LoopContext, WorkerContext } from '../worker-context.ts';
import { EventLoopMonitor } from './event-loop-monitor.ts';
import { Slots } from './slots.ts';
import { TenantLoop } from './tenant-loop.ts';

const loadJobsPerSecond = 1000;

export class WorkerPool implements Service {
  readonly name = 'workers';
  /** A separate service. It reports handlers that block the event loop. */
  readonly monitor: EventLoopMonitor;
  readonly #context: LoopContext;
  readonly #logger: Logger;
  #loops = new Map<string, TenantLoop>();
  /** Loops of tenants that were suspended or deleted, and still have running jobs. */
  #leaving = new Set<TenantLoop>();
  #state: 'new' | 'running' | 'draining' | 'stopped' = 'new';
  #graceEnded = false;
  #endGrace: (() => void) | undefined;

  constructor(context: WorkerContext) {
    const { config, logger, metrics } = context;
    this.#logger = logger;
    this.monitor = new EventLoopMonitor({
      logger,
      runningTypes: () => this.runningTypes,
      isRunning: () => this.runningCount > 0,
      onDelay: (ms) => metrics.loopDelay.add(ms),
      onBlocked: (seconds) => {
        metrics.loopBlocked.inc();
        metrics.loopBlockedSeconds.inc(seconds);
      },
    });
    const slots = new Slots(config.workerConcurrency, { reservedShare: config.workerReservedShare });
    // Other daemons may exist until the first count says otherwise.
    this.#context = { ...context, slots, monitor: this.monitor, peers: { count: 1 } };
  }

  /** Sets the number of other daemons that could run the same jobs. */
  setPeers(count: number): void {
    this.#context.peers.count = count;
  }

  /** Another daemon has started. It is not known yet whether it can run the same jobs. */
  onDaemonJoined(): void {
    this.#context.peers.count += 1;
  }

  get draining(): boolean {
    return this.#state === 'draining' || this.#state === 'stopped';
  }

  /** The number of jobs that run here now. */
  get runningCount(): number {
    let count = 0;
    for (const loop of this.#all()) count += loop.attempts.count;
    return count;
  }

  /** The number of slots in use. Jobs that are claimed and wait for a slot are not counted. */
  get slotsUsed(): number {
    return this.#context.slots.used;
  }

  get runningTypes(): string[] {
    return [...new Set(this.#all().flatMap((loop) => loop.attempts.types))];
  }

  /**
   * True above a thousand jobs a second, if the other daemons run as many as this one. Consumers of their events then
   * wait.
   */
  get underLoad(): boolean {
    const ownRate = this.#all().reduce((sum, loop) => sum + loop.observer.claimsPerSecond, 0);
    return ownRate * (1 + this.#context.peers.count) > loadJobsPerSecond;
  }

  async start(): Promise<void> {
    if (this.#state !== 'new') return;
    this.#state = 'running';
    this.#context.registry.onChange((tenants) => this.#follow(tenants));
    this.#follow(this.#context.registry.list(), this.#context.registry.hasFewTenants);
    // The first claims are sent before services that start later use the database.
    await new Promise((resolve) => setImmediate(resolve));
  }

  wake(slug: string): void {
    this.#loops.get(slug)?.wake();
  }

  /** Another daemon signaled that there may be work. */
  wakeByPeer(slug: string): void {
    this.#loops.get(slug)?.wakeByPeer();
  }

  /** True if this daemon can claim these new jobs now, so that other daemons need not be woken. */
  hasRoomFor(slug: string, jobs: readonly NewJob[]): boolean {
    return this.#loops.get(slug)?.hasRoomFor(jobs) ?? false;
  }

  /** Reserves slots for jobs that are about to be enqueued, if no other job waits before them. */
  reserve(slug: string, jobs: readonly NewJob[]): Reservation | undefined {
    return this.#loops.get(slug)?.reserve(jobs);
  }

  /** Jobs of the tenant wait at the gate of its limits. */
  wakeGate(slug: string): void {
    this.#loops.get(slug)?.wakeGate();
  }

  dueIn(slug: string, ms: number): void {
    this.#loops.get(slug)?.dueIn(ms);
  }

  /** Stops claiming, lets running jobs continue for `graceMs`, then pauses or requeues the rest. */
  async drain(graceMs: number): Promise<DrainResult> {
    if (this.#state === 'stopped') return 'clean';
    this.#state = 'draining';
    await Promise.all([...this.#loops.values()].map((loop) => loop.stopClaiming()));
    this.#logger.info({ running: this.runningCount, graceMs }, 'drain started');
    const clean = await this.#waitUntilIdle(graceMs);
    if (!clean) {
      this.#logger.info({ running: this.runningCount }, 'drain grace is over; stopping the jobs that still run');
      for (const loop of this.#all()) loop.attempts.stop((job) => drained(job, loop.tenant));
      // Each attempt ends or is given up after its cancel grace. The margin is for the last writes.
      await this.#waitUntilIdle(this.#context.config.cancelGraceSeconds * 1000 + 1000);
    }
    await Promise.all([...this.#all()].map((loop) => loop.flushed()));
    this.#logger.info({ running: this.runningCount }, 'drain finished');
    // Handlers that still run end with the process.
    if (this.runningCount > 0) return 'forced';
    return clean ? 'clean' : 'grace_over';
  }

  /** The last step before the process exits: writes the outcomes of handlers that still run and end with it. */
  async releaseHandlers(): Promise<void> {
    await Promise.all(this.#all().map((loop) => loop.releaseHandlers()));
  }

  /** A second signal ends the grace period now. */
  endGraceNow(): void {
    this.#graceEnded = true;
    this.#endGrace?.();
  }

  async stop(): Promise<void> {
    if (this.#state === 'stopped') return;
    if (this.#state === 'running') await this.drain(0);
    this.#state = 'stopped';
  }

  async #waitUntilIdle(timeoutMs: number): Promise<boolean> {
    const deadline = performance.now() + timeoutMs;
    let reportAt = performance.now() + 5000;
    while (this.runningCount > 0 && performance.now() < deadline && !this.#graceEnded) {
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, 20);
        this.#endGrace = () => {
          clearTimeout(timer);
          resolve();
        };
      });
      if (performance.now() > reportAt) {
        reportAt += 5000;
        this.#logger.info({ running: this.runningCount, leftMs: Math.round(deadline - performance.now()) }, 'draining');
      }
    }
    this.#endGrace = undefined;
    this.#graceEnded = false;
    return this.runningCount === 0;
  }

  #follow(tenants: readonly Tenant[], wake = true): void {
    if (this.#state !== 'running') return;
    const active = new Map(tenants.filter((t) => t.status === 'ACTIVE').map((t) => [t.slug, t]));
    for (const [slug, loop] of this.#loops) {
      const tenant = active.get(slug);
      if (tenant?.id === loop.tenant.id) loop.update(tenant);
      else this.#leave(slug, loop);
    }
    for (const [slug, tenant] of active) {
      if (this.#loops.has(slug)) continue;
      const loop = new TenantLoop(tenant, this.#context);
      this.#loops.set(slug, loop);
      // The first jobs may have been enqueued before this daemon knew the tenant.
      if (wake) loop.wake();
    }
    this.#context.slots.tenants = this.#loops.size;
  }

  /** Jobs of a suspended tenant are no longer claimed. Running attempts continue. */
  #leave(slug: string, loop: TenantLoop): void {
    this.#loops.delete(slug);
    this.#leaving.add(loop);
    void loop.stopClaiming();
    for (const gone of this.#leaving) if (gone.attempts.count === 0) this.#leaving.delete(gone);
  }

  #all(): TenantLoop[] {
    return [...this.#loops.values(), ...this.#leaving];
  }
}

function drained(job: Job, tenant: Tenant): StopReason {
  return { kind: 'drained', onDrain: job.onDrain ?? tenant.settings.on_drain ?? 'pause' };
}
