// Turns at the database: nobody takes them all, and who has none comes first.
import { expect, onTestFinished, test } from 'vitest';
import { type Leave, Turns } from '../../../../server/http/request/turns.ts';

// Ten connections: two for the daemon itself, eight turns, of which the last two are for those that have none.
function create(given: { tenants?: number; connections?: number; waitMs?: number } = {}): Turns {
  const { tenants = 10, connections = 10, waitMs = 60_000 } = given;
  return new Turns({ connections, tenantShare: 0.5, tenants: () => tenants, waitMs });
}

/** Notes in which order turns begin. */
function taker(turns: Turns) {
  const begun: string[] = [];
  const leaves: Leave[] = [];
  const take = (tenant: string) => {
    const turn = turns.take(tenant);
    const began = (leave: Leave) => {
      begun.push(tenant);
      leaves.push(leave);
    };
    if (typeof turn === 'function') began(turn);
    else void turn.then(began);
  };
  onTestFinished(async () => {
    for (let leave = leaves.pop(); leave !== undefined; leave = leaves.pop()) {
      leave();
      await finished();
    }
    expect(turns.used).toBe(0);
  });
  return { begun, leaves, take };
}

const finished = () => new Promise((resolve) => setImmediate(resolve));

test('a tenant has half of the turns, and the last ones are for tenants that have none', async () => {
  const turns = create();
  const { begun, leaves, take } = taker(turns);
  for (let i = 0; i < 25; i++) take('a');
  expect(begun).toHaveLength(4);
  for (let i = 0; i < 5; i++) take('b');
  expect(begun.slice(4)).toEqual(['b', 'b']);
  take('c');
  take('d');
  take('e');
  expect(begun.slice(6)).toEqual(['c', 'd']);
  // A turn that ends goes to who has none, then to who has least.
  leaves[0]!();
  await finished();
  expect(begun.slice(8)).toEqual(['e']);
  for (const leave of leaves.splice(6)) leave();
  await finished();
  expect(begun.slice(9)).toEqual(['b']);
  expect(turns.used).toBe(6);
});

test('all requests are served, each tenant in order, and every turn is returned', async () => {
  const turns = create();
  const order: string[] = [];
  const work = ['a', 'b', 'c'].flatMap((tenant) =>
    Array.from({ length: 50 }, (_, i) =>
      turns.within(tenant, async () => {
        order.push(`${tenant}${i}`);
        await finished();
      }),
    ),
  );
  await Promise.all(work);
  for (const tenant of ['a', 'b', 'c']) {
    const own = order.filter((name) => name.startsWith(tenant));
    expect(own).toEqual(Array.from({ length: 50 }, (_, i) => `${tenant}${i}`));
  }
  expect(turns.used).toBe(0);
});

test('a tenant alone has all turns but those for its renewals and for operators', () => {
  const { begun, take } = taker(create({ tenants: 1 }));
  for (let i = 0; i < 25; i++) take('a');
  expect(begun).toHaveLength(6);
  take('a renewals');
  expect(begun).toHaveLength(7);
});

test('a request that waits too long is refused: 429 if its tenant has too many, 503 if others have', async () => {
  const turns = create({ connections: 2, waitMs: 10 });
  const leave = await turns.take('a');
  await expect(turns.take('a')).rejects.toMatchObject({ code: 'TOO_MANY_REQUESTS', extra: { scope: 'tenant' } });
  await expect(turns.take('b')).rejects.toMatchObject({ code: 'OVERLOADED' });
  leave();
  leave();
  expect(turns.used).toBe(0);
  (await turns.take('b'))();
});

test('work that fails returns its turn', async () => {
  const turns = create();
  await expect(turns.within('a', () => Promise.reject(new Error('no')))).rejects.toThrow('no');
  expect(turns.used).toBe(0);
});
