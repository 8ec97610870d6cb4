// Cron expressions in a time zone. Times go in and out as ISO text; what is now is the caller's
// business, and comes from the database. A fixed time that a clock change skips or repeats is one run.
import { Cron } from 'croner';

/** Why this is no usable schedule; undefined if it is one. */
export function findCronError(cron: string, timezone: string): { field: string; message: string } | undefined {
  try {
    new Intl.DateTimeFormat('en', { timeZone: timezone });
  } catch {
    return { field: 'timezone', message: 'is not a known time zone; e.g. Europe/Berlin' };
  }
  // Otherwise croner reads an ISO time as a schedule that fires once.
  if (!/^(@\w+|\S+(\s+\S+){4,5})$/.test(cron.trim())) {
    return { field: 'cron', message: 'is not a cron expression of five or six fields' };
  }
  try {
    parse(cron, timezone);
  } catch (error) {
    const reason = error instanceof Error ? error.message.replace(/^Cron[A-Za-z]*: /, '') : 'cannot be read';
    return { field: 'cron', message: `is not a cron expression of five or six fields: ${reason}` };
  }
  return undefined;
}

/** The first `count` times after `after`, in UTC. Fewer if the expression never comes again. */
export function nextTimes(cron: string, timezone: string, after: string, count: number): string[] {
  return parse(cron, timezone)
    .nextRuns(count, new Date(after))
    .map((time) => time.toISOString());
}

/** All times from `first` (which is one) to `until`, oldest first; the newest `most` of them if there are more. */
export function timesBetween(cron: string, timezone: string, first: string, until: string, most: number): string[] {
  const pattern = parse(cron, timezone);
  const untilMs = Date.parse(until);
  const times: Date[] = [];
  let next: Date | null = new Date(first);
  for (; next !== null && next.getTime() <= untilMs && times.length < most; next = pattern.nextRun(next)) {
    times.push(next);
  }
  // Too many to walk: a schedule by the minute or second. Backwards from the end it is only the newest.
  if (next !== null && next.getTime() <= untilMs) {
    const newest = pattern.previousRuns(most, new Date(untilMs + 1000)).reverse();
    times.splice(0, times.length, ...newest.filter((time) => time.getTime() <= untilMs));
  }
  return times.map((time) => time.toISOString());
}

export function nextTime(cron: string, timezone: string, after: string): string | null {
  return nextTimes(cron, timezone, after, 1)[0] ?? null;
}

function parse(cron: string, timezone: string): Cron {
  return new Cron(cron, { timezone, paused: true, mode: '5-or-6-parts' });
}
