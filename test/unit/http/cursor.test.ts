import { expect, it } from 'vitest';
import { decodeCursor, encodeCursor } from '../../../server/http/cursor.ts';

it('gives back what it was made of, for its own list only', () => {
  const cursor = encodeCursor('jobs:tenant-1', ['2026-01-02T03:04:05.123456Z', 'id']);
  expect(decodeCursor('jobs:tenant-1', cursor, 2)).toEqual(['2026-01-02T03:04:05.123456Z', 'id']);
  expect(() => decodeCursor('jobs:tenant-2', cursor, 2)).toThrow('does not belong');
  expect(() => decodeCursor('jobs:tenant-1', cursor, 1)).toThrow('does not belong');
  expect(() => decodeCursor('jobs:tenant-1', 'nonsense', 2)).toThrow('does not belong');
});
