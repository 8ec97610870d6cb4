// Errors in an answer, in the words of the person who filled in the form.
import { expect, test } from 'vitest';
import { z } from 'zod';
import { checkAnswer, toAnswerSchema } from '../../../../server/jobs/questions/answer-schema.ts';
import type { Problem } from '../../../../server/kernel/errors.ts';

const schema = toAnswerSchema(
  z.object({
    approve: z.boolean(),
    plan: z.enum(['small', 'large']),
    weight: z.number().min(1).max(100),
    seats: z.int(),
    note: z.string().min(2).max(5),
    mail: z.email(),
  }),
);
const good = { approve: true, plan: 'small', weight: 5, seats: 3, note: 'fine', mail: 'ann@example.com' };

function errorsOf(answer: Record<string, unknown>): Record<string, string> {
  try {
    checkAnswer({ schema, actions: [] }, { answer });
  } catch (error) {
    const errors = (error as Problem).extra.errors as { field: string; message: string }[];
    return Object.fromEntries(errors.map(({ field, message }) => [field, message]));
  }
  return {};
}

test.each([
  [{ approve: 'maybe' }, { 'answer.approve': 'must be yes or no' }],
  [{ approve: undefined }, { 'answer.approve': 'is required' }],
  [{ plan: 'huge' }, { 'answer.plan': 'must be one of: small, large' }],
  [{ weight: 500 }, { 'answer.weight': 'must be at most 100' }],
  [{ weight: 0 }, { 'answer.weight': 'must be at least 1' }],
  [{ weight: 'x' }, { 'answer.weight': 'must be a number' }],
  [{ seats: 1.5 }, { 'answer.seats': 'must be a whole number' }],
  [{ note: 'too long' }, { 'answer.note': 'must have at most 5 characters' }],
  [{ mail: 'ann' }, { 'answer.mail': 'must be an email address' }],
  [{ other: 1 }, { 'answer.other': 'is not a known field' }],
])('%j', (change, errors) => {
  expect(errorsOf({ ...good, ...change })).toEqual(errors);
});

test('an answer that fits has none', () => {
  expect(errorsOf(good)).toEqual({});
});
