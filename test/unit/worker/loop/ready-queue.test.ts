import { expect, test } from 'vitest';
import type { Attempt } from '../../../../server/worker/attempt/attempt.ts';
import { ReadyQueue } from '../../../../server/worker/loop/ready-queue.ts';

const attempt = { finished: false, job: { priority: 'NORMAL' } } as Attempt;

function ofShortJobs(): ReadyQueue {
  const ready = new ReadyQueue();
  ready.observe(1);
  return ready;
}

test('short jobs are claimed ahead by their number', () => {
  const ready = ofShortJobs();
  expect(ready.ahead(10)).toBeGreaterThan(100);
  ready.add([attempt, attempt]);
  expect(ready.ahead(10)).toBeGreaterThan(100);
});

test('nothing is claimed ahead while jobs wait whose payloads filled a claim', () => {
  const ready = ofShortJobs();
  ready.add([attempt]);
  ready.add([attempt], true);
  expect(ready.ahead(10)).toBe(0);
  // A small claim that joins them does not change that.
  ready.add([attempt]);
  expect(ready.take(2)).toHaveLength(2);
  expect(ready.ahead(10)).toBe(0);
  expect(ready.take(2)).toHaveLength(1);
  expect(ready.ahead(10)).toBeGreaterThan(100);
  ready.add([attempt]);
  expect(ready.ahead(10)).toBeGreaterThan(100);
  ready.take(1);
});
