import { expect, test } from 'vitest';
import { z } from 'zod';
import { formFields } from '../../../../server/forms/answer-fields.ts';
import { checkAnswer, checkQuestion, toAnswerSchema } from '../../../../server/jobs/questions/answer-schema.ts';
import { runHandler } from '../../../../server/testing/index.ts';
import { defineJob } from '../../../../server/worker/handlers/define-job.ts';

// Names that every object has. A schema and an answer must not take those for fields.
const fields = z.object({ constructor: z.string().optional(), toString: z.string().optional(), note: z.string() });
const schema = toAnswerSchema(fields);
const approve = { name: 'approve', answer: { note: 'fine' } };

test('fields with the names of object members may be left out, given, and set by an action', () => {
  expect(checkAnswer({ schema, actions: [] }, { answer: { note: 'a' } }).answer).toEqual({ note: 'a' });
  const answer = { constructor: 'b', note: 'a' };
  expect(checkAnswer({ schema, actions: [] }, { answer }).answer).toEqual(answer);
  const names = formFields({ schema, actions: [approve] }).map(({ name }) => name);
  expect(names).toEqual(['constructor', 'toString']);
});

test('an action cannot set a field that only objects have', () => {
  const question = { title: 'Which?', assignees: [], reminders: [], on_timeout: 'fail' as const };
  const wrong = { name: 'approve', answer: { valueOf: 'x', note: 'fine' } };
  expect(() => checkQuestion({ ...question, schema, actions: [wrong] }, { trusted: true })).toThrow(
    'is not in the schema',
  );
});

test('the schema of the handler accepts the answer too', async () => {
  const job = defineJob({ type: 'asks', run: ({ ask }) => ask({ title: 'Which?', schema: fields }) });
  const ran = await runHandler(job, { answers: { 'Which?': { note: 'a' } } });
  expect(ran).toMatchObject({ status: 'completed', result: { note: 'a' } });
});
