import { expect, it } from 'vitest';
import { Cursor, encodeCursor } from '../../../../server/http/request/paging.ts';

const id = '0199c0de-0000-7000-8000-000000000001';
const at = '2026-01-02T03:04:05.123456Z';

it('returns its position, for its own list only', () => {
  const cursor = new Cursor(encodeCursor('keys:tenant-1', [at, id]));
  expect(cursor.position('keys:tenant-1', ['time', 'uuid'])).toEqual([at, id]);
  expect(() => cursor.position('keys:tenant-2', ['time', 'uuid'])).toThrow('does not belong');
  expect(() => cursor.position('keys:tenant-1', ['time'])).toThrow('does not belong');
  expect(() => new Cursor('nonsense').position('keys:tenant-1', ['time', 'uuid'])).toThrow('does not belong');
});

it.each([
  ['uuid', 'nonsense'],
  ['uuid', `${id}0`],
  ['integer', '-1'],
  ['integer', '9'.repeat(19)],
  ['integer', '1e3'],
  ['text', 'a\u0000b'],
  ['text', '\ud800'],
  ['time', '2026-13-01T00:00:00Z'],
  ['time', 'infinity'],
  ['time', '0000-01-01T00:00:00.000000Z'],
  ['time', '2026-02-30T00:00:00.000000Z'],
  ['time', '2026-01-01T24:00:00.000000Z'],
  ['time', '2026-01-01T00:00:60.000000Z'],
  ['time', '2026-01-01T00:00:00.000000+16:00'],
  ['time', '+010000-01-01T00:00:00.000000Z'],
] as const)('refuses a part that is not a %s: %j', (form, part) => {
  const cursor = new Cursor(encodeCursor('list', [part]));
  expect(() => cursor.position('list', [form])).toThrow('does not belong');
});
