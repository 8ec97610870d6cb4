// A periodic task: one run at a time, jittered, survives its own errors, stop awaits the run.
// Its period may change from run to run; with an infinite one it sleeps until it is called.
import type { Logger } from './logger.ts';
import type { Service } from './service.ts';

// setTimeout fires at once beyond 2^31-1 ms.
const maxTimerMs = 2 ** 31 - 1;

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

  /** Run as soon as possible; a wake-up during a run causes one more run. */
  wake(): void {
    if (this.#stopped) return;
    if (this.#running) {
      this.#again = true;
      return;
    }
    this.#clear();
    this.#running = this.#once();
  }

  /** Run within this time, if no run is due before. Behind a run under way its period counts. */
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
