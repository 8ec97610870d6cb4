// Lists and alternatives multiply: the work of checking an answer is counted before it is done.
import { expect, test } from 'vitest';
import { countComparisons, countSchemas } from '../../../../server/jobs/questions/answer-cost.ts';
import { checkAnswer, checkQuestion } from '../../../../server/jobs/questions/answer-schema.ts';
import { questionRequest } from '../../../../server/jobs/questions/question-request.ts';

const many = 1_000_000;
const fields = (count: number) => Object.fromEntries(Array.from({ length: count }, (_, n) => [`f${n}`, {}]));
const listOf = (items: object) => ({ type: 'object', properties: { list: { type: 'array', items } } });
const alternatives = (count: number) => ({ anyOf: Array.from({ length: count }, (_, n) => ({ const: n })) });
const texts = (count: number) => ({ enum: Array.from({ length: count }, (_, n) => `option ${n}`) });
const nested = (levels: number): object => {
  if (levels === 0) return {};
  return { oneOf: [{ properties: { a: nested(levels - 1) } }, { properties: { a: nested(levels - 1) } }] };
};

test.each([
  ['a field each', { properties: fields(50) }, {}, 51],
  ['alternatives for each item', listOf(alternatives(100)), { list: Array(30).fill('x') }, 2 + 30 * 101],
  ['fields that every item lacks', listOf({ properties: fields(100) }), { list: Array(30).fill({}) }, 2 + 30 * 101],
  ['items in their order', { prefixItems: [alternatives(9), {}] }, [1, 2], 12],
  ['other fields', { additionalProperties: alternatives(9) }, { a: 1, b: 2 }, 21],
  ['names', { propertyNames: alternatives(9) }, { a: 1 }, 11],
  ['numbers to choose from', { enum: [1, 2, 3] }, 1, 4],
  ['texts to choose from', texts(100), 'option 7', 1],
  ['none of these texts', texts(100), 'x', 101],
  ['alternatives within alternatives', nested(3), { a: { a: { a: 1 } } }, 29],
  ['what has no schema', { type: 'object' }, { list: Array(1000).fill({ a: 1 }) }, 1],
])('comparisons: %s', (_what, schema, value, count) => {
  expect(countComparisons(schema, value, many)).toBe(count);
  expect(countComparisons(schema, value, count - 1)).toBe(count);
});

test('an answer with too many comparisons is refused before it is checked', () => {
  const schema = listOf(alternatives(100));
  const check = (items: number) => () =>
    checkAnswer({ schema, actions: [] }, { answer: { list: Array(items).fill(7) } });
  expect(check(70)).not.toThrow();
  expect(check(80)).toThrow('too many values');
});

test('a question of a remote worker has a schema of at most 500 parts', () => {
  const ask = (schema: object, trusted = false) =>
    checkQuestion(questionRequest.parse({ title: 'Which?', schema }), { trusted });
  const properties = (count: number) => ({ type: 'object', properties: fields(count) });
  expect(countSchemas({ a: [{}, { enum: [1, 2] }] }, many)).toBe(5);
  expect(() => ask(properties(400))).not.toThrow();
  expect(() => ask(properties(600))).toThrow('at most 500');
  expect(() => ask(properties(600), true)).not.toThrow();
});
