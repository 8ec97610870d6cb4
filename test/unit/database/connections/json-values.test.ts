import { expect, test } from 'vitest';
import { JsonValues } from '../../../../server/database/connections/json-values.ts';

const nextTurn = () => new Promise((resolve) => setImmediate(resolve));
const documentOf = (chars: number, n = 0) => ({ n, text: 'x'.repeat(chars) });

/** Completes the rows, and counts the turns of the event loop that pass meanwhile. */
async function completeInTurns<R extends object>(json: JsonValues, rows: R[]): Promise<{ rows: R[]; turns: number }> {
  let turns = 0;
  let isDone = false;
  const count = () => {
    turns += 1;
    if (!isDone) setImmediate(count);
  };
  setImmediate(count);
  const completed = await json.complete(rows);
  isDone = true;
  return { rows: completed, turns };
}

test('a small document is parsed as it arrives', () => {
  const json = new JsonValues();
  expect(json.parse('{"a":[1,"x",null]}')).toEqual({ a: [1, 'x', null] });
  expect(json.parse(JSON.stringify(documentOf(5000)))).toEqual(documentOf(5000));
  expect(json.isComplete).toBe(true);
});

test('a large document is parsed in a separate turn, and several in one turn each', async () => {
  const json = new JsonValues();
  const given = [0, 1, 2, 3].map((n) => ({ id: n, payload: documentOf(100_000, n), result: null, small: { n } }));
  const arrived = given.map((row) => ({ ...row, payload: json.parse(JSON.stringify(row.payload)) }));
  expect(json.isComplete).toBe(false);
  const { rows, turns } = await completeInTurns(json, arrived);
  expect(rows).toEqual(given);
  expect(turns).toBeGreaterThanOrEqual(4);
  expect(json.isComplete).toBe(true);
});

test('many documents of one turn are parsed in several turns', async () => {
  const json = new JsonValues();
  const given = Array.from({ length: 50 }, (_, n) => ({ payload: documentOf(10_000, n) }));
  const arrived = given.map(({ payload }) => ({ payload: json.parse(JSON.stringify(payload)) }));
  expect(json.isComplete).toBe(false);
  const { rows, turns } = await completeInTurns(json, arrived);
  expect(rows).toEqual(given);
  expect(turns).toBeGreaterThanOrEqual(6);
});

test('a small document next to a large one does not wait; the count restarts in the next turn', async () => {
  const json = new JsonValues();
  const medium = JSON.stringify(documentOf(60_000));
  json.parse(medium);
  expect(json.parse(JSON.stringify(documentOf(1000)))).toEqual(documentOf(1000));
  expect(json.isComplete).toBe(true);
  await nextTurn();
  expect(json.parse(medium)).toEqual(documentOf(60_000));
  expect(json.isComplete).toBe(true);
});
