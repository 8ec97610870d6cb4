// /api/questions: questions of jobs to people, and the answers.
import { z } from 'zod';
import type { CommitSignals } from '../../jobs/commit-signals.ts';
import { unlessNever } from '../../jobs/model/waiting.ts';
import { answerQuestion, requireQuestion } from '../../jobs/questions/answer.ts';
import { type Question, questionStatuses } from '../../jobs/questions/question.ts';
import { questionAction } from '../../jobs/questions/question-request.ts';
import { listQuestions } from '../../jobs/questions/read-questions.ts';
import { problem } from '../../kernel/errors.ts';
import { isUuid, nameField } from '../../kernel/fields.ts';
import { paged, pageQuery, pageSchema } from '../request/paging.ts';
import { RouteGroup } from '../route.ts';
import { toApi } from '../to-api.ts';

export interface QuestionDependencies {
  signals: CommitSignals;
}

const time = z.iso.datetime({ offset: true });

const answerFields = z.record(z.string(), z.unknown());

export const questionSchema = z
  .strictObject({
    id: z.string(),
    job_id: z.string(),
    step: z
      .string()
      .describe('The durable call of the handler that waits for the answer; empty: a budget has stopped the job.'),
    target_id: z.string().nullable(),
    title: z.string(),
    context: z.unknown().describe('What a person needs to decide: text or any JSON.'),
    schema: z.record(z.string(), z.unknown()).describe('JSON Schema of the answer.'),
    actions: z.array(questionAction).describe('The buttons; if there are any, an answer names one of them.'),
    assignees: z.array(z.string()),
    status: z.enum(questionStatuses),
    asked_at: time,
    expires_at: time
      .nullable()
      .describe('When the wait is over. It stands still while the job is paused. Null: never, as when a budget asks.'),
    on_timeout: z
      .strictObject({ answer: answerFields, action: z.string().optional() })
      .nullable()
      .describe('The answer that counts when nobody answers; null: the call fails with QUESTION_EXPIRED.'),
    remind_at: z.array(time).describe('Reminders that are still to come.'),
    reminders: z.int().describe('Reminders that were sent.'),
    escalate_at: time.nullable(),
    escalate_to: z.array(z.string()).nullable(),
    escalated_at: time.nullable(),
    answer: answerFields.nullable(),
    action: z.string().nullable(),
    answered_by: z.string().nullable(),
    closed_at: time.nullable().describe('When it was answered, expired or canceled.'),
  })
  .meta({ id: 'Question' });

const answerBody = z.strictObject({
  answer: answerFields.default({}).describe('Fits the schema of the question, except for fields that the action sets.'),
  action: z.string().max(60).optional().describe('The name of one of the actions, if the question has any.'),
  author: nameField().optional().describe('The person who answers; by default the key.'),
});

const listQuery = z.strictObject({
  ...pageQuery(),
  status: z.enum(questionStatuses).optional(),
  assignee: nameField().optional(),
  job_id: z.string().max(100).optional(),
  target_id: z.string().max(200).optional(),
});

export const questionParams = z.strictObject({ id: z.string().max(100) });

export function questionRoutes({ signals }: QuestionDependencies): RouteGroup {
  const group = new RouteGroup('Questions');
  group.route({
    method: 'get',
    path: '/api/questions',
    summary: 'List questions, newest first',
    description:
      'A page may be short and still have a next one: its questions and answers have at most about half a megabyte.',
    access: 'read',
    query: listQuery,
    answers: { 200: pageSchema('questions', questionSchema) },
    problems: ['INVALID_CURSOR'],
    handle: async ({ tenant, db, query }) => {
      const filter = {
        status: query.status,
        assignee: query.assignee,
        jobId: query.job_id,
        targetId: query.target_id,
      };
      if (filter.jobId !== undefined && !isUuid(filter.jobId)) return { questions: [], next_cursor: null };
      const list = { name: `questions:${tenant.id}`, position: ['uuid'] } as const;
      const page = await paged(list, query, async ([before], limit) => {
        const { questions, next } = await listQuestions(db, tenant.schema, filter, { limit, before });
        return { rows: questions, next: next === undefined ? undefined : [next] };
      });
      return { questions: page.rows.map(questionToApi), next_cursor: page.next_cursor };
    },
  });
  group.route({
    method: 'get',
    path: '/api/questions/{id}',
    summary: 'Read a question',
    access: 'read',
    params: questionParams,
    answers: { 200: questionSchema },
    problems: ['NOT_FOUND'],
    handle: async ({ tenant, db, params }) =>
      questionToApi(await requireQuestion(db, tenant.schema, questionId(params))),
  });
  group.route({
    method: 'post',
    path: '/api/questions/{id}/answer',
    summary: 'Answer a question; its job continues',
    description:
      'Exactly one answer counts. A second one gets 409, with the first answer, who gave it and when. Fields that do not fit get 400.',
    access: 'control',
    params: questionParams,
    body: answerBody,
    answers: { 200: questionSchema },
    problems: ['NOT_FOUND', 'QUESTION_CLOSED', 'CONFLICT'],
    handle: async ({ tenant, db, params, body, actor }) => {
      const request = { questionId: questionId(params), ...body, actor };
      const question = await answerQuestion(db, tenant.schema, request);
      signals.jobsWritten(tenant);
      return questionToApi(question);
    },
  });
  return group;
}

export function questionId({ id }: { id: string }): string {
  if (!isUuid(id)) throw problem('NOT_FOUND', 'There is no such question.');
  return id;
}

export function questionToApi(question: Question): z.input<typeof questionSchema> {
  return toApi(questionSchema, { ...question, expiresAt: unlessNever(question.expiresAt) });
}
