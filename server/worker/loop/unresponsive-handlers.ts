// The handlers of one tenant that were told to stop and still run in this process, and the attempts that wait for them:
// no attempt of the same job or target starts here beside one, also where the lane could not be kept in the database.

import type { Outcome } from '../../jobs/finish/outcome.ts';
import type { Job } from '../../jobs/model/job.ts';
import type { Attempt } from '../attempt/attempt.ts';
import {
  type Release,
  type Unresponsive,
  UnresponsiveHandler,
  type UnresponsiveOptions,
} from '../attempt/unresponsive-handler.ts';

export class UnresponsiveHandlers {
  readonly #options: UnresponsiveOptions;
  readonly #handlers = new Map<UnresponsiveHandler, Promise<void>>();
  #waiting: Attempt[] = [];
  readonly #onFree: (attempts: Attempt[]) => void;

  /** `onFree` gets the attempts that need not wait any longer. */
  constructor(options: UnresponsiveOptions, onFree: (attempts: Attempt[]) => void) {
    this.#options = options;
    this.#onFree = onFree;
  }

  get size(): number {
    return this.#handlers.size;
  }

  get types(): string[] {
    return [...this.#handlers.keys()].map((handler) => handler.job.type);
  }

  /** Calls `onReleased` once, when the handler has ended or was given up, with what is to be written of it. */
  add(given: Unresponsive, onReleased: (handler: UnresponsiveHandler, outcome: Outcome | undefined) => void): void {
    const handler = new UnresponsiveHandler(this.#options, given);
    const hold = async () => {
      await handler.hold();
      const outcome = await handler.decide();
      this.#handlers.delete(handler);
      onReleased(handler, outcome);
      this.#free();
    };
    this.#handlers.set(handler, hold());
  }

  /** Those that may start now; the others wait until the handler in their way has ended or was given up. */
  admit(attempts: Attempt[]): Attempt[] {
    if (this.#handlers.size === 0) return attempts;
    const waiting = attempts.filter((attempt) => this.#blocks(attempt.job));
    if (waiting.length === 0) return attempts;
    this.#waiting.push(...waiting);
    for (const { job } of waiting) {
      this.#options.logger.warn(
        { jobId: job.id, type: job.type, targetId: job.targetId },
        'attempt waits for a handler that was told to stop and still runs here',
      );
    }
    return attempts.filter((attempt) => !waiting.includes(attempt));
  }

  /** Gives up all of them; resolves when what is to be written of them is known. */
  async releaseAll(release: Release): Promise<void> {
    for (const handler of this.#handlers.keys()) handler.end(release);
    await Promise.all(this.#handlers.values());
  }

  #blocks(job: Job): boolean {
    for (const { job: other } of this.#handlers.keys()) {
      if (other.id === job.id || (job.targetId !== null && other.targetId === job.targetId)) return true;
    }
    return false;
  }

  #free(): void {
    if (this.#waiting.length === 0) return;
    const free = this.#waiting.filter((attempt) => !this.#blocks(attempt.job));
    this.#waiting = this.#waiting.filter((attempt) => !free.includes(attempt));
    if (free.length > 0) this.#onFree(free);
  }
}
