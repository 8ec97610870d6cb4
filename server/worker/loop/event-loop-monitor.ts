// Detects handlers that block the event loop of the daemon, logs the running types, and counts it. Such a handler
// belongs in a thread: `isolation: 'thread'`. It measures while jobs run and for a while after a claim or request, so
// an idle daemon has no timer.
import type { Logger } from '../../kernel/logger.ts';
import type { Service } from '../../kernel/service.ts';

export interface EventLoopMonitorOptions {
  logger: Logger;
  /** Job types that run in this thread now. */
  runningTypes(): string[];
  onBlocked(seconds: number): void;
  /** Called at every measurement with the delay of the event loop. */
  onDelay?(ms: number): void;
  /** True if any job runs in this daemon. */
  isRunning(): boolean;
  warnAfterMs?: number;
  sleepAfterMs?: number;
}

const everyMs = 100;
const sleepAfterMs = 5000;

export class EventLoopMonitor implements Service {
  readonly name = 'event-loop-monitor';
  readonly #options: EventLoopMonitorOptions;
  #timer: NodeJS.Timeout | undefined;
  #dueAt = 0;
  #wokenAt = Number.NEGATIVE_INFINITY;
  #stopped = true;
  /**
   * Types that ran at the last measurement or started since. A handler that blocked the loop has usually ended by now.
   */
  #ranTypes = new Set<string>();

  constructor(options: EventLoopMonitorOptions) {
    this.#options = options;
  }

  async start(): Promise<void> {
    this.#stopped = false;
    if (this.#options.isRunning()) this.wake();
  }

  async stop(): Promise<void> {
    this.#stopped = true;
    this.#sleep();
  }

  /** Something starts that might block the event loop. Cheap enough for every claim and request. */
  wake(): void {
    this.#wokenAt = performance.now();
    if (this.#stopped || this.#timer !== undefined) return;
    this.#dueAt = this.#wokenAt + everyMs;
    this.#timer = setInterval(() => this.#check(), everyMs);
    this.#timer.unref();
  }

  /** A handler of this type starts. */
  began(type: string): void {
    if (this.#timer !== undefined) this.#ranTypes.add(type);
  }

  get awake(): boolean {
    return this.#timer !== undefined;
  }

  #sleep(): void {
    clearInterval(this.#timer);
    this.#timer = undefined;
  }

  #check(): void {
    const now = performance.now();
    const lateMs = Math.max(0, now - this.#dueAt);
    this.#dueAt = now + everyMs;
    this.#options.onDelay?.(lateMs);
    const ranTypes = this.#ranTypes;
    this.#ranTypes = new Set(this.#options.runningTypes());
    if (now - this.#wokenAt > (this.#options.sleepAfterMs ?? sleepAfterMs) && !this.#options.isRunning()) this.#sleep();
    // Half a second is longer than garbage collection and short bursts of work.
    if (lateMs < (this.#options.warnAfterMs ?? 500)) return;
    this.#options.onBlocked(lateMs / 1000);
    this.#options.logger.warn(
      { blockedMs: Math.round(lateMs), runningTypes: [...new Set([...ranTypes, ...this.#ranTypes])].slice(0, 20) },
      'event loop was blocked; a handler that computes for long belongs in a thread',
    );
  }
}
