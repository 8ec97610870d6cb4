import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { createLogger } from '../../../server/kernel/logger.ts';
import { Interval } from '../../../server/kernel/service.ts';

beforeEach(() => {
  vi.useFakeTimers();
});
afterEach(() => {
  vi.useRealTimers();
});

function create(everyMs: number | (() => number)) {
  const run = vi.fn(async () => {});
  return { run, interval: new Interval('test', everyMs, run, createLogger('silent')) };
}

test('with an infinite period it has no timer and runs when it is called', async () => {
  const { run, interval } = create(Number.POSITIVE_INFINITY);
  await interval.start();
  expect(vi.getTimerCount()).toBe(0);
  interval.within(100);
  interval.within(50);
  interval.within(500);
  expect(vi.getTimerCount()).toBe(1);
  await vi.advanceTimersByTimeAsync(60);
  expect(run).toHaveBeenCalledTimes(1);
  expect(vi.getTimerCount()).toBe(0);
  interval.wake();
  await vi.advanceTimersByTimeAsync(0);
  expect(run).toHaveBeenCalledTimes(2);
  await interval.stop();
  interval.within(1);
  expect(vi.getTimerCount()).toBe(0);
});

test('its period is read after every run', async () => {
  let everyMs = 1000;
  const { run, interval } = create(() => everyMs);
  await interval.start();
  everyMs = 100_000;
  await vi.advanceTimersByTimeAsync(1200);
  expect(run).toHaveBeenCalledTimes(1);
  await vi.advanceTimersByTimeAsync(50_000);
  expect(run).toHaveBeenCalledTimes(1);
  await interval.stop();
});
