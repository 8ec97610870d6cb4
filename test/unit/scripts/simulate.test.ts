import { expect, test } from 'vitest';
import { defaults, type Load, sizeOf } from '../../../scripts/simulate/cluster-size.ts';

const load: Load = {
  tenants: 100,
  jobsPerSecond: 1000,
  secondsPerJob: 1,
  topShare: 0.5,
  lanes: false,
  retentionDays: 1,
};

test('a thousand jobs a second need one Postgres, and daemons for the jobs that run at once', () => {
  expect(sizeOf(load)).toMatchObject({ step: 'one Postgres', nodes: 1, daemons: 5, topTenantFits: true });
  expect(sizeOf({ ...load, secondsPerJob: 60 }).daemons).toBe(300);
});

test('a billion jobs a day need a cluster or cells, and a tenant with half of them may be too large for its node', () => {
  const peak = { ...load, tenants: 10_000, jobsPerSecond: 35_000, secondsPerJob: 2, lanes: true, retentionDays: 30 };
  const answer = sizeOf(peak);
  expect(answer.step).toBe('cells');
  expect(answer.cells).toBeGreaterThanOrEqual(2);
  expect(answer.walBytesPerSecond).toBe(35_000 * 3_750);
  expect(answer.topTenantFits).toBe(false);
  expect(sizeOf({ ...peak, topShare: 0.01 }).topTenantFits).toBe(true);
});

test('more load never needs fewer nodes, and no resource of a node is planned beyond its limit', () => {
  let before = 0;
  for (const jobsPerSecond of [1, 100, 10_000, 20_000, 35_000, 100_000, 400_000]) {
    const { nodes, used } = sizeOf({ ...load, jobsPerSecond, secondsPerJob: 0.1 });
    expect(nodes).toBeGreaterThanOrEqual(before);
    for (const [resource, value] of Object.entries(used))
      expect([jobsPerSecond, resource, value <= 1]).toEqual([jobsPerSecond, resource, true]);
    before = nodes;
  }
});

test('each resource can be the limit', () => {
  const { node } = defaults;
  const limitOf = (given: Partial<Load>, changed: object = {}) =>
    sizeOf({ ...load, ...given }, { ...defaults, ...changed }).limit;
  expect(limitOf({ jobsPerSecond: 3_000, retentionDays: 0, secondsPerJob: 0 }, { node: { ...node, cores: 64 } })).toBe(
    'wal',
  );
  expect(limitOf({ jobsPerSecond: 3_000, retentionDays: 0, secondsPerJob: 0 })).toBe('cpu');
  expect(limitOf({ retentionDays: 3 })).toBe('disk');
  expect(limitOf({ secondsPerJob: 8, retentionDays: 0 })).toBe('connections');
  expect(limitOf({ tenants: 7000, jobsPerSecond: 10, retentionDays: 0 })).toBe('tenants');
});
