// Durations counted per bound, so that minutes can be added up to hours and days and still tell
// their percentiles. Bounds grow by half: a percentile is at most a quarter off.

// From a millisecond to a week.
export const boundsSeconds: readonly number[] = Array.from({ length: 51 }, (_, i) => 0.001 * 1.5 ** i);

/** One count below each bound and one above the last; `width_bucket(seconds, bounds)` is the place. */
export type Histogram = number[];

export function emptyHistogram(): Histogram {
  return new Array<number>(boundsSeconds.length + 1).fill(0);
}

export function addHistogram(into: Histogram, from: readonly number[]): void {
  for (let i = 0; i < into.length; i++) into[i] = (into[i] ?? 0) + (from[i] ?? 0);
}

/** The duration that `share` of all stay below; 0 if there are none. */
export function quantile(histogram: readonly number[], share: number): number {
  const total = histogram.reduce((sum, count) => sum + count, 0);
  if (total === 0) return 0;
  const wanted = share * total;
  let below = 0;
  for (const [place, count] of histogram.entries()) {
    if (count > 0 && below + count >= wanted) return interpolate(place, (wanted - below) / count);
    below += count;
  }
  return boundsSeconds.at(-1) ?? 0;
}

function interpolate(place: number, part: number): number {
  const low = place === 0 ? 0 : (boundsSeconds[place - 1] ?? 0);
  // Above the last bound nothing more is known.
  const high = boundsSeconds[place] ?? low;
  return Number((low + (high - low) * part).toPrecision(4));
}
