// Ids in binary: what Postgres reads is what was written, and nothing that is no uuid gets that far.
import { v4 as uuidv4, v7 as uuidv7 } from 'uuid';
import { expect, test } from 'vitest';
import { encodeUuids } from '../../../../server/database/connections/value-formats.ts';
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
