// Attempts are counted for a handler that began, or for a process that died (I6), not for a claim whose handler never
// began.
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

export function checkAttempts(input: AttemptsInput): Violation[] {
  return [...countedUnrun(input), ...begunTooLate(input)];
}

/** A job that failed because its lease ran out, and stayed so, must have begun under that lease. */
function* countedUnrun({ effects, events, daemons }: AttemptsInput): Generator<Violation> {
  const begun = new Set(effects.filter(({ kind }) => kind === 'begin').map(({ job, lease }) => `${job}:${lease}`));
  const starts = new Map<string, Logged<EventRecord>>();
  for (const [index, event] of events.entries()) {
    const attempt = `${event.job_id}:${event.lease_id}`;
    if (event.type === 'job.started') starts.set(attempt, event);
    if (event.type !== 'job.failed' || event.data?.error?.code !== 'LEASE_EXPIRED' || begun.has(attempt)) continue;
    const start = starts.get(attempt);
    // A remote worker that was granted a lease and does not use it is as good as dead.
    if (start === undefined) continue;
    const owner = start.actor.replace(/^worker:/, '');
    // Events are ordered by job, so the next one shows whether the job was repaired or released.
    if (events[index + 1]?.job_id === event.job_id) continue;
    const died = daemons.some(
      (record) => record.event === 'exited' && record.name === owner && record.time >= start.time,
    );
    if (died) continue;
    const text = `job ${event.job_id} failed with LEASE_EXPIRED under ${event.lease_id} of ${owner}, which lives and never began it`;
    yield { invariant: 'I6', text, place: event.place };
  }
}

/**
 * The sweeper ends a lease long after its holder must have stopped trusting it, so nothing that begins later is
 * trusted.
 */
function* begunTooLate({ effects, events, daemons }: AttemptsInput): Generator<Violation> {
  if (daemons.length === 0) return;
  const ends = new Map<string, Logged<EventRecord>>();
  for (const event of events) {
    const isOver = event.type === 'job.lease_expired' || event.data?.error?.code === 'LEASE_EXPIRED';
    if (event.from_status === 'RUNNING' && isOver) ends.set(`${event.job_id}:${event.lease_id}`, event);
  }
  for (const effect of effects) {
    const end = ends.get(`${effect.job}:${effect.lease}`);
    if (end === undefined || effect.kind !== 'begin' || toWallClock(effect.at, daemons) <= end.time) continue;
    const text = `job ${effect.job} began under lease ${effect.lease}, which was over (${end.place})`;
    yield { invariant: 'I4', text, place: effect.place };
  }
}

/** By the record that is nearest to it, because a wall clock may be set during a run. */
function toWallClock(at: number, records: readonly DaemonRecord[]): number {
  const nearest = records.reduce((one, other) => (Math.abs(other.at - at) < Math.abs(one.at - at) ? other : one));
  return at + nearest.time - nearest.at;
}
