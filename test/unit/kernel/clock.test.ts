import { expect, test } from 'vitest';
import { ownTurn } from '../../../server/kernel/clock.ts';

test('callers that are ready at once get a turn of the event loop each, in their order', async () => {
  let turn = 0;
  let counting = true;
  const count = () => {
    turn += 1;
    if (counting) setImmediate(count);
  };
  setImmediate(count);
  const order: string[] = [];
  const turns = await Promise.all(
    ['a', 'b', 'c'].map(async (name) => {
      await ownTurn();
      order.push(name);
      return turn;
    }),
  );
  counting = false;
  expect(order).toEqual(['a', 'b', 'c']);
  expect(new Set(turns).size).toBe(3);
});
