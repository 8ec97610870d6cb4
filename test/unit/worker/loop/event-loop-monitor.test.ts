import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { createLogger, type Logger } from '../../../../server/kernel/logger.ts';
import { EventLoopMonitor } from '../../../../server/worker/loop/event-loop-monitor.ts';

beforeEach(() => {
  vi.useFakeTimers();
});
afterEach(() => {
  vi.useRealTimers();
});

test('it measures while jobs run and for a while after a request, and stops otherwise', async () => {
  let running = false;
  const onDelay = vi.fn();
  const onBlocked = vi.fn();
  const watch = new EventLoopMonitor({
    logger: createLogger('silent'),
    runningTypes: () => [],
    isRunning: () => running,
    onBlocked,
    onDelay,
  });
  watch.wake();
  expect(watch.awake).toBe(false);
  await watch.start();
  expect(watch.awake).toBe(false);
  watch.wake();
  running = true;
  await vi.advanceTimersByTimeAsync(60_000);
  expect(watch.awake).toBe(true);
  expect(onDelay).toHaveBeenCalled();
  running = false;
  await vi.advanceTimersByTimeAsync(10_000);
  expect(watch.awake).toBe(false);
  expect(onBlocked).not.toHaveBeenCalled();
  watch.wake();
  await watch.stop();
  expect(vi.getTimerCount()).toBe(0);
});

test('the warning of a blocked loop names the types that ran, including those that have ended', async () => {
  vi.useRealTimers();
  const warn = vi.fn();
  const watch = new EventLoopMonitor({
    logger: { warn } as unknown as Logger,
    runningTypes: () => [],
    isRunning: () => false,
    onBlocked: () => {},
    warnAfterMs: 50,
  });
  await watch.start();
  watch.wake();
  watch.began('compute');
  const until = performance.now() + 300;
  while (performance.now() < until);
  await vi.waitFor(() => expect(warn).toHaveBeenCalled(), { timeout: 60_000 });
  expect(warn.mock.calls[0]?.[0]).toMatchObject({ runningTypes: ['compute'] });
  await watch.stop();
});
