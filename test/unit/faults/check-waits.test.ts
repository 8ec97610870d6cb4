// The checker finds each broken promise about jobs that wait.
import { expect, test } from 'vitest';
import { describeViolation } from '../../faults/check/violation.ts';
import { checkWaits, type WaitsInput } from '../../faults/check/waits.ts';

let seq = 0;
const place = 'here:1';

function life(job: string, ...statuses: string[]): object[] {
  return statuses.map((to_status, index) => ({
    job_id: job,
    seq: String(++seq),
    type: index === 0 ? 'job.enqueued' : to_status === 'SUCCESS' ? 'job.completed' : 'job.changed',
    from_status: statuses[index - 1] ?? null,
    to_status,
    place,
  }));
}

const job = (id: string, type = 'work', rest: object = {}) => ({
  id,
  type,
  parent_id: null,
  result: null,
  place,
  ...rest,
});
const enqueue = (id: string, rest: object = {}) => ({
  name: 'enqueue',
  outcome: 'ok',
  startedAt: 1,
  endedAt: 2,
  job: id,
  place,
  ...rest,
});

function check(jobs: object[], events: object[], operations: object[] = []): string[] {
  return checkWaits({ jobs, events, operations } as unknown as WaitsInput).map(describeViolation);
}

const whole = ['QUEUED', 'RUNNING', 'SUCCESS'];

test('an event that was acknowledged is the one that its job returns', () => {
  const send = { name: 'sendEvent', outcome: 'ok', key: 'k', startedAt: 3, endedAt: 4, place };
  const receiver = (event: string) => job('r', 'receiver', { client_request_id: 'k', result: { event } });
  const operations = [enqueue('r'), send];
  expect(check([receiver('k')], life('r', ...whole), operations)).toEqual([]);
  expect(check([receiver('other')], life('r', ...whole), operations)).toEqual([
    'I3 job r returned event other, and k was acknowledged for it (here:1) (here:1)',
  ]);
});

test('one answer is accepted, and the job returns it', () => {
  const answer = (number: number) => ({ name: 'answer', outcome: 'ok', question: 'q', job: 'a', number, place });
  const asker = job('a', 'asker', { result: { answer: 1 } });
  expect(check([asker], life('a', ...whole), [answer(1)])).toEqual([]);
  expect(check([asker], life('a', ...whole), [answer(1), answer(2)])).toEqual([
    'I8 question q was answered twice, before in here:1 (here:1)',
    'I8 job a returned the answer 1, and 2 was accepted (here:1)',
  ]);
});

test('a job starts after the one that it runs after', () => {
  const operations = [enqueue('first'), enqueue('second', { after: 'first' })];
  const jobs = [job('first'), job('second')];
  expect(check(jobs, [...life('first', ...whole), ...life('second', 'WAITING', ...whole)], operations)).toEqual([]);
  expect(check(jobs, [...life('second', 'WAITING', ...whole), ...life('first', ...whole)], operations)).toEqual([
    'I2 job second started before first had ended (here:1)',
  ]);
});

test('a parent has two children, and ends after them', () => {
  const children = ['c1', 'c2'].map((id) => job(id, 'work', { parent_id: 'p' }));
  const [c1, c2] = [life('c1', ...whole), life('c2', ...whole)];
  expect(check([job('p', 'parent'), ...children], [...c1, ...c2, ...life('p', ...whole)])).toEqual([]);
  expect(check([job('p', 'parent'), ...children], [...c1, ...life('p', ...whole), ...life('c2', ...whole)])).toEqual([
    'I2 job p completed before its child c2 had ended (here:1)',
  ]);
  expect(check([job('p', 'parent')], life('p', ...whole))).toEqual(['I8 job p has 0 children instead of 2 (here:1)']);
});

test('a unique key has one unfinished job', () => {
  const jobs = ['u1', 'u2'].map((id) => job(id, 'unique', { unique_key: 'k' }));
  const second = (first: object[]) => check(jobs, [...first, ...life('u2', ...whole)]);
  expect(second(life('u1', ...whole))).toEqual([]);
  expect(second(life('u1', 'QUEUED', 'RUNNING'))).toEqual([
    'I8 jobs u1 and u2 held the key k at the same time (here:1)',
  ]);
});

test('no more jobs run than a limit allows', () => {
  const jobs = ['l1', 'l2', 'l3'].map((id) => job(id, 'limited'));
  const running = (id: string) => life(id, 'QUEUED', 'RUNNING');
  expect(check(jobs, [...running('l1'), ...life('l2', ...whole), ...running('l3')])).toEqual([]);
  expect(
    check(
      jobs,
      jobs.flatMap(({ id }) => running(id)),
    ),
  ).toEqual(['I2 3 jobs under a limit of 2 ran at once: l1, l2, l3 (here:1)']);
});
