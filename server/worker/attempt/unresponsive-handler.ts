// A handler that was asked to stop and still runs. Its job is fenced off and held under its own lease until the handler
// returns or the daemon gives it up: after a time, or because the process is about to exit.
import type { Schema } from '../../database/identifiers.ts';
import { isConnectionError, isTransient } from '../../database/sql-errors.ts';
import { JobStopped } from '../../durable/stop-reason.ts';
import { fenceOff } from '../../jobs/finish/fence-off.ts';
import type { Outcome } from '../../jobs/finish/outcome.ts';
import { outcomeOfLostLease } from '../../jobs/finish/recover.ts';
import type { Job, StoredHold } from '../../jobs/model/job.ts';
import { budgetRules } from '../../jobs/model/job-budget.ts';
import type { JobErrorCode } from '../../jobs/model/job-errors.ts';
import { findJob } from '../../jobs/read/read-jobs.ts';
import { newId } from '../../kernel/ids.ts';
import { maxTimerMs } from '../../kernel/limits.ts';
import type { HeldLease } from '../heartbeat/heartbeat.ts';
import type { LoopObserver } from '../loop/loop-observer.ts';
import type { WorkerContext } from '../worker-context.ts';
import type { Attempt, UnresponsiveEnd } from './attempt.ts';

/** `ended`: the handler returned. `expired`: it kept its lane for too long. `exiting`: its process is about to exit. */
type Release = 'ended' | 'expired' | 'exiting';

// The retry interval while the database is unavailable, short enough to be back before the sweeper takes the lease.
const retryMs = 250;

class UnresponsiveHandler implements HeldLease {
  readonly schema: Schema;
  readonly job: Job;
  readonly jobIds: string[];
  leaseId: string;
  /** The job is held under `leaseId`. */
  fenced = false;
  release: Release | undefined;
  readonly #context: WorkerContext;
  readonly #attempt: Attempt;
  readonly #end: UnresponsiveEnd;
  readonly #expiry: NodeJS.Timeout;
  #terminated = false;
  #awaitsReturn = true;
  #lost = false;
  #wake: (() => void) | undefined;

  constructor(context: WorkerContext, attempt: Attempt, end: UnresponsiveEnd) {
    this.#context = context;
    this.#attempt = attempt;
    this.#end = end;
    this.schema = attempt.tenant.schema;
    this.job = attempt.job;
    this.jobIds = [attempt.job.id];
    this.leaseId = attempt.leaseId;
    const maxMs = context.config.unresponsiveHandlerMaxSeconds * 1000;
    this.#expiry = setTimeout(() => this.giveUp('expired'), Math.min(maxMs, maxTimerMs));
    void end.handlerEnd.then((ended) => {
      this.#terminated = ended.kind === 'failed' && ended.error.code === ('HANDLER_KILLED' satisfies JobErrorCode);
      this.giveUp('ended');
    });
  }

  /** The first reason counts. */
  giveUp(release: Release): void {
    this.release ??= release;
    clearTimeout(this.#expiry);
    this.#wake?.();
  }

  /**
   * Moves the job to its own lease, again if that lease was lost. Returns true if the job was fenced off and its
   * previous lease no longer owns it. Returns false if the handler was released; `fenced` is true if the job is still
   * held.
   */
  async fence(): Promise<boolean> {
    // A thread that is being terminated exits without a fence.
    if (this.#awaitsReturn) await this.#sleep(this.#end.returnTimeoutMs);
    this.#awaitsReturn = false;
    while (this.fenced && this.release === undefined && !this.#lost) await this.#sleep();
    if (this.release === undefined && (await this.#fence()) === 'held') return true;
    while (this.release === undefined) await this.#sleep();
    return false;
  }

  /** Returns the outcome to write; undefined if this daemon no longer holds the job. */
  async decide(): Promise<Outcome | undefined> {
    const outcome = this.#end.outcome ?? (this.fenced ? await this.#outcomeOfLostLease() : undefined);
    if (outcome === undefined) return undefined;
    if (this.release !== 'ended') return { ...outcome, handler: 'running' };
    return this.#terminated ? { ...outcome, handler: 'terminated' } : outcome;
  }

  /** The lease expired without a renewal, or another daemon has the job. The next fence decides which. */
  onLost(): void {
    this.fenced = false;
    this.#lost = true;
    this.#context.heartbeat.drop(this);
    this.#wake?.();
  }

  /** The handler was asked to stop already. A later request is considered when the outcome is written. */
  onStopRequested(): void {}

  /** `unknown`: the handler was released before the database answered. */
  async #fence(): Promise<'held' | 'lost' | 'unknown'> {
    const { db, heartbeat, config, logger } = this.#context;
    const { workerId: owner, leaseSeconds } = config;
    const old = { jobId: this.job.id, leaseId: this.leaseId };
    const leaseId = newId();
    for (;;) {
      const sentAt = process.hrtime.bigint();
      try {
        const fence = { leaseId, owner, leaseSeconds, hold: this.#storedHold() };
        if (!(await fenceOff(db, this.schema, old, fence))) return 'lost';
        this.leaseId = leaseId;
        this.fenced = true;
        this.#lost = false;
        heartbeat.hold(this, sentAt);
        return 'held';
      } catch (error) {
        if (!isConnectionError(error) && !isTransient(error)) {
          logger.error({ err: error, jobId: this.job.id }, 'job of an unresponsive handler could not be fenced off');
          return 'lost';
        }
        await this.#sleep(retryMs);
        if (this.release !== undefined) return 'unknown';
      }
    }
  }

  /** Reads the row, because its stop request and token usage may be newer than those in this process. */
  async #outcomeOfLostLease(): Promise<Outcome | undefined> {
    const { db, config, registry, logger } = this.#context;
    const tenant = registry.bySlug(this.#attempt.tenant.slug) ?? this.#attempt.tenant;
    try {
      const job = await findJob(db, this.schema, this.job.id);
      if (job?.leaseId !== this.leaseId) return undefined;
      return outcomeOfLostLease(job, config.workerId, budgetRules(tenant, config.tokenLimit));
    } catch (error) {
      // The lease expires, and the sweeper decides.
      logger.warn({ err: error, jobId: this.job.id }, 'job of a lost lease could not be read');
      return undefined;
    }
  }

  #storedHold(): StoredHold {
    const { reason, outcome } = this.#end;
    const message = `${new JobStopped(reason).message}, and the handler has not stopped`;
    return { kind: 'handler', reason: message, handler: 'running', ...(outcome && { outcome }) };
  }

  async #sleep(ms?: number): Promise<void> {
    if (ms === 0) return;
    await new Promise<void>((resolve) => {
      const timer = ms === undefined ? undefined : setTimeout(resolve, ms);
      this.#wake = () => {
        clearTimeout(timer);
        resolve();
      };
      if (this.release !== undefined) this.#wake();
    });
    this.#wake = undefined;
  }
}

// The handlers of one tenant that were asked to stop and still run in this process, and the attempts that wait for
// them. No attempt of the same job or target starts next to one, even if the lane could not be kept in the database.

/** The outcome of a released handler and its lease; undefined if nothing may be written. */
export interface Released {
  outcome: Outcome;
  lease: HeldLease;
  /** Nothing else is held under that lease. */
  isLast: boolean;
}

export class UnresponsiveHandlers {
  readonly #context: WorkerContext;
  readonly #observe: LoopObserver;
  readonly #handlers = new Map<UnresponsiveHandler, Promise<Released | undefined>>();
  #waiting: Attempt[] = [];

  constructor(context: WorkerContext, observe: LoopObserver) {
    this.#context = context;
    this.#observe = observe;
  }

  get size(): number {
    return this.#handlers.size;
  }

  get types(): string[] {
    return [...this.#handlers.keys()].map((handler) => handler.job.type);
  }

  /** Resolves when the handler has returned or was given up. Until then its job keeps the lane. */
  hold(attempt: Attempt, end: UnresponsiveEnd): Promise<Released | undefined> {
    const handler = new UnresponsiveHandler(this.#context, attempt, end);
    // A lost lease is not trusted again, even if its row still exists.
    if (end.outcome === undefined) this.#leave(attempt);
    const released = this.#hold(handler, attempt);
    this.#handlers.set(handler, released);
    return released;
  }

  /** Returns the attempts that may start now. The others wait until the handler before them is released. */
  admit(attempts: Attempt[]): Attempt[] {
    if (this.#handlers.size === 0) return attempts;
    const waiting = attempts.filter((attempt) => this.#blocks(attempt.job));
    if (waiting.length === 0) return attempts;
    this.#waiting.push(...waiting);
    for (const { job } of waiting) {
      this.#context.logger.warn(
        { jobId: job.id, type: job.type, targetId: job.targetId },
        'attempt waits for a handler that was asked to stop and still runs here',
      );
    }
    return attempts.filter((attempt) => !waiting.includes(attempt));
  }

  /** Removes and returns the attempts that no longer have to wait. */
  takeFree(): Attempt[] {
    const free = this.#waiting.filter((attempt) => !this.#blocks(attempt.job));
    this.#waiting = this.#waiting.filter((attempt) => !free.includes(attempt));
    return free;
  }

  /** Gives up all handlers. Resolves when their outcomes are known. */
  async releaseAll(release: Release): Promise<void> {
    for (const handler of this.#handlers.keys()) handler.giveUp(release);
    await Promise.all(this.#handlers.values());
  }

  async #hold(handler: UnresponsiveHandler, attempt: Attempt): Promise<Released | undefined> {
    const { tenant, job, batch } = attempt;
    while (await handler.fence()) {
      if (batch.has(attempt)) this.#leave(attempt);
      this.#observe.unresponsive(tenant, job, 'fenced');
      this.#context.signals.eventsWritten(tenant);
    }
    const outcome = await handler.decide();
    this.#handlers.delete(handler);
    if (handler.release === 'expired') this.#observe.unresponsive(tenant, job, 'released');
    if (outcome !== undefined && handler.fenced) return { outcome, lease: handler, isLast: true };
    if (outcome !== undefined && batch.has(attempt)) return { outcome, lease: batch, isLast: batch.remove(attempt) };
    this.#context.heartbeat.drop(handler);
    return undefined;
  }

  #leave(attempt: Attempt): void {
    if (attempt.batch.remove(attempt)) this.#context.heartbeat.drop(attempt.batch);
  }

  #blocks(job: Job): boolean {
    for (const { job: other } of this.#handlers.keys()) {
      if (other.id === job.id || (job.targetId !== null && other.targetId === job.targetId)) return true;
    }
    return false;
  }
}
