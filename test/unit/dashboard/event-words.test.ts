import { expect, test } from 'vitest';
import { describeEvent } from '../../../server/dashboard/src/data/jobs/event-words.ts';

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
