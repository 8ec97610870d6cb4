// Notices when a handler blocks the event loop of the daemon, says so with the types that were
// running, and counts it. Such a handler belongs into a thread: `isolation: 'thread'`.
import type { Logger } from '../kernel/logger.ts';
import type { Service } from '../kernel/service.ts';

export interface LoopWatchOptions {
  logger: Logger;
  /** Job types that run in this thread now. */
  runningTypes(): string[];
  onBlocked(seconds: number): void;
  warnAfterMs?: number;
}

const everyMs = 100;

export class LoopWatch implements Service {
  readonly name = 'event loop watch';
  readonly #options: LoopWatchOptions;
  #timer: NodeJS.Timeout | undefined;
  #dueAt = 0;

  constructor(options: LoopWatchOptions) {
    this.#options = options;
  }

  async start(): Promise<void> {
    if (this.#timer !== undefined) return;
    this.#dueAt = performance.now() + everyMs;
    this.#timer = setInterval(() => this.#look(), everyMs);
    this.#timer.unref();
  }

  async stop(): Promise<void> {
    clearInterval(this.#timer);
    this.#timer = undefined;
  }

  #look(): void {
    const now = performance.now();
    const lateMs = now - this.#dueAt;
    this.#dueAt = now + everyMs;
    // Half a second is beyond garbage collection and short bursts of work.
    if (lateMs < (this.#options.warnAfterMs ?? 500)) return;
    this.#options.onBlocked(lateMs / 1000);
    this.#options.logger.warn(
      { blockedMs: Math.round(lateMs), runningTypes: this.#options.runningTypes().slice(0, 20) },
      'event loop was blocked; a handler that computes for long belongs into a thread',
    );
  }
}
