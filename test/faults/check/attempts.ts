// Attempts are counted for what a handler began, or for a process that died (I6): not for a claim that no handler saw.
import type { Effect } from '../../support/model/effects.ts';
import type { DaemonRecord } from '../daemons.ts';
import type { Logged } from '../run-log.ts';
import type { EventRecord } from '../snapshot.ts';
import type { Violation } from './violation.ts';

export interface AttemptsInput {
  effects: Logged<Effect>[];
  events: Logged<EventRecord>[];
  daemons: Logged<DaemonRecord>[];
}

/** A job that failed because its lease ran out, and stayed so, must have begun under that lease. */
export function* checkAttempts({ effects, events, daemons }: AttemptsInput): Generator<Violation> {
  const begun = new Set(effects.filter(({ kind }) => kind === 'begin').map(({ job, lease }) => `${job}:${lease}`));
  const starts = new Map<string, Logged<EventRecord>>();
  for (const [index, event] of events.entries()) {
    const attempt = `${event.job_id}:${event.lease_id}`;
    if (event.type === 'job.started') starts.set(attempt, event);
    if (event.type !== 'job.failed' || event.data?.error?.code !== 'LEASE_EXPIRED' || begun.has(attempt)) continue;
    const start = starts.get(attempt);
    const owner = start?.actor.replace(/^worker:/, '');
    // Events are ordered by job: the next one tells whether somebody has repaired or released it.
    if (events[index + 1]?.job_id === event.job_id) continue;
    const died = daemons.some(
      (record) => record.event === 'exited' && record.name === owner && record.time >= (start?.time ?? 0),
    );
    if (died) continue;
    const text = `job ${event.job_id} failed with LEASE_EXPIRED under ${event.lease_id} of ${owner}, which lives and never began it`;
    yield { invariant: 'I6', text, place: event.place };
  }
}
