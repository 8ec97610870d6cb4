import { expect, test } from 'vitest';
import { z } from 'zod';
import { toApi } from '../../../server/http/to-api.ts';

const schema = z.strictObject({
  id: z.string(),
  job_id: z.string(),
  last_used_at: z.string().nullable(),
  state: z.enum(['on', 'off']),
  note: z.string().optional(),
});

test('keys come from the schema, values from the fields of the same name', () => {
  const value = { id: 'a', jobId: 'j', lastUsedAt: null, state: 'on' as const, secret: 'hidden' };
  expect(toApi(schema, value)).toEqual({ id: 'a', job_id: 'j', last_used_at: null, state: 'on', note: undefined });
});

test('a given value replaces the field', () => {
  const value = { id: 'a', jobId: 'j', lastUsedAt: 'then', state: 'broken' };
  expect(toApi(schema, value, { state: 'off', last_used_at: null })).toMatchObject({
    state: 'off',
    last_used_at: null,
  });
});

test('the compiler requires keys that the value does not have', () => {
  // @ts-expect-error `job_id` and `state` have no field.
  expect(toApi(schema, { id: 'a', lastUsedAt: null })).toMatchObject({ id: 'a', job_id: undefined });
});
