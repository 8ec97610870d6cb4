// Combines many values into few writes: the first value is written at once, later ones at most once per interval, and
// the last one is never lost. A failed write is retried with the values that arrived since.

export interface Coalesced<T> {
  write(value: T): Promise<void>;
  merge(older: T, newer: T): T;
  everyMs: number;
  /** Also waits an interval before the first write, to gather more values. */
  delayFirst?: boolean;
  onError(error: unknown): void;
}

export class Coalescer<T> {
  readonly #options: Coalesced<T>;
  #pending: { value: T } | undefined;
  #writing: Promise<void> | undefined;
  #timer: NodeJS.Timeout | undefined;
  #nextAt = 0;
  #flushing = false;

  constructor(options: Coalesced<T>) {
    this.#options = options;
  }

  put(value: T): void {
    const { merge, delayFirst, everyMs } = this.#options;
    if (this.#pending !== undefined) {
      this.#pending = { value: merge(this.#pending.value, value) };
      return;
    }
    this.#pending = { value };
    if (this.#writing !== undefined || this.#timer !== undefined) return;
    const now = performance.now();
    if (delayFirst && this.#nextAt <= now) this.#nextAt = now + everyMs;
    this.#schedule();
  }

  /** Writes the remaining values. Rejects if they cannot be written, and keeps them for another call. */
  async flush(): Promise<void> {
    this.#flushing = true;
    clearTimeout(this.#timer);
    this.#timer = undefined;
    await this.#writing;
    const left = this.#pending;
    this.#pending = undefined;
    this.#flushing = false;
    if (left === undefined) return;
    await this.#options.write(left.value).catch((error: unknown) => {
      this.#pending = left;
      throw error;
    });
  }

  #schedule(): void {
    if (this.#pending === undefined || this.#flushing) return;
    const wait = this.#nextAt - performance.now();
    if (wait <= 0) this.#start();
    else {
      this.#timer = setTimeout(() => {
        this.#timer = undefined;
        this.#start();
      }, wait);
    }
  }

  #start(): void {
    const { value } = this.#pending as { value: T };
    this.#pending = undefined;
    this.#nextAt = performance.now() + this.#options.everyMs;
    this.#writing = this.#options
      .write(value)
      .catch((error: unknown) => {
        const newer = this.#pending;
        this.#pending = { value: newer === undefined ? value : this.#options.merge(value, newer.value) };
        this.#options.onError(error);
      })
      .finally(() => {
        this.#writing = undefined;
        this.#schedule();
      });
  }
}
