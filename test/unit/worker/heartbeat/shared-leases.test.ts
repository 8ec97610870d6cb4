// The memory in which the main thread lists its leases for the heartbeat thread.
import { expect, test } from 'vitest';
import { newId } from '../../../../server/kernel/ids.ts';
import { hasLeases, readLeases, SharedLeases } from '../../../../server/worker/heartbeat/shared-leases.ts';

function read(leases: SharedLeases): Record<string, string[]> {
  return Object.fromEntries([...readLeases(leases.buffer)].map(([tenant, ids]) => [tenant, ids.toSorted()]));
}

test('what was added and not removed is read, by tenant', () => {
  const leases = new SharedLeases();
  const [first, second, third] = [
    newId(),
    'ffffffff-ffff-4fff-bfff-ffffffffffff',
    '00000000-0000-4000-8000-00000000000a',
  ];
  expect(hasLeases(leases.buffer)).toBe(false);
  leases.add(first, 1);
  leases.add(second, 2);
  leases.add(third, 2);
  expect(read(leases)).toEqual({ 1: [first], 2: [third, second] });
  leases.remove(first);
  leases.remove(third);
  leases.remove(third);
  expect(read(leases)).toEqual({ 2: [second] });
  expect(hasLeases(leases.buffer)).toBe(true);
  leases.remove(second);
  expect(hasLeases(leases.buffer)).toBe(false);
});

test('a lease that is added again is read once', () => {
  const leases = new SharedLeases();
  const id = newId();
  leases.add(id, 1);
  leases.add(id, 1);
  expect(read(leases)).toEqual({ 1: [id] });
  leases.remove(id);
  expect(hasLeases(leases.buffer)).toBe(false);
});

test('more leases than fit move to a larger buffer, and freed places are used again', () => {
  const leases = new SharedLeases();
  const before = leases.buffer;
  const ids = Array.from({ length: 1000 }, () => newId());
  const moves = ids.filter((id) => leases.add(id, 7));
  expect(moves.length).toBeGreaterThan(0);
  expect(leases.buffer).not.toBe(before);
  expect(read(leases)).toEqual({ 7: ids.toSorted() });
  for (const id of ids.slice(10)) leases.remove(id);
  const later = Array.from({ length: 990 }, () => newId());
  expect(later.filter((id) => leases.add(id, 8))).toEqual([]);
  expect(read(leases)).toEqual({ 7: ids.slice(0, 10).toSorted(), 8: later.toSorted() });
});
