// The checker finds each thing that was acknowledged and is gone, or is counted twice.
import { expect, test } from 'vitest';
import { type AcknowledgedInput, checkAcknowledged } from '../../faults/check/acknowledged.ts';
import { checkStream } from '../../faults/check/stream.ts';
import { checkTicks } from '../../faults/check/ticks.ts';
import { describeViolation } from '../../faults/check/violation.ts';

const place = 'here:1';

function check(given: Partial<Record<keyof AcknowledgedInput, object[]>>): string[] {
  const none = { operations: [], resources: [], events: [], jobs: [], effects: [], webhooks: [] };
  const placed = Object.fromEntries(
    Object.entries({ ...none, ...given }).map(([name, records]) => [name, records.map((one) => ({ place, ...one }))]),
  );
  return checkAcknowledged(placed as unknown as AcknowledgedInput).map(describeViolation);
}

const operation = (name: string, rest: object) => ({ name, outcome: 'ok', ...rest });
const resource = (kind: string, name: string, state = 'made') => ({ kind, name, state });

test('what was made is there, what was changed is changed, what was removed is gone', () => {
  const about = { kind: 'key', resource: 'k' };
  const made = [operation('make', about)];
  expect(check({ operations: made, resources: [resource('key', 'k')] })).toEqual([]);
  expect(check({ operations: made })).toEqual(['I3 key k was acknowledged and is gone (here:1)']);
  const changed = [...made, operation('change', about)];
  expect(check({ operations: changed, resources: [resource('key', 'k', 'changed')] })).toEqual([]);
  expect(check({ operations: changed, resources: [resource('key', 'k')] })).toEqual([
    'I3 the change of key k was acknowledged, and it is made (here:1)',
  ]);
  const removed = [...made, operation('remove', about)];
  expect(check({ operations: removed })).toEqual([]);
  expect(check({ operations: removed, resources: [resource('key', 'k')] })).toEqual([
    'I3 the removal of key k was acknowledged, and it is there (here:1)',
  ]);
  expect(check({ operations: [...made, operation('remove', { ...about, outcome: 'unknown' })] })).toEqual([]);
});

test('a bulk operation has ended, and its jobs with it', () => {
  const about = { kind: 'operation', resource: 'o' };
  const operations = [operation('batch', { jobs: ['a'] }), operation('make', about)];
  const ended = { resources: [resource('operation', 'o', 'finished')], jobs: [{ id: 'a', status: 'CANCELED' }] };
  expect(check({ operations, ...ended })).toEqual([]);
  const left = { resources: [resource('operation', 'o', 'running')], jobs: [{ id: 'a', status: 'PENDING' }] };
  expect(check({ operations, ...left })).toEqual([
    'I10 operation o is running although no fault is left (here:1)',
    'I3 job a of a batch is PENDING (here:1)',
  ]);
  expect(check({ operations, ...ended, jobs: [] })).toEqual(['I3 job a of a batch is gone (here:1)']);
});

test('a setting has the last acknowledged value, or one of unknown outcome', () => {
  const set = (value: string, outcome = 'ok') => operation('set', { kind: 'setting', resource: value, outcome });
  const operations = [set('1'), set('2'), set('3', 'unknown')];
  for (const value of ['2', '3']) expect(check({ operations, resources: [resource('setting', value)] })).toEqual([]);
  expect(check({ operations, resources: [resource('setting', '1')] })).toEqual([
    'I3 the setting is 1, and 2 was the last that was acknowledged (here:1)',
  ]);
});

test('the last webhook secret signs', () => {
  const operations = [operation('set', { kind: 'secret', resource: 's' })];
  expect(check({ operations, resources: [resource('secret', 's')] })).toEqual([]);
  expect(check({ operations, resources: [resource('secret', 'other')] })).toEqual([
    'I3 the last acknowledged webhook secret is gone (here:1)',
  ]);
});

test('actions, answers and events are stored', () => {
  const operations = [
    operation('pause', { job: 'j' }),
    operation('answer', { question: 'q', number: 7 }),
    operation('sendEvent', { key: 'e' }),
  ];
  const stored = {
    events: [{ job_id: 'j', type: 'job.paused' }],
    resources: [resource('question', 'q', '7'), resource('event', 'e')],
  };
  expect(check({ operations, ...stored })).toEqual([]);
  expect(check({ operations, resources: [resource('question', 'q', 'open')] })).toEqual([
    'I3 the pause of job j was acknowledged and is not in the log (here:1)',
    'I3 an answer to question q was acknowledged, and it is open (here:1)',
    'I3 event e was acknowledged and is gone (here:1)',
  ]);
});

test('a delivered webhook was received, with the time of the database, and none is left', () => {
  const webhooks = [{ job: 'j', seq: '1', sentAt: 1000, receivedAt: 1001 }];
  expect(check({ webhooks, resources: [resource('delivery', 'j 1', 'delivered')] })).toEqual([]);
  const resources = [
    resource('delivery', 'j 2', 'delivered'),
    resource('delivery', 'j 3', 'unsent'),
    resource('delivery', 'j 4', 'pending'),
  ];
  expect(check({ webhooks: [{ ...webhooks[0], sentAt: 1600 }], resources })).toEqual([
    'I3 webhook j 2 counts as delivered, and nobody has received it (here:1)',
    'I10 webhook j 3 was never sent (here:1)',
    'I3 a webhook of job j says 1600, and it was 1001 (here:1)',
  ]);
});

test('usage is what was reported, once', () => {
  const spend = { kind: 'spend', job: 'j', lease: 'l' };
  const events = [{ type: 'job.completed', job_id: 'j', lease_id: 'l' }];
  const used = (points: number, day = points) => ({
    jobs: [{ id: 'j', type: 'spender', status: 'SUCCESS', usage: { points } }],
    resources: [resource('usage', 'points', String(day))],
  });
  const effects = [spend, spend, { ...spend, lease: 'lost' }];
  for (const points of [20, 30]) expect(check({ effects, events, ...used(points) })).toEqual([]);
  for (const points of [10, 40]) {
    expect(check({ effects, events, ...used(points) })).toEqual([
      `I8 job j used ${points} points, and reported 20 to 30 (here:1)`,
    ]);
  }
  expect(check({ effects, events, ...used(20, 40) })).toEqual([
    'I8 40 points are counted for the tenant, and its jobs have used 20 (here:1)',
  ]);
});

test('a schedule fires once for each of its times', () => {
  const fired = (second: number) => ({
    type: 'schedule.fired',
    data: { for: `2026-01-01T00:00:${String(second).padStart(2, '0')}Z` },
    place,
  });
  const violations = (...seconds: number[]) =>
    [...checkTicks(seconds.map(fired) as unknown as Parameters<typeof checkTicks>[0])].map(describeViolation);
  expect(violations(0, 5, 10)).toEqual([]);
  expect(violations(0, 5, 5)).toEqual(['I8 the schedule fired twice for 2026-01-01T00:00:05.000Z (here:1)']);
  expect(violations(0, 10)).toEqual([
    'I10 the schedule fired for 2026-01-01T00:00:10.000Z, and not for the time before (here:1)',
  ]);
});

test('the outcome of a delivery may come before an earlier event of its job, and not before the delivered event', () => {
  const sent = (event: string, seq: string) => ({ event, seq, job: 'j', target: null, place });
  const outcome = (seq: string) => ({
    ...{ seq, type: 'job.webhook_delivered', job_id: 'j', place },
    data: { delivery_id: 'd', event_id: '1' },
  });
  const events = [
    { seq: '1', type: 'job.waiting', job_id: 'j', data: null, place },
    { seq: '2', type: 'job.woken', job_id: 'j', data: null, place },
    ...['3', '4'].map(outcome),
  ];
  const violations = (...stream: object[]) =>
    [...checkStream(stream as Parameters<typeof checkStream>[0], events as Parameters<typeof checkStream>[1])].map(
      describeViolation,
    );
  const [waiting, woken] = [sent('job:waiting', '1'), sent('job:woken', '2')];
  const [delivered, again] = ['3', '4'].map((seq) => sent('job:webhook:delivered', seq)) as [object, object];
  expect(violations(waiting, delivered, woken, again)).toEqual([]);
  expect(violations(woken, waiting, delivered, again)).toEqual(['I11 event 1 of j came after 2 (here:1) (here:1)']);
  expect(violations(delivered, waiting, woken, again)).toEqual([
    'I11 event 3 came before 1, whose delivery it reports (here:1)',
  ]);
  expect(violations(waiting, woken, again, delivered)).toEqual([
    'I11 event 3 of delivery d came after 4 (here:1) (here:1)',
  ]);
  expect(violations(waiting, woken, again)).toEqual([
    'I11 event 3 (job.webhook_delivered of j) never came in the stream (here:1)',
  ]);
});
