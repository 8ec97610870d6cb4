import { afterEach, expect, test, vi } from 'vitest';
import { createLogger } from '../../../server/kernel/logger.ts';
import { PerTenantTask, type TaskResult } from '../../../server/maintenance/per-tenant-task.ts';
import type { Tenant } from '../../../server/tenants/tenant.ts';
import { eventually } from '../../support/eventually.ts';

afterEach(() => void vi.useRealTimers());

const tenant = (slug: string, status = 'ACTIVE') => ({ id: slug, slug, status }) as Tenant;

function create(tenants: Tenant[], run: (slug: string) => Promise<TaskResult>, underLoad = () => false) {
  const runs: string[] = [];
  const task = new PerTenantTask({
    name: 'test',
    registry: { list: () => tenants },
    logger: createLogger('silent'),
    runForTenant: (t) => {
      runs.push(t.slug);
      return run(t.slug);
    },
    busyMs: 3_600_000,
    idleMs: 3_600_000,
    concurrency: 2,
    underLoad,
  });
  return { task, runs };
}

test('runs for each woken tenant that has a schema, then only for those that are woken again or due', async () => {
  const tenants = [tenant('a'), tenant('b', 'SUSPENDED'), tenant('c', 'PROVISIONING'), tenant('d', 'DELETING')];
  const { task, runs } = create(tenants, async () => 'none');
  const wakeAll = () => tenants.forEach(({ slug }) => void task.wake(slug));
  wakeAll();
  await task.runOnce();
  expect(runs.sort()).toEqual(['a', 'b']);
  await task.runOnce();
  expect(runs).toHaveLength(2);
  task.wake('b');
  await task.runOnce();
  expect(runs.slice(2)).toEqual(['b']);
  wakeAll();
  await task.runOnce();
  expect(runs).toHaveLength(5);
});

test('a failure for one tenant does not keep the task from running for others', async () => {
  const { task, runs } = create([tenant('bad'), tenant('good')], async (slug) => {
    if (slug === 'bad') throw new Error('no');
    return 'some';
  });
  for (let i = 0; i < 2; i++) {
    task.wake('bad');
    task.wake('good');
    await task.runOnce();
  }
  expect(runs.filter((slug) => slug === 'good')).toHaveLength(2);
});

test('runs again at once where there is more, and stop awaits the run in progress', async () => {
  let left = 5;
  const { task, runs } = create([tenant('a')], async () => (--left > 0 ? 'more' : 'none'));
  await task.start();
  task.runNow('a');
  await eventually(() => expect(runs).toHaveLength(5));
  await task.stop();
  task.runNow('a');
  expect(runs).toHaveLength(5);
});

test('an idle tenant is left out until it is woken, and is run again while there is more', async () => {
  let result: TaskResult = 'idle';
  const { task, runs } = create([tenant('a'), tenant('b')], async () => result);
  await task.runOnce();
  expect(runs).toEqual([]);
  task.wake('b');
  await task.runOnce();
  await task.runOnce();
  expect(runs).toEqual(['b']);
  result = 'more';
  task.wake('a');
  await task.runOnce();
  result = 'idle';
  await task.runOnce();
  await task.runOnce();
  expect(runs).toEqual(['b', 'a', 'a']);
});

test('a run is given whether its tenant was woken, and the last run ends before its parts are stopped', async () => {
  const seen: string[] = [];
  const task = new PerTenantTask({
    name: 'test',
    registry: { list: () => [tenant('a')] },
    logger: createLogger('silent'),
    runForTenant: async (_tenant, { woken }) => {
      seen.push(`woken: ${woken}`);
      return seen.length < 2 ? 'more' : 'idle';
    },
    busyMs: 3_600_000,
    idleMs: 3_600_000,
    concurrency: 1,
    onStop: async () => void seen.push('stopped'),
  });
  await task.start();
  task.runNow('a');
  await eventually(() => expect(seen).toHaveLength(2));
  await task.stop();
  expect(seen).toEqual(['woken: true', 'woken: false', 'stopped']);
});

/** Runs at every tenth of a second of a clock that only this function moves. */
async function runFor(task: PerTenantTask, seconds: number): Promise<void> {
  for (let tenth = 0; tenth < seconds * 10; tenth++) {
    task.wake('a');
    await task.runOnce();
    vi.advanceTimersByTime(100);
  }
}

test('under load a task pauses between its runs, and less so the further it is behind', async () => {
  vi.useFakeTimers({ toFake: ['performance'] });
  let result: TaskResult = 'more';
  let isUnderLoad = true;
  const { task, runs } = create(
    [tenant('a')],
    async () => result,
    () => isUnderLoad,
  );
  const runsWithin = async (seconds: number) => {
    const before = runs.length;
    await runFor(task, seconds);
    return runs.length - before;
  };
  const first = await runsWithin(10);
  expect(first).toBeGreaterThanOrEqual(1);
  expect(first).toBeLessThanOrEqual(3);
  expect(await runsWithin(30)).toBeGreaterThan(3 * first);
  // As far behind as it may be: no more rests.
  expect(await runsWithin(10)).toBeGreaterThanOrEqual(99);
  result = 'some';
  await runsWithin(1);
  expect(await runsWithin(10)).toBeLessThanOrEqual(3);
  isUnderLoad = false;
  await runsWithin(10);
  expect(await runsWithin(10)).toBeGreaterThanOrEqual(99);
});

test('a daemon that finds another at work checks less and less often', async () => {
  vi.useFakeTimers({ toFake: ['performance'] });
  let result: TaskResult = 'busy';
  const runs: string[] = [];
  const task = new PerTenantTask({
    name: 'test',
    registry: { list: () => [tenant('a')] },
    logger: createLogger('silent'),
    runForTenant: async ({ slug }) => {
      runs.push(slug);
      return result;
    },
    busyMs: 1000,
    idleMs: 60_000,
    concurrency: 1,
  });
  await runFor(task, 60);
  expect(runs.length).toBeGreaterThanOrEqual(60 / 5);
  expect(runs.length).toBeLessThanOrEqual(60 / 3);
  result = 'some';
  const before = runs.length;
  await runFor(task, 15);
  expect(runs.length - before).toBeGreaterThan(90);
});
