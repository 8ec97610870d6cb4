import { validate, version } from 'uuid';
import { expect, it } from 'vitest';
import { newId } from '../../../server/kernel/ids.ts';

it('gives distinct UUIDs of version 7 in ascending order', () => {
  const ids = Array.from({ length: 5000 }, newId);
  expect(ids.every((id) => validate(id) && version(id) === 7)).toBe(true);
  expect(new Set(ids).size).toBe(ids.length);
  expect(ids.toSorted()).toEqual(ids);
});
