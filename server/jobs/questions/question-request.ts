// A question that a handler or a remote worker asks. Imports nothing of the database, because handler threads load it.
import { z } from 'zod';
import { nameField } from '../../kernel/fields.ts';
import { maxSeconds } from '../../kernel/limits.ts';

/** A JSON Schema of type `object`. */
export type AnswerSchema = Record<string, unknown>;

/** A button of the form. */
export interface QuestionAction {
  name: string;
  /** The label of the button; by default the name. */
  label?: string | undefined;
  style?: 'primary' | 'danger' | undefined;
  /** Fields that the button sets. */
  answer?: Record<string, unknown> | undefined;
}

export interface GivenAnswer {
  answer: Record<string, unknown>;
  action?: string | undefined;
}

const seconds = z.number().min(1).max(maxSeconds);
const fields = z.record(z.string().max(200), z.unknown());
const people = z.array(nameField()).max(50);

export const questionAction = z.strictObject({
  name: nameField(60).describe('Identifies the action in the answer.'),
  label: nameField(60).optional().describe('On the button; by default the name.'),
  style: z.enum(['primary', 'danger']).optional(),
  answer: fields.optional().describe('Fields of the answer that the button sets; the form does not show them.'),
});

/** The question as a remote worker sends it. */
export const questionRequest = z.strictObject({
  title: z.string().trim().min(1).max(500).describe('The question, in one line.'),
  context: z
    .unknown()
    .optional()
    .describe('What a person needs to decide: text, or an object that is shown as a list.'),
  schema: z
    .record(z.string(), z.unknown())
    .optional()
    .describe(
      'JSON Schema of the answer, of type `object`; the form is made from it. Without it the actions are the answer.',
    ),
  actions: z.array(questionAction).max(10).default([]).describe('Buttons, e.g. Approve and Reject.'),
  assignees: people.default([]).describe('Who should answer. Anybody with the scope `control`, or a link, may.'),
  timeout_seconds: seconds.optional().describe('How long to wait; by default `QUESTION_TIMEOUT_SECONDS`.'),
  on_timeout: z
    .union([z.literal('fail'), z.strictObject({ answer: fields.default({}), action: z.string().max(60).optional() })], {
      error: "must be 'fail', or an object with answer, action or both",
    })
    .default('fail')
    .describe('When nobody answers in time: fail with QUESTION_EXPIRED, or continue with this answer.'),
  reminders: z
    .array(seconds)
    .max(20)
    .default([])
    .describe('Seconds after the question at which `question.reminded` is sent.'),
  escalate_to: z
    .strictObject({ assignees: people.min(1), after_seconds: seconds })
    .optional()
    .describe('Who is asked instead when nobody has answered by then.'),
});
export type QuestionInput = z.input<typeof questionRequest>;
export type QuestionRequest = z.output<typeof questionRequest>;

/** A question whose schema, actions and default answer are checked. */
export interface AskedQuestion extends QuestionRequest {
  schema: AnswerSchema;
}
