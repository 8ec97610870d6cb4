// Which times a schedule fires for, when it is looked at: those on time, and of the missed ones what
// its policy says.
import { nextTime, timesBetween } from './cron.ts';
import type { Schedule } from './schedule.ts';

// Later than this by the database's clock a run counts as missed: daemons were down or busy.
const missedAfterMs = 60_000;
/** Most runs that one look makes up for under the policy `all`; older ones are dropped. */
export const maxMissedRuns = 100;
// What one look considers: enough for `all` and a minute of seconds.
const maxConsidered = 500;

export interface DueTimes {
  fire: string[];
  dropped: number;
  nextAt: string | null;
}

export function dueTimes(schedule: Pick<Schedule, 'cron' | 'timezone' | 'missed' | 'nextAt'>, now: string): DueTimes {
  const { cron, timezone, nextAt } = schedule;
  const nowMs = Date.parse(now);
  const due = nextAt === null ? [] : timesBetween(cron, timezone, nextAt, now, maxConsidered);
  const onTime = due.filter((time) => nowMs - Date.parse(time) <= missedAfterMs);
  const missed = due.slice(0, due.length - onTime.length);
  const made = catchUp(schedule.missed, missed, onTime.length > 0);
  return { fire: [...made, ...onTime], dropped: missed.length - made.length, nextAt: nextTime(cron, timezone, now) };
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
