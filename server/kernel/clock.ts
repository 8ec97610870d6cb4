// Time within the process: a monotonic clock, a moving rate, yielding during long synchronous work, and durations as
// text.
import { maxSeconds } from './limits.ts';

// `performance.now()` counts from the start of its thread.
const threadStartMs = Number(process.hrtime.bigint() / 1000n) / 1000 - performance.now();

/** The clock for leases: it never jumps, and all threads of the process share it. */
export function monotonicMs(): number {
  return threadStartMs + performance.now();
}

const slotMs = 500;

/** A moving rate per second: the sum of the current and the previous half second. */
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

const waitingForTurn: (() => void)[] = [];

/**
 * Resolves in a later turn of the event loop, for one caller per turn, so that large steps of several requests and
 * attempts that are ready at once do not add up to one long turn.
 */
export function ownTurn(): Promise<void> {
  return new Promise((resolve) => {
    waitingForTurn.push(resolve);
    if (waitingForTurn.length === 1) setImmediate(giveTurn);
  });
}

function giveTurn(): void {
  waitingForTurn.shift()?.();
  // Callbacks scheduled here run after the next poll for input.
  if (waitingForTurn.length > 0) setImmediate(giveTurn);
}

// Well below a noticeable 50 ms, because one more step may follow before the clock is read again.
const maxTurnMs = 10;

/** Yields to the event loop during long synchronous work, so that one tenant's request does not delay the others. */
export class Pace {
  #since = performance.now();

  /** Call it between two steps. Resolves at once unless this turn has lasted long enough, or the next step is large. */
  async pause(nextBytes = 0): Promise<void> {
    if (nextBytes < largeBytes && performance.now() - this.#since < maxTurnMs) return;
    await ownTurn();
    this.#since = performance.now();
  }
}

/** From this size on, a document is parsed, checked and hashed in separate turns of the event loop. */
export const largeBytes = 65_536;

export async function nextTurnIfLarge(bytes: number): Promise<void> {
  if (bytes >= largeBytes) await ownTurn();
}

// Durations as text: `90s`, `3d`, `1h30m`, or a number of milliseconds.

export type Duration = number | string;

const unitMs: Record<string, number> = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000, w: 604_800_000 };
const pattern = /^(\d+(?:\.\d+)?(?:ms|s|m|h|d|w))+$/;
const part = /(\d+(?:\.\d+)?)(ms|s|m|h|d|w)/g;

/** Returns milliseconds. An error begins with the name of what should be a duration. */
export function parseDuration(duration: Duration, name = 'a duration'): number {
  const ms = typeof duration === 'number' ? duration : sumOf(String(duration).replaceAll(' ', ''));
  if (ms >= 0 && ms <= maxSeconds * 1000) return ms;
  throw new RangeError(
    `${name} must be a number of milliseconds from 0, or a text such as "90s", "3d" or "1h30m", not ${JSON.stringify(duration)}`,
  );
}

function sumOf(text: string): number {
  if (!pattern.test(text)) return Number.NaN;
  let ms = 0;
  for (const [, value, unit] of text.matchAll(part)) ms += Number(value) * (unitMs[unit ?? ''] ?? Number.NaN);
  return ms;
}
