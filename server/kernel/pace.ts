// Yields to the event loop during long synchronous work, so that one tenant's request does not delay the others.
import { setImmediate } from 'node:timers/promises';

// Well below a noticeable 50 ms: one more step may follow before the clock is read again.
const maxTurnMs = 10;

export class Pace {
  #since = performance.now();

  /** Call between two steps. Resolves at once unless this turn has lasted long enough. */
  async pause(): Promise<void> {
    if (performance.now() - this.#since < maxTurnMs) return;
    await setImmediate();
    this.#since = performance.now();
  }
}
