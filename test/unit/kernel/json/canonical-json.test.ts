import { expect, it } from 'vitest';
import { canonicalJson } from '../../../../server/kernel/json/json-text.ts';

// What earlier versions stored hashes of: a repeated request must still be known as the same.
function byReplacer(value: unknown): string {
  return JSON.stringify(value, (_, inner: unknown) => {
    if (typeof inner !== 'object' || inner === null || Array.isArray(inner)) return inner;
    return Object.fromEntries(Object.entries(inner).sort(([a], [b]) => (a < b ? -1 : 1)));
  });
}

it.each([
  { b: 1, a: { d: [{ z: 1, y: 2 }, null, 'x'], c: undefined } },
  { '10': 1, '9': 2, a: 3, '-1': 4, '01': 5, ä: 6, Z: 7 },
  { a: 1, b: { c: 2 } },
  [],
  'text',
  null,
  { list: [[{ b: 1, a: 2 }], [{}]] },
])('writes the same text as before: %j', (value) => {
  expect(canonicalJson(value)).toBe(byReplacer(value));
});

it('does not depend on the order of fields, and does not change the value', () => {
  const value = { b: { y: 1, x: 2 }, a: 3 };
  expect(canonicalJson(value)).toBe(canonicalJson({ a: 3, b: { x: 2, y: 1 } }));
  expect(Object.keys(value)).toEqual(['b', 'a']);
});
