// Long work in one process of many tenants: after some milliseconds it lets the others go first.
import { setImmediate } from 'node:timers/promises';

// Well below the 50 ms that nobody should notice: one more step may follow before the next look at the clock.
const longestTurnMs = 10;

export class Pace {
  #since = performance.now();

  /** Between two steps. Resolves at once unless this turn has lasted long enough. */
  async pause(): Promise<void> {
    if (performance.now() - this.#since < longestTurnMs) return;
    await setImmediate();
    this.#since = performance.now();
  }
}
