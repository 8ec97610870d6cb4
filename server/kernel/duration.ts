// Durations as people write them: `90s`, `3d`, `1h30m`, or a number of milliseconds.
import { maxSeconds } from './limits.ts';

export type Duration = number | string;

const unitMs: Record<string, number> = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000, w: 604_800_000 };
const pattern = /^(\d+(?:\.\d+)?(?:ms|s|m|h|d|w))+$/;
const part = /(\d+(?:\.\d+)?)(ms|s|m|h|d|w)/g;

/** In milliseconds. */
export function parseDuration(duration: Duration): number {
  const ms = typeof duration === 'number' ? duration : sumOf(String(duration).replaceAll(' ', ''));
  if (ms >= 0 && ms <= maxSeconds * 1000) return ms;
  throw new RangeError(
    `a duration is a number of milliseconds from 0, or a text such as "90s", "3d" or "1h30m", not ${JSON.stringify(duration)}`,
  );
}

function sumOf(text: string): number {
  if (!pattern.test(text)) return Number.NaN;
  let ms = 0;
  for (const [, value, unit] of text.matchAll(part)) ms += Number(value) * (unitMs[unit ?? ''] ?? Number.NaN);
  return ms;
}
