import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { createLogger } from '../../../server/kernel/logger.ts';
import { LoopWatch } from '../../../server/worker/loop-watch.ts';

beforeEach(() => {
  vi.useFakeTimers();
});
afterEach(() => {
  vi.useRealTimers();
});

test('it watches while jobs run and for a while after something was asked, and sleeps otherwise', async () => {
  let running = false;
  const onDelay = vi.fn();
  const onBlocked = vi.fn();
  const watch = new LoopWatch({
    logger: createLogger('silent'),
    runningTypes: () => [],
    isRunning: () => running,
    onBlocked,
    onDelay,
  });
  watch.stir();
  expect(watch.awake).toBe(false);
  await watch.start();
  expect(watch.awake).toBe(false);
  watch.stir();
  running = true;
  await vi.advanceTimersByTimeAsync(60_000);
  expect(watch.awake).toBe(true);
  expect(onDelay).toHaveBeenCalled();
  running = false;
  await vi.advanceTimersByTimeAsync(10_000);
  expect(watch.awake).toBe(false);
  expect(onBlocked).not.toHaveBeenCalled();
  watch.stir();
  await watch.stop();
  expect(vi.getTimerCount()).toBe(0);
});
