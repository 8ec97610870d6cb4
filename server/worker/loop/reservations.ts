// Slots that are kept for jobs on their way into the database. A drain waits until it is known what
// became of them.

export class Reservations {
  readonly #release: (slots: number) => void;
  #open = 0;
  #idle: (() => void)[] = [];

  constructor(release: (slots: number) => void) {
    this.#release = release;
  }

  /** Returns what ends it. */
  begin(slots: number): () => void {
    this.#open += 1;
    return () => {
      this.#open -= 1;
      this.#release(slots);
      if (this.#open === 0) for (const resolve of this.#idle.splice(0)) resolve();
    };
  }

  async idle(): Promise<void> {
    if (this.#open > 0) await new Promise<void>((resolve) => this.#idle.push(resolve));
  }
}
