// A moving rate per second: the sum of the current and the previous half second.

const slotMs = 500;

export class Rate {
  #slot = 0;
  #current = 0;
  #previous = 0;

  add(count: number, nowMs = performance.now()): void {
    this.#advance(nowMs);
    this.#current += count;
  }

  perSecond(nowMs = performance.now()): number {
    this.#advance(nowMs);
    return this.#current + this.#previous;
  }

  #advance(nowMs: number): void {
    const slot = Math.floor(nowMs / slotMs);
    if (slot === this.#slot) return;
    this.#previous = slot === this.#slot + 1 ? this.#current : 0;
    this.#current = 0;
    this.#slot = slot;
  }
}
