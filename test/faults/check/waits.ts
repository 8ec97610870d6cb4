// What jobs wait for: a job returns the event from outside that was acknowledged for it (I3), one answer counts, a parent has
// its children once, and a unique key one unfinished job (I8), a job that runs after another starts after its end, a parent
// completes after its children, and a limit of running jobs holds (I2). The order is that of the numbers of events, which are drawn under the locks that decide.
import { isTerminal, type Status } from '../../../server/jobs/model/states.ts';
import type { Operation } from '../load/operations.ts';
import { concurrencyLimit } from '../load/waits.ts';
import type { Logged } from '../run-log.ts';
import type { EventRecord, JobRecord } from '../snapshot.ts';
import type { Violation } from './violation.ts';

export interface WaitsInput {
  jobs: Logged<JobRecord>[];
  events: Logged<EventRecord>[];
  operations: Logged<Operation>[];
}

export function checkWaits(input: WaitsInput): Violation[] {
  const lives = livesOf(input.events);
  return [
    ...wrongEvents(input),
    ...wrongAnswers(input),
    ...startedTooEarly(input, lives),
    ...parentsWithoutChildren(input, lives),
    ...sharedKeys(input, lives),
    ...aboveLimit(input),
  ];
}

function groupBy<T>(items: readonly T[], keyOf: (item: T) => string): Map<string, T[]> {
  const groups = new Map<string, T[]>();
  for (const item of items) groups.set(keyOf(item), [...(groups.get(keyOf(item)) ?? []), item]);
  return groups;
}

interface Life {
  enqueued: bigint | undefined;
  started: bigint | undefined;
  /** The first end, also in ERROR, which may be resumed. */
  ended: bigint | undefined;
  final: bigint | undefined;
  completed: Logged<EventRecord> | undefined;
}

function livesOf(events: readonly Logged<EventRecord>[]): Map<string, Life> {
  const lives = new Map<string, Life>();
  for (const event of events) {
    const life = lives.get(event.job_id) ?? {
      enqueued: undefined,
      started: undefined,
      ended: undefined,
      final: undefined,
      completed: undefined,
    };
    lives.set(event.job_id, life);
    const seq = BigInt(event.seq);
    if (event.type === 'job.enqueued') life.enqueued ??= seq;
    if (event.to_status === 'RUNNING' && event.from_status !== 'RUNNING') life.started ??= seq;
    if (event.type === 'job.completed') life.completed ??= event;
    if (event.to_status === null || event.to_status === event.from_status) continue;
    const isFinal = isTerminal(event.to_status as Status);
    if (isFinal || event.to_status === 'ERROR') life.ended ??= seq;
    if (isFinal) life.final ??= seq;
  }
  return lives;
}

/** An event that was acknowledged after its job had been is the one that the job returns. */
function* wrongEvents({ jobs, events, operations }: WaitsInput): Generator<Violation> {
  const completed = new Set(events.filter(({ type }) => type === 'job.completed').map(({ job_id }) => job_id));
  const acknowledged = new Map<string, Logged<Operation>>();
  for (const operation of operations) {
    if (operation.outcome !== 'ok' || operation.job === undefined) continue;
    if (operation.name === 'enqueue' && !acknowledged.has(operation.job)) acknowledged.set(operation.job, operation);
  }
  const sent = new Map<string, Logged<Operation>>();
  for (const operation of operations) {
    if (operation.name === 'sendEvent' && operation.outcome === 'ok') sent.set(operation.key ?? '', operation);
  }
  for (const { id, type, result, client_request_id, place } of jobs) {
    if (type !== 'receiver' || !completed.has(id)) continue;
    const [enqueue, event] = [acknowledged.get(id), sent.get(client_request_id ?? '')];
    if (enqueue === undefined || event === undefined || event.startedAt < enqueue.endedAt) continue;
    if (result?.event === event.key) continue;
    const text = `job ${id} returned event ${result?.event}, and ${event.key} was acknowledged for it (${event.place})`;
    yield { invariant: 'I3', text, place };
  }
}

function* wrongAnswers({ jobs, events, operations }: WaitsInput): Generator<Violation> {
  const completed = new Set(events.filter(({ type }) => type === 'job.completed').map(({ job_id }) => job_id));
  const results = new Map(jobs.map(({ id, result }) => [id, result]));
  const accepted = new Map<string, Logged<Operation>>();
  for (const operation of operations) {
    const { name, outcome, question = '', number, job = '', place } = operation;
    if (name !== 'answer' || outcome !== 'ok') continue;
    const first = accepted.get(question);
    accepted.set(question, first ?? operation);
    if (first !== undefined) {
      yield { invariant: 'I8', text: `question ${question} was answered twice, before in ${first.place}`, place };
    }
    const answer = results.get(job)?.answer;
    if (!completed.has(job) || answer === number) continue;
    const text = `job ${job} returned the answer ${answer}, and ${number} was accepted`;
    yield { invariant: 'I8', text, place };
  }
}

function* startedTooEarly({ operations }: WaitsInput, lives: Map<string, Life>): Generator<Violation> {
  for (const { name, outcome, job = '', after, place } of operations) {
    if (name !== 'enqueue' || outcome !== 'ok' || after === undefined) continue;
    const started = lives.get(job)?.started;
    const ended = lives.get(after)?.ended;
    if (started === undefined || (ended !== undefined && ended < started)) continue;
    yield { invariant: 'I2', text: `job ${job} started before ${after} had ended`, place };
  }
}

function* parentsWithoutChildren({ jobs }: WaitsInput, lives: Map<string, Life>): Generator<Violation> {
  const children = groupBy(
    jobs.filter(({ parent_id }) => parent_id !== null),
    ({ parent_id }) => parent_id as string,
  );
  for (const { id, type, place } of jobs) {
    const completed = lives.get(id)?.completed;
    if (type !== 'parent' || completed === undefined) continue;
    const own = children.get(id) ?? [];
    if (own.length !== 2) yield { invariant: 'I8', text: `job ${id} has ${own.length} children instead of 2`, place };
    for (const child of own) {
      const ended = lives.get(child.id)?.ended;
      if (ended !== undefined && ended < BigInt(completed.seq)) continue;
      yield {
        invariant: 'I2',
        text: `job ${id} completed before its child ${child.id} had ended`,
        place: completed.place,
      };
    }
  }
}

function* sharedKeys({ jobs }: WaitsInput, lives: Map<string, Life>): Generator<Violation> {
  const byKey = groupBy(
    jobs.filter(({ unique_key }) => unique_key !== undefined && unique_key !== null),
    ({ unique_key }) => unique_key as string,
  );
  for (const [key, own] of byKey) {
    const inOrder = own
      .map((job) => ({ job, from: lives.get(job.id)?.enqueued ?? 0n, to: lives.get(job.id)?.final }))
      .sort((a, b) => (a.from < b.from ? -1 : 1));
    for (const [index, { job, from }] of inOrder.entries()) {
      const before = inOrder[index - 1];
      if (before === undefined || (before.to !== undefined && before.to < from)) continue;
      const text = `jobs ${before.job.id} and ${job.id} held the key ${key} at the same time`;
      yield { invariant: 'I8', text, place: job.place };
    }
  }
}

function* aboveLimit({ jobs, events }: WaitsInput): Generator<Violation> {
  const limited = new Set(jobs.filter(({ type }) => type === 'limited').map(({ id }) => id));
  const own = events.filter(({ job_id }) => limited.has(job_id));
  const running = new Set<string>();
  for (const event of own.sort((a, b) => (BigInt(a.seq) < BigInt(b.seq) ? -1 : 1))) {
    if (event.to_status === null) continue;
    if (event.to_status !== 'RUNNING') running.delete(event.job_id);
    else running.add(event.job_id);
    if (running.size <= concurrencyLimit) continue;
    const text = `${running.size} jobs under a limit of ${concurrencyLimit} ran at once: ${[...running].join(', ')}`;
    yield { invariant: 'I2', text, place: event.place };
  }
}
