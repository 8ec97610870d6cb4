import { expect, test } from 'vitest';
import { describeWaiting, never, unlessNever } from '../../../../server/jobs/model/waiting.ts';

test('a job that no time wakes is shown without a due time', () => {
  expect(unlessNever(never)).toBeNull();
  expect(unlessNever('9999-12-31T00:00:00.000000Z')).toBeNull();
  expect(unlessNever('2026-01-02T03:04:05.123456Z')).toBe('2026-01-02T03:04:05.123456Z');
});

test('a question is described by its title, never by its id', () => {
  const waiting = { kind: 'question', step: 'ok', until: 'then', question: 'an-id' } as const;
  expect(describeWaiting({ ...waiting, title: 'Ship it?' })).toBe(
    'waits for a person to answer "Ship it?", asked in "ok", until then',
  );
  expect(describeWaiting(waiting)).toBe('waits for a person to answer the question, asked in "ok", until then');
});

test('the description of many jobs says how many have not ended', () => {
  const children = { kind: 'children', step: 'all', jobs: 1200 } as const;
  expect(describeWaiting(children)).toBe('waits in "all" for its 1,200 children');
  expect(describeWaiting({ ...children, unfinished: 3 })).toBe('waits in "all" for 3 of its 1,200 children');
  expect(describeWaiting({ kind: 'after', jobs: 5, unfinished: 2 })).toBe('runs after 2 of 5 other jobs');
  expect(describeWaiting({ kind: 'after', jobs: 1, unfinished: 0 })).toBe('runs after one other job');
});
