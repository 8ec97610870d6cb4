// A periodic task: one run at a time, jittered, survives its own errors, stop awaits the run.
import type { Logger } from './logger.ts';
import type { Service } from './service.ts';

// setTimeout fires at once beyond 2^31-1 ms.
const longestTimerMs = 2 ** 31 - 1;

export class Interval implements Service {
  readonly name: string;
  #everyMs: number;
  #run: () => Promise<unknown>;
  #logger: Logger;
  #timer: NodeJS.Timeout | undefined;
  #running: Promise<void> | undefined;
  #again = false;
  #stopped = true;

  constructor(name: string, everyMs: number, run: () => Promise<unknown>, logger: Logger) {
    this.name = name;
    this.#everyMs = everyMs;
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
    clearTimeout(this.#timer);
    this.#running = this.#once();
  }

  async stop(): Promise<void> {
    this.#stopped = true;
    clearTimeout(this.#timer);
    await this.#running;
  }

  #schedule(): void {
    if (this.#stopped) return;
    const delay = Math.min(this.#everyMs * (0.9 + Math.random() * 0.2), longestTimerMs);
    this.#timer = setTimeout(() => this.wake(), delay);
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
