// The schedule of a run (I8, I10): each of its times has one job, and none was left out.
import { tickSeconds } from '../load/ticks.ts';
import type { Logged } from '../run-log.ts';
import type { EventRecord } from '../snapshot.ts';
import type { Violation } from './violation.ts';

export function* checkTicks(events: readonly Logged<EventRecord>[]): Generator<Violation> {
  const ticks = events
    .filter(({ type }) => type === 'schedule.fired')
    .map(({ data, place }) => ({ at: Date.parse((data as { for?: string }).for ?? ''), place }))
    .sort((a, b) => a.at - b.at);
  for (const [index, { at, place }] of ticks.entries()) {
    const before = ticks[index - 1]?.at;
    if (before === undefined || at === before + tickSeconds * 1000) continue;
    const time = new Date(at).toISOString();
    if (at === before) yield { invariant: 'I8', text: `the schedule fired twice for ${time}`, place };
    else yield { invariant: 'I10', text: `the schedule fired for ${time}, and not for the time before`, place };
  }
}
