import { expect, test } from 'vitest';
import { describeEvent, describeWaiting, type Waiting } from '../../../server/dashboard/src/data/jobs/descriptions.ts';
import { waitKinds } from '../../../server/jobs/model/waiting.ts';

const at = '2026-01-02T03:04:05Z';
const texts: [Waiting, string][] = [
  [{ kind: 'sleep', step: 'sleep#1', until: at }, `sleeps, wakes ${at}`],
  [{ kind: 'event', event: 'paid' }, 'waits for the event "paid"'],
  [{ kind: 'event', event: 'paid', until: at }, `waits for the event "paid", gives up ${at}`],
  [{ kind: 'question', question: 'q', until: at }, `waits for an answer, due ${at}`],
  [{ kind: 'question', question: 'q', title: 'Ship it?', until: at }, `waits for an answer, due ${at}: "Ship it?"`],
  [{ kind: 'children', jobs: 1200, unfinished: 3 }, 'waits for 3 of its 1,200 children'],
  [{ kind: 'after', jobs: 3, unfinished: 2 }, 'runs after 2 of 3 other jobs'],
  [{ kind: 'children', jobs: 1 }, 'waits for its child'],
  [{ kind: 'children', jobs: 1200 }, 'waits for its 1,200 children'],
  [{ kind: 'after', jobs: 1 }, 'runs after another job'],
  [{ kind: 'after', jobs: 3, not_before: at }, `runs after 3 other jobs, at the earliest ${at}`],
  [{ kind: 'turn', step: 'all#1' }, 'waits for its turn among the children of its parent'],
];

test.each(texts)('%j', (waiting, text) => {
  expect(describeWaiting(waiting)).toBe(text);
});

test('every kind of wait has its text', () => {
  expect(new Set(texts.map(([{ kind }]) => kind))).toEqual(new Set(waitKinds));
});

test.each([
  ['job.enqueued', null, 'Enqueued'],
  ['job.phase_started', { phase: 'download' }, 'Phase started: download'],
  ['job.step_completed', { step: 'charge', tries: 1 }, 'Step completed: charge'],
  ['job.event_received', { id: '1', step: 'event:paid#1', event: 'paid' }, 'Event received: paid'],
  ['question.asked', { question: { id: '1', step: 'question#1', title: 'Ship?' } }, 'Question asked: Ship?'],
  [
    'job.waiting',
    { kind: 'sleep', step: 'sleep#1', until: '2026-01-02T03:04:05Z' },
    'Waiting: sleeps, wakes 2026-01-02T03:04:05Z',
  ],
])('%s', (type, data, words) => {
  expect(describeEvent({ type, data })).toBe(words);
});
