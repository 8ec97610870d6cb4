// Background tasks of a daemon: the contract of all of them, and the periodic one.
import { maxTimerMs } from './limits.ts';
import type { Logger } from './logger.ts';

/** `start` and `stop` are idempotent; `stop` awaits what is under way. */
export interface Service {
  readonly name: string;
  start(): Promise<void>;
  stop(): Promise<void>;
}

/**
 * A periodic task: one run at a time, with jitter; errors are logged and the next run follows; `stop` awaits the run.
 * The period may change from run to run. With an infinite one it runs only when it is woken.
 */
export class Interval implements Service {
  readonly name: string;
  #everyMs: () => number;
  #run: () => Promise<unknown>;
  #logger: Logger;
  #timer: NodeJS.Timeout | undefined;
  #dueAt = Number.POSITIVE_INFINITY;
  #running: Promise<void> | undefined;
  #again = false;
  #stopped = true;

  constructor(name: string, everyMs: number | (() => number), run: () => Promise<unknown>, logger: Logger) {
    this.name = name;
    this.#everyMs = typeof everyMs === 'number' ? () => everyMs : everyMs;
    this.#run = run;
    this.#logger = logger;
  }

  async start(): Promise<void> {
    if (!this.#stopped) return;
    this.#stopped = false;
    this.#schedule();
  }

  /** Runs as soon as possible; a call during a run causes one more run. */
  wake(): void {
    if (this.#stopped) return;
    if (this.#running) {
      this.#again = true;
      return;
    }
    this.#clear();
    this.#running = this.#once();
  }

  /** Runs within this time unless a run is due before. Has no effect during a run, after which the period counts. */
  within(ms: number): void {
    if (this.#stopped || this.#running || performance.now() + ms >= this.#dueAt) return;
    this.#sleep(ms);
  }

  async stop(): Promise<void> {
    this.#stopped = true;
    this.#clear();
    await this.#running;
  }

  #schedule(): void {
    if (this.#stopped) return;
    const everyMs = this.#everyMs();
    if (everyMs === Number.POSITIVE_INFINITY) this.#clear();
    else this.#sleep(everyMs * (0.9 + Math.random() * 0.2));
  }

  #sleep(ms: number): void {
    this.#clear();
    const delay = Math.min(ms, maxTimerMs);
    this.#dueAt = performance.now() + delay;
    this.#timer = setTimeout(() => this.wake(), delay);
  }

  #clear(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    this.#dueAt = Number.POSITIVE_INFINITY;
  }

  async #once(): Promise<void> {
    do {
      this.#again = false;
      try {
        await this.#run();
      } catch (error) {
        this.#logger.error({ err: error, task: this.name }, 'periodic task failed');
      }
    } while (this.#again && !this.#stopped);
    this.#running = undefined;
    this.#schedule();
  }
}

// One timer for the earliest of many times.
export class EarliestTimer {
  readonly #onTime: () => void;
  #timer: NodeJS.Timeout | undefined;
  #at = Number.POSITIVE_INFINITY;
  #stopped = false;

  constructor(onTime: () => void) {
    this.#onTime = onTime;
  }

  /** Calls `onTime` in `ms`, unless it is called earlier anyway. */
  in(ms: number): void {
    const at = performance.now() + ms;
    if (this.#stopped || at >= this.#at) return;
    this.#at = at;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(
      () => {
        this.#at = Number.POSITIVE_INFINITY;
        this.#onTime();
      },
      Math.min(Math.max(1, ms), maxTimerMs),
    );
  }

  stop(): void {
    this.#stopped = true;
    clearTimeout(this.#timer);
  }
}

/** A signal for one reader. Set while nobody waits, it ends the next wait at once; set twice, it ends one. */
export class Signal {
  #isSet = false;
  #wake: (() => void) | undefined;

  set(): void {
    if (this.#wake === undefined) this.#isSet = true;
    this.#wake?.();
    this.#wake = undefined;
  }

  async next(): Promise<void> {
    if (!this.#isSet) await new Promise<void>((resolve) => (this.#wake = resolve));
    this.#isSet = false;
  }
}
