// The effects log against the histories in the database: attempts of a target do not overlap (I1), what was accepted as
// completed was done under that lease (I4), durable steps are not repeated (I8), and nothing begins after a cancel or pause (I7).
import { type Effect, findOverlaps } from '../../support/model/effects.ts';
import type { Operation } from '../load/operations.ts';
import type { Logged } from '../run-log.ts';
import type { EventRecord, JobRecord } from '../snapshot.ts';
import type { Violation } from './violation.ts';

export interface EffectsInput {
  effects: Logged<Effect>[];
  events: Logged<EventRecord>[];
  jobs: Logged<JobRecord>[];
  operations: Logged<Operation>[];
}

export function checkEffectsLog(input: EffectsInput): Violation[] {
  return [
    ...findOverlaps(input.effects).map(({ index, text }) => ({
      invariant: 'I1',
      text,
      place: input.effects[index]?.place ?? '',
    })),
    ...completedWithoutEnd(input),
    ...repeatedSteps(input),
    ...stops.flatMap((stop) => [...begunAfterStop(input, stop)]),
  ];
}

function* completedWithoutEnd({ effects, events, jobs }: EffectsInput): Generator<Violation> {
  const logged = new Set(jobs.filter(({ type }) => logsItsEnd.includes(type)).map(({ id }) => id));
  const ends = new Set(effects.filter(({ kind }) => kind === 'end').map(({ job, lease }) => `${job}:${lease}`));
  for (const event of events) {
    if (event.type !== 'job.completed' || !logged.has(event.job_id)) continue;
    if (ends.has(`${event.job_id}:${event.lease_id}`)) continue;
    const text = `job ${event.job_id} is completed, and no handler ended under lease ${event.lease_id}`;
    yield { invariant: 'I4', text, place: event.place };
  }
}

const logsItsEnd = [
  'work',
  'durable',
  'asserting',
  'remote',
  'remote-durable',
  'limited',
  'unique',
  'receiver',
  'asker',
  'parent',
  'threaded',
  'spender',
];

function* repeatedSteps({ effects, events }: EffectsInput): Generator<Violation> {
  const completed = new Map<string, number>();
  for (const { type, job_id, attempt, data } of events) {
    const { step } = (data ?? {}) as { step?: string };
    if (type === 'job.step_completed') completed.set(`${job_id}:${step}`, attempt);
  }
  for (const effect of effects) {
    if (effect.step === undefined) continue;
    const attempt = completed.get(`${effect.job}:${effect.step}`);
    if (attempt === undefined || effect.attempt <= attempt) continue;
    const text = `step ${effect.step} of job ${effect.job} ran in attempt ${effect.attempt}, its result was stored in ${attempt}`;
    yield { invariant: 'I8', text, place: effect.place };
  }
}

// A worker reads stop requests again before a handler begins if it read them more than 500 ms ago. The rest is for the way
// from there to the first line of the handler, on a busy machine.
const startWithinMs = 1_000;

interface Stops {
  name: 'cancel' | 'pause';
  /** Recorded when the job runs. */
  request: string;
}

const stops: Stops[] = [
  { name: 'cancel', request: 'job.cancel_requested' },
  { name: 'pause', request: 'job.pause_requested' },
];

/**
 * Every process reads the same monotonic clock, so an effect after the answer came after the cancel or pause. Nothing begins
 * under a lease that was granted after it, a pause only until a resume that may have come later. If the job was RUNNING when
 * the request was recorded, its handler may begin within `startWithinMs`. A handler that had begun goes on until its worker
 * reads the request with a heartbeat.
 */
function* begunAfterStop(
  { effects, events, operations }: EffectsInput,
  { name, request }: Stops,
): Generator<Violation> {
  const stopped = operationsByJob(operations, (one) => one.name === name && one.outcome === 'ok');
  const resumed = operationsByJob(operations, (one) => one.name === 'resume' && one.outcome !== 'failed');
  const wereRunning = leasesWith(request, events);
  const begun = new Set<string>();
  for (const effect of [...effects].sort((a, b) => a.at - b.at)) {
    if (effect.kind !== 'begin') continue;
    const run = `${effect.job}:${effect.lease}`;
    const isStart = !begun.has(run);
    begun.add(run);
    const stop = stopped.get(effect.job)?.find((one) => {
      if (one.endedAt >= effect.at) return false;
      const lateMs = effect.at - one.endedAt;
      if (wereRunning.has(run) && (!isStart || lateMs <= startWithinMs)) return false;
      const isFollowing = ({ startedAt, endedAt }: Operation) => endedAt >= one.startedAt && startedAt <= effect.at;
      return name === 'cancel' || !resumed.get(effect.job)?.some(isFollowing);
    });
    if (stop === undefined) continue;
    const lateMs = Math.ceil(effect.at - stop.endedAt);
    const text = `job ${effect.job} began ${lateMs} ms after its ${name} was acknowledged (${stop.place})`;
    yield { invariant: 'I7', text, place: effect.place };
  }
}

function operationsByJob(
  operations: readonly Logged<Operation>[],
  isWanted: (operation: Operation) => boolean,
): Map<string, Logged<Operation>[]> {
  const byJob = new Map<string, Logged<Operation>[]>();
  for (const operation of operations) {
    const { job = '' } = operation;
    if (isWanted(operation)) byJob.set(job, [...(byJob.get(job) ?? []), operation]);
  }
  return byJob;
}

/** The leases under which jobs ran when a cancel or pause was recorded. */
function leasesWith(request: string, events: readonly EventRecord[]): Set<string> {
  const leases = new Set<string>();
  for (const { job_id, type, lease_id } of events) if (type === request) leases.add(`${job_id}:${lease_id}`);
  return leases;
}
