// The slots of a daemon: nobody starves, nobody takes what others wait for, and asking costs nothing.
import { expect, test } from 'vitest';
import { Slots, type SlotWaiter } from '../../../../server/worker/loop/slots.ts';

/** A tenant that notes when it was notified to ask again. */
function tenant(key: string, notified: string[] = []): SlotWaiter {
  return { key, slotFree: { set: () => void notified.push(key) } };
}

test('a single tenant takes all slots, up to its own limit', () => {
  const slots = new Slots(10);
  expect(slots.take(tenant('a'), 4)).toBe(4);
  // The limit counts what it has already.
  expect(slots.take(tenant('a'), 4)).toBe(0);
  expect(slots.take(tenant('a'), 100)).toBe(6);
  expect([slots.used, slots.runningOf('a')]).toEqual([10, 10]);
});

test('while others wait no tenant takes more than its share', () => {
  const slots = new Slots(9);
  slots.wait(tenant('b'));
  slots.wait(tenant('c'));
  expect(slots.take(tenant('a'), 100)).toBe(3);
  expect(slots.take(tenant('b'), 100)).toBe(3);
  expect(slots.take(tenant('c'), 100)).toBe(3);
  expect(slots.used).toBe(9);
});

test('a share is rounded up, so that the last slot is taken too', () => {
  const slots = new Slots(1);
  slots.wait(tenant('b'));
  slots.wait(tenant('c'));
  expect(slots.take(tenant('a'), 100)).toBe(1);
});

test('a tenant that gets no slot waits, and a tenant that gets one stops waiting', () => {
  const slots = new Slots(2);
  expect(slots.take(tenant('a'), 2)).toBe(2);
  expect(slots.otherWaiters('a')).toBe(0);
  expect(slots.take(tenant('b'), 2)).toBe(0);
  expect(slots.otherWaiters('a')).toBe(1);
  slots.release('a', 1);
  expect(slots.take(tenant('b'), 2)).toBe(1);
  expect(slots.otherWaiters('a')).toBe(0);
});

test('a tenant does not compete with itself', () => {
  const slots = new Slots(2);
  slots.wait(tenant('a'));
  slots.wait(tenant('b'));
  slots.wait(tenant('b'));
  expect([slots.otherWaiters('a'), slots.otherWaiters('b'), slots.otherWaiters('c')]).toEqual([1, 1, 2]);
  slots.forget('b');
  expect([slots.otherWaiters('a'), slots.otherWaiters('b')]).toEqual([0, 1]);
});

test('a freed slot is offered to all waiting tenants, first to the one with the fewest running jobs', () => {
  const slots = new Slots(6);
  const notified: string[] = [];
  slots.take(tenant('busy'), 3);
  slots.take(tenant('calm'), 1);
  slots.take(tenant('rest'), 2);
  for (const key of ['busy', 'calm', 'idle']) expect(slots.take(tenant(key, notified), 100)).toBe(0);
  expect(notified).toEqual([]);
  slots.release('rest', 1);
  expect(notified).toEqual(['idle', 'calm', 'busy']);
  slots.forget('calm');
  slots.release('rest', 1);
  expect(notified.slice(3)).toEqual(['idle', 'busy']);
});

test('a tenant that got all its slots is not notified', () => {
  const slots = new Slots(2);
  const notified: string[] = [];
  slots.take(tenant('a', notified), 1);
  slots.take(tenant('b', notified), 1);
  slots.release('a', 1);
  expect(notified).toEqual([]);
});

test('a release of no slots notifies no waiter', () => {
  const slots = new Slots(1);
  const notified: string[] = [];
  slots.take(tenant('a'), 1);
  slots.take(tenant('b', notified), 1);
  slots.release('a', 0);
  expect([notified, slots.used]).toEqual([[], 1]);
});

test('reading the number of free slots changes nothing', () => {
  const slots = new Slots(4);
  slots.take(tenant('a'), 2);
  slots.wait(tenant('b'));
  for (let n = 0; n < 3; n++) {
    expect(slots.freeFor('c', 100)).toBe(1);
    expect(slots.freeFor('b', 100)).toBe(2);
    expect(slots.freeFor('a', 2)).toBe(0);
  }
  expect([slots.used, slots.runningOf('a'), slots.runningOf('b'), slots.runningOf('c')]).toEqual([2, 2, 0, 0]);
  // Neither became a rival by asking, nor ceased to be one.
  expect([slots.otherWaiters('a'), slots.otherWaiters('b')]).toEqual([1, 0]);
});

test('a limit below the number of running jobs gives no slot and takes none back', () => {
  const slots = new Slots(4);
  slots.take(tenant('a'), 3);
  expect(slots.freeFor('a', 1)).toBe(0);
  expect(slots.take(tenant('a'), 1)).toBe(0);
  expect(slots.runningOf('a')).toBe(3);
});

test('released slots can be taken again', () => {
  const slots = new Slots(3);
  slots.take(tenant('a'), 3);
  slots.release('a', 2);
  expect([slots.used, slots.runningOf('a')]).toEqual([1, 1]);
  slots.release('a', 1);
  expect([slots.used, slots.runningOf('a')]).toEqual([0, 0]);
  expect(slots.take(tenant('b'), 100)).toBe(3);
});

test('the last slots are for tenants without running jobs, one for each', () => {
  const slots = new Slots(256, { reservedShare: 0.125 });
  slots.tenants = 100;
  expect(slots.take(tenant('a'), 200)).toBe(200);
  expect(slots.take(tenant('b'), 200)).toBe(24);
  expect([slots.take(tenant('a'), 256), slots.take(tenant('b'), 256)]).toEqual([0, 0]);
  // Two tenants with long jobs: 32 others still start one job each, at once, whatever they wait for in all.
  for (let i = 0; i < 32; i++) expect(slots.take(tenant(`other ${i}`), 200)).toBe(1);
  expect(slots.take(tenant('one too many'), 200)).toBe(0);
  expect(slots.used).toBe(256);
});

test('a tenant with running jobs does not use the reserve, and refills it first', () => {
  const slots = new Slots(16, { reservedShare: 0.125 });
  slots.tenants = 10;
  slots.take(tenant('a'), 14);
  expect(slots.take(tenant('b'), 100)).toBe(1);
  expect(slots.take(tenant('b'), 100)).toBe(0);
  slots.release('a', 1);
  expect([slots.freeFor('a', 100), slots.freeFor('b', 100), slots.freeFor('c', 100)]).toEqual([0, 0, 1]);
  slots.release('a', 1);
  expect([slots.freeFor('a', 100), slots.freeFor('b', 100), slots.freeFor('c', 100)]).toEqual([1, 1, 1]);
});

test('no slot is reserved for tenants that do not exist', () => {
  const slots = new Slots(16, { reservedShare: 0.5 });
  slots.tenants = 1;
  expect(slots.take(tenant('a'), 100)).toBe(16);
  slots.release('a', 16);
  slots.tenants = 3;
  expect(slots.take(tenant('a'), 100)).toBe(14);
  expect(slots.take(tenant('b'), 100)).toBe(1);
  // Of three tenants two run something: what is left is for the third.
  expect([slots.freeFor('a', 100), slots.freeFor('b', 100), slots.freeFor('c', 100)]).toEqual([0, 0, 1]);
});

test('a tenant that left has no reserved slot any more, and waiting tenants are notified', () => {
  const slots = new Slots(4, { reservedShare: 0.5 });
  const notified: string[] = [];
  slots.tenants = 2;
  const a = tenant('a', notified);
  expect(slots.take(a, 100)).toBe(3);
  expect(slots.take(a, 100)).toBe(0);
  slots.tenants = 1;
  expect(notified).toEqual(['a']);
  expect(slots.take(a, 100)).toBe(1);
});

test('the first job respects the limit of its tenant, and the only slot of a daemon is not reserved', () => {
  const slots = new Slots(4, { reservedShare: 0.5 });
  slots.tenants = 10;
  expect(slots.take(tenant('closed'), 0)).toBe(0);
  const single = new Slots(1, { reservedShare: 0.5 });
  single.tenants = 10;
  expect(single.take(tenant('a'), 100)).toBe(1);
});

test('a tenant without running jobs starts with its share of the unreserved slots, not with one job', () => {
  const slots = new Slots(20, { reservedShare: 0.1 });
  slots.tenants = 10;
  slots.wait(tenant('b'));
  expect(slots.take(tenant('a'), 100)).toBe(9);
  expect(slots.take(tenant('b'), 100)).toBe(9);
  expect(slots.freeFor('c', 100)).toBe(1);
});
