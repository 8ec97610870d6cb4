// A count per second that forgets: the sum of the present and the last half second.

const slotMs = 500;

export class Rate {
  #slot = 0;
  #current = 0;
  #previous = 0;

  add(count: number, nowMs = performance.now()): void {
    this.#turn(nowMs);
    this.#current += count;
  }

  perSecond(nowMs = performance.now()): number {
    this.#turn(nowMs);
    return this.#current + this.#previous;
  }

  #turn(nowMs: number): void {
    const slot = Math.floor(nowMs / slotMs);
    if (slot === this.#slot) return;
    this.#previous = slot === this.#slot + 1 ? this.#current : 0;
    this.#current = 0;
    this.#slot = slot;
  }
}
