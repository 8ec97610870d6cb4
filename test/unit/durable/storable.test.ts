import { expect, test } from 'vitest';
import { isLarge, toStorable, toStorableInTurns } from '../../../server/durable/storable.ts';

const store = (value: unknown) => toStorable(value, 1_000_000, 'The result');
const circular: Record<string, unknown> = {};
circular.self = { again: circular };
const deep = (levels: number) => {
  let value: unknown = 1;
  for (let n = 0; n < levels; n++) value = { value };
  return value;
};

test.each([
  ['plain values', { a: [1, 'x', null, true, { b: -0.5 }] }, { a: [1, 'x', null, true, { b: -0.5 }] }],
  [
    'a date',
    { at: new Date(0), in: [new Date(0)] },
    { at: '1970-01-01T00:00:00.000Z', in: ['1970-01-01T00:00:00.000Z'] },
  ],
  ['a property that is undefined', { a: undefined, b: 1 }, { b: 1 }],
  ['80 levels', deep(80), deep(80)],
  ['what toJSON of a prototype returns', Object.create({ toJSON: () => 'text' }), 'text'],
])('keeps %s', (_, value, stored) => {
  expect(store(value)).toEqual({ ok: true, value: stored });
});

test.each([
  ['a number that is none', { a: [Number.NaN] }, 'holds NaN at "0"'],
  ['a hole in a list', { a: new Array(2) }, 'holds undefined at [0]'],
  ['undefined in a list', [undefined], 'holds undefined at [0]'],
  ['a function', { a: () => 1 }, 'holds a function at "a"'],
  ['a bigint', { a: { b: 1n } }, 'holds a bigint at "b"'],
  ['a symbol', { a: Symbol('s') }, 'holds a symbol at "a"'],
  ['a Map', { a: new Map([[1, 2]]) }, 'holds a Map at "a"'],
  ['a Set within 60 levels', { a: new Set([deep(60)]) }, 'holds a Set at "a"'],
  ['an object that refers to itself', circular, 'refers to itself'],
  ['more than 100 levels', deep(101), 'is nested deeper than 100 levels'],
])('refuses %s', (_, value, reason) => {
  expect(store(value)).toMatchObject({
    ok: false,
    error: { code: 'RESULT_NOT_JSON', message: expect.stringContaining(reason) },
  });
});

test('a large value is detected by its size, without reading all of it, and also if reading fails', () => {
  expect(isLarge({ text: 'x'.repeat(100) })).toBe(false);
  expect(isLarge({ text: 'x'.repeat(100_000) })).toBe(true);
  expect(isLarge(Array.from({ length: 10_000 }, () => 1))).toBe(true);
  expect(isLarge(circular)).toBe(false);
  const unreadable = Object.defineProperty({}, 'a', {
    enumerable: true,
    get() {
      throw new Error('no');
    },
  });
  expect(isLarge(unreadable)).toBe(false);
});

test.each([[{ list: [1, 'two', null] }], ['x'.repeat(2_000_000)], ['\u0000'], [{ a: 1n }]])(
  'a value is stored or refused in the same way in one turn and in several',
  async (value) => {
    expect(await toStorableInTurns(value, 1_000_000, 'The result')).toEqual(store(value));
  },
);
