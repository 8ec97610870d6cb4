// One timer for the earliest of many times.
import { maxTimerMs } from './limits.ts';

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
