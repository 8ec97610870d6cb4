// Ids in binary: what Postgres reads is what was written, and nothing that is no uuid gets that far. Large JSON of rows is
// parsed in separate turns.
import { v4 as uuidv4, v7 as uuidv7 } from 'uuid';
import { expect, test } from 'vitest';
import { encodeUuids, JsonValues } from '../../../../server/database/connections/value-formats.ts';
import { useDatabase } from '../../../support/postgres/database.ts';

const context = useDatabase();

async function throughPostgres(ids: readonly string[]): Promise<unknown> {
  const rows = await context.db.query('select $1::uuid[] as ids, coalesce(array_length($1::uuid[], 1), 0) as length', [
    encodeUuids(ids),
  ]);
  return rows[0];
}

test('uuids reach Postgres unchanged and in order', async () => {
  const edges = ['00000000-0000-0000-0000-000000000000', 'ffffffff-ffff-ffff-ffff-ffffffffffff'];
  const ids = [...edges, ...Array.from({ length: 500 }, () => uuidv7()), uuidv4()];
  expect(await throughPostgres(ids)).toEqual({ ids, length: ids.length });
  expect(await throughPostgres([ids[7]!])).toEqual({ ids: [ids[7]], length: 1 });
});

test('an empty list is an empty array, not null', async () => {
  expect(await throughPostgres([])).toEqual({ ids: [], length: 0 });
});

test('uuids may be in upper case, and may be repeated', async () => {
  const id = uuidv7();
  expect(await throughPostgres([id.toUpperCase(), id])).toEqual({ ids: [id, id], length: 2 });
});

test.each([
  ['nothing', ''],
  ['a word', 'not-a-uuid'],
  ['a letter that is no digit', '0190f5e0-0000-7000-8000-00000000000g'],
  ['one digit less', '0190f5e0-0000-7000-8000-00000000000'],
  ['one digit more', '0190f5e0-0000-7000-8000-0000000000000'],
  ['two digits more', '0190f5e0-0000-7000-8000-00000000000000'],
])('%s is not a uuid, at any position', (_what, wrong) => {
  const right = uuidv7();
  for (const ids of [[wrong], [wrong, right], [right, wrong]]) {
    expect(() => encodeUuids(ids)).toThrow(new TypeError(`not a uuid: ${wrong}`));
  }
});

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
