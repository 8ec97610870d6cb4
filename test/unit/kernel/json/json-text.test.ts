import fc from 'fast-check';
import { expect, test } from 'vitest';
import { JsonText, writeJson } from '../../../../server/kernel/json/json-text.ts';

test('writeJson writes a text unchanged, in its position', () => {
  const text = new JsonText('{"b": 1.0, "a": [ ]}');
  expect(writeJson(text)).toBe('{"b": 1.0, "a": [ ]}');
  expect(writeJson([text, { payload: text, last: 'x' }])).toBe(
    '[{"b": 1.0, "a": [ ]},{"payload":{"b": 1.0, "a": [ ]},"last":"x"}]',
  );
});

test('elsewhere a text behaves like its value', () => {
  expect(JSON.stringify({ payload: new JsonText('{"b": 1.0}') })).toBe('{"payload":{"b":1}}');
});

test('a nested writeJson keeps its texts apart from those of the outer one', () => {
  const inner = { toJSON: () => writeJson({ deep: new JsonText('[1]') }) };
  expect(writeJson({ first: new JsonText('1'), inner, last: new JsonText('2') })).toBe(
    '{"first":1,"inner":"{\\"deep\\":[1]}","last":2}',
  );
});

test('a writeJson that fails has no effect on the next one', () => {
  const bad = {
    toJSON: () => {
      throw new Error('no');
    },
  };
  expect(() => writeJson([new JsonText('1'), bad])).toThrow('no');
  expect(JSON.stringify(new JsonText('[ 1 ]'))).toBe('[1]');
});

test('for any value the result equals that of JSON.stringify', () => {
  fc.assert(
    fc.property(fc.dictionary(fc.string(), fc.jsonValue()), fc.jsonValue(), (around, value) => {
      const text = JSON.stringify(value);
      const expected = JSON.stringify({ ...around, one: value, two: [value] });
      expect(writeJson({ ...around, one: new JsonText(text), two: [new JsonText(text)] })).toBe(expected);
    }),
  );
});
