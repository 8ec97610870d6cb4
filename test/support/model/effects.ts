// Effects of handlers outside of the database, and whether attempts of one target overlapped there.

/** One line of the effects log. `wait` ends the effects of a run until its next `begin`; `spend` is a step that reports usage. */
export interface Effect {
  kind: 'begin' | 'step' | 'spend' | 'wait' | 'end';
  target: string | null;
  job: string;
  attempt: number;
  lease: string;
  fence: string;
  /** The name of a durable step. */
  step?: string;
  /** The daemon's process. */
  pid: number;
  /** Monotonic milliseconds, the same clock for all processes of the machine. */
  at: number;
}

/** I1 outside of the database: once an attempt of a target has begun, none of the earlier ones does anything more. */
export function findOverlaps(effects: readonly Effect[]): { index: number; text: string }[] {
  const running = new Map<string, Effect>();
  const over = new Set<string>();
  const overlaps: { index: number; text: string }[] = [];
  for (const [index, effect] of effects.entries()) {
    const lane = effect.target ?? effect.job;
    const attempt = `${effect.job}:${effect.lease}`;
    if (over.has(attempt)) {
      overlaps.push({ index, text: `${effect.kind} of ${attempt} after another attempt of ${lane} had begun` });
    }
    const before = running.get(lane);
    if (effect.kind === 'begin') {
      if (before && before.lease !== effect.lease) over.add(`${before.job}:${before.lease}`);
      running.set(lane, effect);
    }
    if (effect.kind === 'end') over.add(attempt);
    if (effect.kind === 'end' || effect.kind === 'wait') running.delete(lane);
  }
  return overlaps;
}
