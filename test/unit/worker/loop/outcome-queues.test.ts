import { expect, test } from 'vitest';
import type { FinishedAttempt } from '../../../../server/jobs/finish/outcome.ts';
import { JsonText } from '../../../../server/kernel/json/json-text.ts';
import { OutcomeQueues } from '../../../../server/worker/loop/outcome-queues.ts';

const lease = {};

function batchesOf(results: unknown[]): number[] {
  const queues = new OutcomeQueues<FinishedAttempt>();
  results.forEach((result, n) => {
    const outcome = { kind: 'complete', result } as const;
    queues.add({ jobId: String(n), leaseId: 'one', targetId: null, outcome }, lease, n === results.length - 1);
  });
  const [queue] = queues.takeUnwritten();
  const sizes: number[] = [];
  for (let batch = queue && queues.next(queue); batch && queue; batch = queues.next(queue)) {
    sizes.push(batch.items.length);
    expect(batch.endedLeases).toEqual(
      batch.items.some(({ jobId }) => jobId === String(results.length - 1)) ? ['one'] : [],
    );
  }
  return sizes;
}

const textOf = (chars: number) => new JsonText(JSON.stringify('x'.repeat(chars - 2)));

test('outcomes that are ready together are written together', () => {
  expect(batchesOf(Array.from({ length: 300 }, () => null))).toEqual([300]);
  expect(batchesOf(Array.from({ length: 300 }, () => textOf(800)))).toEqual([300]);
});

test('large results are written in several statements, and a very large one alone', () => {
  expect(batchesOf(Array.from({ length: 5 }, () => textOf(100_000)))).toEqual([2, 2, 1]);
  expect(batchesOf([textOf(1_000_000), textOf(10), textOf(1_000_000)])).toEqual([1, 1, 1]);
});

test('successes without a lane wait a moment after a write, so that they share the next one; others do not', () => {
  const queues = new OutcomeQueues<FinishedAttempt>();
  const add = (over: Partial<FinishedAttempt> = {}) => {
    const outcome = { kind: 'complete', result: null } as const;
    queues.add({ jobId: 'a', leaseId: 'one', targetId: null, outcome, ...over }, lease, false);
  };
  add();
  const [queue] = queues.takeUnwritten();
  if (queue === undefined) throw new Error('there is no queue');
  // The first after a pause is written at once.
  expect(queue.waitMs(performance.now())).toBe(0);
  const before = performance.now();
  queues.next(queue);
  add();
  expect(queue.waitMs(before)).toBeGreaterThan(0);
  expect(queue.waitMs(before + 60_000)).toBe(0);
  for (let n = 0; n < 100; n++) add();
  expect(queue.waitMs(before)).toBe(0);
  queues.next(queue);
  add();
  add({ targetId: 'a lane' });
  expect(queue.waitMs(before)).toBe(0);
  queues.next(queue);
  add({ outcome: { kind: 'requeue', reason: 'drained' } });
  expect(queue.waitMs(before)).toBe(0);
});
