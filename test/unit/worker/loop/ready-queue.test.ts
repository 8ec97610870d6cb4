import { afterEach, expect, test, vi } from 'vitest';
import type { Attempt } from '../../../../server/worker/attempt/attempt.ts';
import { ReadyQueue } from '../../../../server/worker/loop/ready-queue.ts';

const attempt = { finished: false, job: { priority: 'NORMAL' } } as Attempt;

afterEach(() => vi.useRealTimers());

function ofShortJobs({ hasPeers = () => true as boolean } = {}): ReadyQueue {
  const ready = new ReadyQueue({ hasPeers });
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

function claimedNow(): Attempt & { reasons: string[] } {
  const reasons: string[] = [];
  const batch = { claimedAt: performance.now() };
  const one = {
    finished: false,
    job: { priority: 'NORMAL' },
    batch,
    reasons,
    requeue: (why: string) => reasons.push(why),
  };
  return one as unknown as Attempt & { reasons: string[] };
}

test('jobs that find no slot are requeued, soon beside other daemons and late without them', () => {
  vi.useFakeTimers();
  let peers = false;
  const ready = ofShortJobs({ hasPeers: () => peers });
  const [running, ahead] = [claimedNow(), claimedNow()];
  ready.add([running, ahead]);
  expect(ready.take(1)).toEqual([running]);
  vi.advanceTimersByTime(9000);
  expect([ready.size, ahead.reasons]).toEqual([1, []]);
  // Another daemon starts, which may have free slots.
  peers = true;
  vi.advanceTimersByTime(1000);
  expect([ready.size, ahead.reasons]).toEqual([0, ['not started in time']]);
  // The jobs are not short after all.
  expect(ready.ahead(10)).toBe(0);

  peers = false;
  const alone = claimedNow();
  ready.add([alone]);
  ready.take(0);
  vi.advanceTimersByTime(12_000);
  expect([ready.size, alone.reasons]).toEqual([0, ['not started in time']]);
});
