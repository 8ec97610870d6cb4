// Every kind of property has a field that a person without JSON can fill in, and what is entered becomes an answer that
// the schema accepts.
import { expect, test } from 'vitest';
import { z } from 'zod';
import { formFields } from '../../../server/forms/answer-fields.ts';
import { answerOf, type Entered } from '../../../server/forms/entered-answer.ts';
import { checkAnswer, toAnswerSchema } from '../../../server/jobs/questions/answer-schema.ts';

function fieldOf(type: z.ZodType) {
  const [field] = formFields({ schema: toAnswerSchema(z.object({ value: type })), actions: [] });
  return field!;
}

function answer(type: z.ZodObject, entered: Entered) {
  const schema = toAnswerSchema(type);
  const made = answerOf(formFields({ schema, actions: [] }), entered);
  return checkAnswer({ schema, actions: [] }, { answer: made }).answer;
}

const address = z.object({ street: z.string(), zip: z.string().optional(), lift: z.boolean().optional() });

test.each<[string, z.ZodType, object, string | string[], unknown]>([
  ['a boolean', z.boolean(), { kind: 'yesNo', required: true }, 'false', false],
  ['an optional boolean', z.boolean().optional(), { kind: 'checkbox', required: false }, 'true', true],
  ['a boolean that is not checked', z.boolean().optional(), { kind: 'checkbox' }, [], false],
  ['a nullable boolean', z.boolean().nullable(), { kind: 'yesNo', required: false }, '', null],
  ['a long text', z.string(), { kind: 'longText', required: true }, 'a\r\nb', 'a\nb'],
  ['a short text', z.string().max(200), { kind: 'text', maxLength: 200 }, 'a', 'a'],
  ['a text of a form', z.string().regex(/^a+$/), { kind: 'text' }, 'aa', 'aa'],
  ['a nullable text', z.string().max(9).nullable(), { kind: 'text', required: false }, '', null],
  ['a nullable text that is given', z.string().nullable(), { kind: 'longText' }, 'null', 'null'],
  ['an identifier', z.uuid(), { kind: 'text' }, '0199f3c2-8a51-7c1e-9d7e-3f0a5b1c2d3e', expect.any(String)],
  ['an email address', z.email(), { kind: 'email' }, 'a@b.example', 'a@b.example'],
  ['a web address', z.url(), { kind: 'url' }, 'https://a.example', 'https://a.example'],
  ['a date', z.iso.date(), { kind: 'date' }, '2027-03-04', '2027-03-04'],
  ['a time', z.iso.datetime(), { kind: 'dateTime' }, '2027-03-04T05:06', '2027-03-04T05:06:00Z'],
  [
    'a time with a zone',
    z.iso.datetime({ offset: true }),
    {},
    '2027-03-04T05:06:07+01:00',
    '2027-03-04T05:06:07+01:00',
  ],
  ['a number', z.number().min(1).max(5), { kind: 'number', min: 1, max: 5, step: 'any' }, '2.5', 2.5],
  ['a whole number', z.int(), { kind: 'number', step: '1' }, '-3', -3],
  ['a nullable number', z.number().nullable(), { kind: 'number', required: false }, '', null],
  ['a choice', z.enum(['a', 'b']), { kind: 'choice', options: ['a', 'b'], initial: '' }, 'b', 'b'],
  ['a nullable choice', z.enum(['a', 'b']).nullable(), { kind: 'choice', required: false }, '', null],
  ['a choice of numbers', z.literal([1, 2]), { kind: 'choice', options: ['1', '2'] }, '2', 2],
  ['a union of literals', z.union([z.literal('a'), z.literal(2)]), { options: ['a', '2'] }, '2', 2],
  ['a literal', z.literal('yes'), { kind: 'choice', options: ['yes'] }, 'yes', 'yes'],
  ['several choices', z.array(z.enum(['a', 'b'])), { kind: 'choices', options: ['a', 'b'] }, ['a', 'b'], ['a', 'b']],
  ['no choice of a list', z.array(z.enum(['a', 'b'])), { kind: 'choices', required: false }, [], []],
  ['several numbers', z.array(z.literal([1, 2])), { kind: 'choices', options: ['1', '2'] }, ['2'], [2]],
  ['a list of texts', z.array(z.string()), { kind: 'lines' }, 'a, b\r\n\r\nc\r\n', ['a, b', 'c']],
  ['an empty list', z.array(z.string()), { kind: 'lines', required: false }, ' ', []],
  ['a list that empties its default', z.array(z.string()).default(['a']), { initial: 'a' }, '', []],
  ['a list of objects', z.array(z.object({ n: z.int() })), { kind: 'json' }, '[{"n": 1}]', [{ n: 1 }]],
  ['a record', z.record(z.string(), z.int()), { kind: 'json' }, '{"a": 1}', { a: 1 }],
])('%s', (_, type, field, entered, value) => {
  expect(fieldOf(type)).toMatchObject(field);
  expect(answer(z.object({ value: type }), { value: entered })).toEqual({ value });
});

test('the fields of an object are fields of the form', () => {
  const fields = formFields({ schema: toAnswerSchema(z.object({ shipTo: address })), actions: [] });
  expect(fields.map(({ name, label, required }) => [name, label, required])).toEqual([
    ['shipTo.street', 'Ship to: Street', true],
    ['shipTo.zip', 'Ship to: Zip', false],
    ['shipTo.lift', 'Ship to: Lift', false],
  ]);
  const entered = { 'shipTo.street': 'A 1', 'shipTo.lift': 'true' };
  expect(answer(z.object({ shipTo: address }), entered)).toEqual({ shipTo: { street: 'A 1', lift: true } });
});

test('an optional object of which nothing is entered is left out; a nullable one is null', () => {
  const nothing = { 'shipTo.street': '', 'shipTo.zip': '' };
  expect(answer(z.object({ shipTo: address.optional() }), nothing)).toEqual({});
  expect(answer(z.object({ shipTo: address.nullable() }), nothing)).toEqual({ shipTo: null });
  expect(() => answer(z.object({ shipTo: address }), nothing)).toThrow('answer.shipTo.street: is required');
  const zip = { 'shipTo.zip': '1' };
  expect(() => answer(z.object({ shipTo: address.optional() }), zip)).toThrow('answer.shipTo.street: is required');
});

test('fields that are left empty are left out', () => {
  const all = z.object({
    text: z.string().optional(),
    number: z.number().optional(),
    day: z.iso.date().optional(),
    choice: z.enum(['a']).optional(),
    choices: z.array(z.enum(['a'])).optional(),
    lines: z.array(z.string()).optional(),
    json: z.record(z.string(), z.int()).optional(),
  });
  const empty = Object.fromEntries(Object.keys(all.shape).map((name) => [name, '']));
  expect(answer(all, { ...empty, choices: undefined })).toEqual({});
});

test('what cannot be read stays as entered, and is refused by its name', () => {
  const all = z.object({ n: z.number(), at: z.iso.datetime(), list: z.array(z.object({})) });
  expect(() => answer(all, { n: 'many', at: 'soon', list: '[' })).toThrow(
    /answer\.n: must be a number.*answer\.at: must be a time.*answer\.list: must be a list/,
  );
});

test('a missing value of several kinds is required, another does not fit', () => {
  const either = z.object({ value: z.union([z.string(), z.array(z.int())]) });
  expect(() => answer(either, {})).toThrow('answer.value: is required');
  expect(() => answer(either, { value: '{"a": 1}' })).toThrow('answer.value: has a value that does not fit');
});
