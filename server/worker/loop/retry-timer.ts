// Tries again after a failure: later each time, with jitter, until something succeeds.

const firstMs = 200;
const maxMs = 10_000;

export class RetryTimer {
  readonly #retry: () => void;
  #failures = 0;
  #timer: NodeJS.Timeout | undefined;
  #stopped = false;

  constructor(retry: () => void) {
    this.#retry = retry;
  }

  get waiting(): boolean {
    return this.#timer !== undefined;
  }

  /** Returns in how many milliseconds it is tried again. */
  begin(): number {
    const delayMs = Math.round(Math.min(firstMs * 2 ** this.#failures, maxMs) * (0.5 + Math.random() / 2));
    this.#failures += 1;
    clearTimeout(this.#timer);
    if (!this.#stopped) {
      this.#timer = setTimeout(() => {
        this.#timer = undefined;
        this.#retry();
      }, delayMs);
    }
    return delayMs;
  }

  reset(): void {
    this.#failures = 0;
  }

  stop(): void {
    this.#stopped = true;
    clearTimeout(this.#timer);
  }
}
