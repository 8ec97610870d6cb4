import { expect, test } from 'vitest';
import { createLogger } from '../../../server/kernel/logger.ts';
import { PerTenantTask, type TaskResult } from '../../../server/tenants/per-tenant-task.ts';
import type { Tenant } from '../../../server/tenants/tenant.ts';
import { eventually } from '../../support/eventually.ts';

const tenant = (slug: string, status = 'ACTIVE') => ({ id: slug, slug, status }) as Tenant;

function create(tenants: Tenant[], visit: (slug: string) => Promise<TaskResult>, watched = false) {
  const visits: string[] = [];
  const rounds = new PerTenantTask({
    name: 'test',
    registry: { list: () => tenants },
    logger: createLogger('silent'),
    runForTenant: (t) => {
      visits.push(t.slug);
      return visit(t.slug);
    },
    busyMs: 3_600_000,
    idleMs: 3_600_000,
    concurrency: 2,
    watched,
  });
  return { rounds, visits };
}

test('visits each tenant that has a schema, then only those that are woken or due', async () => {
  const tenants = [tenant('a'), tenant('b', 'SUSPENDED'), tenant('c', 'PROVISIONING'), tenant('d', 'DELETING')];
  const { rounds, visits } = create(tenants, async () => 'none');
  await rounds.runOnce();
  expect(visits.sort()).toEqual(['a', 'b']);
  await rounds.runOnce();
  expect(visits).toHaveLength(2);
  rounds.wake('b');
  await rounds.runOnce();
  expect(visits.slice(2)).toEqual(['b']);
  await rounds.runOnce(true);
  expect(visits).toHaveLength(5);
});

test('one tenant that fails does not keep the others from their visit', async () => {
  const { rounds, visits } = create([tenant('bad'), tenant('good')], async (slug) => {
    if (slug === 'bad') throw new Error('no');
    return 'some';
  });
  await rounds.runOnce();
  await rounds.runOnce(true);
  expect(visits.filter((slug) => slug === 'good')).toHaveLength(2);
});

test('goes on at once where there is more, and stop awaits the visit under way', async () => {
  let left = 5;
  const { rounds, visits } = create([tenant('a')], async () => (--left > 0 ? 'more' : 'none'));
  await rounds.start();
  rounds.runNow();
  await eventually(() => expect(visits).toHaveLength(5));
  await rounds.stop();
  rounds.runNow();
  expect(visits).toHaveLength(5);
});

test('if somebody watches, only those who are woken are visited, and again while there is something to do', async () => {
  let result: TaskResult = 'rest';
  const { rounds, visits } = create([tenant('a'), tenant('b')], async () => result, true);
  await rounds.runOnce();
  expect(visits).toEqual([]);
  rounds.wake('b');
  await rounds.runOnce();
  await rounds.runOnce();
  expect(visits).toEqual(['b']);
  result = 'more';
  rounds.wake('a');
  await rounds.runOnce();
  result = 'rest';
  await rounds.runOnce();
  await rounds.runOnce();
  expect(visits).toEqual(['b', 'a', 'a']);
});
