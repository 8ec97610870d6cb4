// The choices of a run: the same for the same seed, as far as the timing of processes allows.

export class Choices {
  readonly #next: () => number;

  constructor(seed: number) {
    this.#next = generator(seed);
  }

  pick<T>(all: readonly T[]): T {
    return all[Math.floor(this.#next() * all.length)] as T;
  }

  between(min: number, max: number): number {
    return Math.round(min + this.#next() * (max - min));
  }
}

/** Mulberry32. */
function generator(start: number): () => number {
  let state = start;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}
