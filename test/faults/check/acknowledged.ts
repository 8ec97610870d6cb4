// What was acknowledged is there after every fault (I3): resources, settings, actions, answers, events, bulk operations and
// webhooks. And nothing is counted twice (I8).
import type { Effect } from '../../support/model/effects.ts';
import type { Operation } from '../load/operations.ts';
import type { ReceivedWebhook } from '../load/webhooks.ts';
import type { Logged } from '../run-log.ts';
import type { EventRecord, JobRecord, ResourceRecord } from '../snapshot.ts';
import type { Violation } from './violation.ts';

export interface AcknowledgedInput {
  operations: Logged<Operation>[];
  resources: Logged<ResourceRecord>[];
  events: Logged<EventRecord>[];
  jobs: Logged<JobRecord>[];
  effects: Logged<Effect>[];
  webhooks: Logged<ReceivedWebhook>[];
}

export function checkAcknowledged(input: AcknowledgedInput): Violation[] {
  return [
    ...lostResources(input),
    ...lostSettings(input),
    ...lostSecrets(input),
    ...lostActions(input),
    ...lostAnswers(input),
    ...lostEvents(input),
    ...leftBatches(input),
    ...wrongDeliveries(input),
    ...wrongUsage(input),
  ];
}

function statesOf(resources: readonly ResourceRecord[], kind: string): Map<string, string> {
  return new Map(resources.filter((one) => one.kind === kind).map(({ name, state }) => [name, state]));
}

/** Each is made once and changed at most once after that was acknowledged. */
function* lostResources({ operations, resources }: AcknowledgedInput): Generator<Violation> {
  const states = new Map(resources.map(({ kind, name, state }) => [`${kind} ${name}`, state]));
  const removals = new Set<string>();
  for (const { name, kind, resource, outcome } of operations) {
    if (name === 'remove' && outcome !== 'failed') removals.add(`${kind} ${resource}`);
  }
  for (const { name, kind, resource, outcome, place } of operations) {
    if (outcome !== 'ok' || kind === undefined) continue;
    const what = `${kind} ${resource}`;
    const state = states.get(what);
    if (name === 'make' && state === undefined && !removals.has(what)) {
      yield { invariant: 'I3', text: `${what} was acknowledged and is gone`, place };
    }
    if (name === 'change' && state !== 'changed') {
      yield { invariant: 'I3', text: `the change of ${what} was acknowledged, and it is ${state ?? 'gone'}`, place };
    }
    if (name === 'remove' && state !== undefined) {
      yield { invariant: 'I3', text: `the removal of ${what} was acknowledged, and it is there`, place };
    }
    if (name === 'make' && kind === 'operation' && state !== undefined && state !== 'finished') {
      yield { invariant: 'I10', text: `${what} is ${state} although no fault is left`, place };
    }
  }
}

/** One person sets it, so it has the last acknowledged value, or one of those whose outcome is unknown. */
function* lostSettings({ operations, resources }: AcknowledgedInput): Generator<Violation> {
  const own = operations.filter(({ name, kind }) => name === 'set' && kind === 'setting');
  const last = own.findLast(({ outcome }) => outcome === 'ok');
  if (last === undefined) return;
  const [value] = statesOf(resources, 'setting').keys();
  const possible = own.filter((one) => one === last || one.outcome === 'unknown').map(({ resource }) => resource);
  if (possible.includes(value)) return;
  const text = `the setting is ${value}, and ${last.resource} was the last that was acknowledged`;
  yield { invariant: 'I3', text, place: last.place };
}

/** A secret signs until the second rotation after its own. */
function* lostSecrets({ operations, resources }: AcknowledgedInput): Generator<Violation> {
  const own = operations.filter(({ name, kind }) => name === 'set' && kind === 'secret');
  const last = own.findLast(({ outcome }) => outcome === 'ok');
  if (last === undefined || own.filter(({ outcome }) => outcome === 'unknown').length > 1) return;
  if (statesOf(resources, 'secret').has(last.resource ?? '')) return;
  yield { invariant: 'I3', text: 'the last acknowledged webhook secret is gone', place: last.place };
}

const eventsOfActions: Partial<Record<Operation['name'], readonly string[]>> = {
  pause: ['job.paused', 'job.pause_requested'],
  cancel: ['job.canceled', 'job.cancel_requested', 'job.completed'],
  resume: ['job.resumed'],
  resolve: ['job.resolved'],
};

/** An action on a job that was acknowledged is in the log. */
function* lostActions({ operations, events }: AcknowledgedInput): Generator<Violation> {
  const logged = new Set(events.map(({ job_id, type }) => `${job_id} ${type}`));
  for (const { name, outcome, job, place } of operations) {
    const types = eventsOfActions[name];
    if (types === undefined || outcome !== 'ok' || types.some((type) => logged.has(`${job} ${type}`))) continue;
    yield { invariant: 'I3', text: `the ${name} of job ${job} was acknowledged and is not in the log`, place };
  }
}

function* lostAnswers({ operations, resources }: AcknowledgedInput): Generator<Violation> {
  const answers = statesOf(resources, 'question');
  for (const { name, outcome, question = '', number, place } of operations) {
    if (name !== 'answer' || outcome !== 'ok') continue;
    const answer = answers.get(question);
    if (answer === (number === undefined ? 'answered' : String(number))) continue;
    yield { invariant: 'I3', text: `an answer to question ${question} was acknowledged, and it is ${answer}`, place };
  }
}

function* lostEvents({ operations, resources }: AcknowledgedInput): Generator<Violation> {
  const received = statesOf(resources, 'event');
  for (const { name, outcome, key = '', place } of operations) {
    if (name !== 'sendEvent' || outcome !== 'ok' || received.has(key)) continue;
    yield { invariant: 'I3', text: `event ${key} was acknowledged and is gone`, place };
  }
}

/** Jobs of an acknowledged batch exist; at the end of a run all were canceled. */
function* leftBatches({ operations, jobs }: AcknowledgedInput): Generator<Violation> {
  const statuses = new Map(jobs.map(({ id, status }) => [id, status]));
  for (const { name, outcome, jobs: made = [], place } of operations) {
    if (name !== 'batch' || outcome !== 'ok') continue;
    for (const job of made) {
      const status = statuses.get(job);
      if (status === undefined) yield { invariant: 'I3', text: `job ${job} of a batch is gone`, place };
      else if (status !== 'CANCELED') yield { invariant: 'I3', text: `job ${job} of a batch is ${status}`, place };
    }
  }
}

/** Receivers refuse a larger difference. */
const toleranceSeconds = 300;

/** Deliveries that count as delivered were received, none was forgotten, and their times are those of the database. */
function* wrongDeliveries({ resources, webhooks }: AcknowledgedInput): Generator<Violation> {
  const received = new Set(webhooks.map(({ job, seq }) => `${job} ${seq}`));
  for (const { kind, name, state, place } of resources) {
    if (kind !== 'delivery') continue;
    if (state === 'delivered' && !received.has(name)) {
      yield { invariant: 'I3', text: `webhook ${name} counts as delivered, and nobody has received it`, place };
    }
    if (state === 'unsent') yield { invariant: 'I10', text: `webhook ${name} was never sent`, place };
  }
  for (const { job, sentAt, receivedAt, place } of webhooks) {
    if (Math.abs(sentAt - receivedAt) < toleranceSeconds) continue;
    const text = `a webhook of job ${job} says ${sentAt}, and it was ${receivedAt}`;
    yield { invariant: 'I3', text, place };
  }
}

const pointsPerReport = 10;

/**
 * Usage equals the reports of handlers: all of a run that completed, and no report twice. The sum of the day equals
 * that of the jobs.
 */
function* wrongUsage({ jobs, events, effects, resources }: AcknowledgedInput): Generator<Violation> {
  const completed = new Set<string>();
  for (const { type, job_id, lease_id } of events) if (type === 'job.completed') completed.add(`${job_id} ${lease_id}`);
  const spent = new Map<string, { min: number; max: number }>();
  for (const { kind, job, lease } of effects) {
    if (kind !== 'spend') continue;
    const { min, max } = spent.get(job) ?? { min: 0, max: 0 };
    const isKept = completed.has(`${job} ${lease}`);
    spent.set(job, { min: min + (isKept ? pointsPerReport : 0), max: max + pointsPerReport });
  }
  let sum = 0;
  for (const { id, type, usage, place } of jobs) {
    const points = usage?.points ?? 0;
    sum += points;
    const { min, max } = spent.get(id) ?? { min: 0, max: 0 };
    if (type !== 'spender' || (points >= min && points <= max)) continue;
    yield { invariant: 'I8', text: `job ${id} used ${points} points, and reported ${min} to ${max}`, place };
  }
  const days = resources.filter(({ kind, name }) => kind === 'usage' && name === 'points');
  const counted = days.reduce((total, { state }) => total + Number(state), 0);
  if (counted === sum) return;
  const text = `${counted} points are counted for the tenant, and its jobs have used ${sum}`;
  yield { invariant: 'I8', text, place: days[0]?.place ?? '' };
}
