// Cron expressions in a time zone, and their due times. Times are ISO text. The caller passes the current time of the
// database. A fixed time that a clock change skips or repeats is one run.
import { Cron } from 'croner';
import type { Schedule } from './schedule.ts';

/** Describes the error in the expression or the zone; undefined if both are valid. */
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

/** The first `count` times after `after`, in UTC. Fewer if the expression has no more times. */
export function nextTimes(cron: string, timezone: string, after: string, count: number): string[] {
  return parse(cron, timezone)
    .nextRuns(count, new Date(after))
    .map((time) => time.toISOString());
}

export function nextTime(cron: string, timezone: string, after: string): string | null {
  return nextTimes(cron, timezone, after, 1)[0] ?? null;
}

// A run that is later than this, by the database's clock, counts as missed: daemons were down or busy.
const missedAfterMs = 60_000;
/** The number of missed runs that one pass fires under the policy `all`; older ones are dropped. */
const maxMissedRuns = 100;
// The number of times that one pass considers: enough for `all`, and for a minute of a schedule by the second.
const maxConsidered = 500;

export interface DueTimes {
  /** Oldest first. */
  fire: string[];
  dropped: number;
  nextAt: string | null;
}

/** Returns the times for which a schedule fires now: those on time, and the missed ones that its policy includes. */
export function dueTimes(schedule: Pick<Schedule, 'cron' | 'timezone' | 'missed' | 'nextAt'>, now: string): DueTimes {
  const { cron, timezone, nextAt } = schedule;
  const nowMs = Date.parse(now);
  const due = nextAt === null ? [] : timesBetween(cron, timezone, nextAt, now, maxConsidered);
  const onTime = due.filter((time) => nowMs - Date.parse(time) <= missedAfterMs);
  const missed = due.slice(0, due.length - onTime.length);
  const caughtUp = catchUp(schedule.missed, missed, onTime.length > 0);
  return {
    fire: [...caughtUp, ...onTime],
    dropped: missed.length - caughtUp.length,
    nextAt: nextTime(cron, timezone, now),
  };
}

function catchUp(policy: Schedule['missed'], missed: string[], firesAnyway: boolean): string[] {
  switch (policy) {
    case 'skip':
      return [];
    case 'latest':
      return firesAnyway ? [] : missed.slice(-1);
    case 'all':
      return missed.slice(-maxMissedRuns);
  }
}

/** Returns all times from `first` (which is one) to `until`, oldest first, but at most the newest `max`. */
function timesBetween(cron: string, timezone: string, first: string, until: string, max: number): string[] {
  const pattern = parse(cron, timezone);
  const untilMs = Date.parse(until);
  const times: Date[] = [];
  let next: Date | null = new Date(first);
  for (; next !== null && next.getTime() <= untilMs && times.length < max; next = pattern.nextRun(next)) {
    times.push(next);
  }
  // Too many to list (a schedule by the minute or second), so only the newest are computed, backwards from the end.
  if (next !== null && next.getTime() <= untilMs) {
    const newest = pattern.previousRuns(max, new Date(untilMs + 1000)).reverse();
    times.splice(0, times.length, ...newest.filter((time) => time.getTime() <= untilMs));
  }
  return times.map((time) => time.toISOString());
}

function parse(cron: string, timezone: string): Cron {
  return new Cron(cron, { timezone, paused: true, mode: '5-or-6-parts' });
}
