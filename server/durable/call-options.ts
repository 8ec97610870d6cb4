// Options of durable calls: time limits as durations or in seconds, and the refusal of names that no option has. Without
// it a misspelt time limit would be a wait without end, and a misspelt target a child outside of its lane.
import { type Duration, parseDuration } from '../kernel/clock.ts';

/** The longest time that the call may take. */
export interface CallTimeout {
  /** `'14d'`, `'1h30m'`, or milliseconds. */
  timeout?: Duration | undefined;
  timeoutSeconds?: number | undefined;
}

/** The time limit of the call in seconds, from either option. */
export function timeoutSecondsOf(call: string, { timeout, timeoutSeconds }: CallTimeout): number | undefined {
  return secondsOf(call, ['timeout', timeout], ['timeoutSeconds', timeoutSeconds]);
}

/** A time that is given as a duration or in seconds, by the names of both options of the call. */
export function secondsOf(
  call: string,
  [name, duration]: [string, Duration | undefined],
  [nameInSeconds, seconds]: [string, number | undefined],
): number | undefined {
  if (duration === undefined) return seconds;
  if (seconds !== undefined) throw new TypeError(`${call}: give ${name} or ${nameInSeconds}, not both`);
  return parseDuration(duration, `${call}.${name}`) / 1000;
}

export function refuseUnknownOptions(call: string, options: object, known: readonly string[]): void {
  const unknown = Object.keys(options).find((name) => !known.includes(name));
  if (unknown !== undefined) throw new TypeError(`${call} has no option "${unknown}"; it has ${known.join(', ')}`);
}
