// The handlers of one tenant that were asked to stop and still run in this process, and the attempts that wait for
// them: no attempt of the same job or target starts beside one, also where the lane could not be kept in the database.
import type { Outcome } from '../../jobs/finish/outcome.ts';
import type { Job } from '../../jobs/model/job.ts';
import type { Attempt, UnresponsiveEnd } from '../attempt/attempt.ts';
import { type Release, UnresponsiveHandler } from '../attempt/unresponsive-handler.ts';
import type { HeldLease } from '../heartbeat/heartbeat.ts';
import type { WorkerContext } from '../worker-context.ts';
import type { LoopObserver } from './observe.ts';

/** What is to be written of a released handler, and the lease under which; undefined if nothing may be. */
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

  /** Those that may start now; the others wait until the handler before them is released. */
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

  /** The attempts that need not wait any longer. */
  takeFree(): Attempt[] {
    const free = this.#waiting.filter((attempt) => !this.#blocks(attempt.job));
    this.#waiting = this.#waiting.filter((attempt) => !free.includes(attempt));
    return free;
  }

  /** Gives up all of them; resolves when it is known what to write. */
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
