// A question to a person, as its row says.
import { columnList, columnsOf, type RowOf } from '../../database/drizzle.ts';
import { questions } from '../../database/tables/tenant-questions.ts';
import type { AnswerSchema, GivenAnswer, QuestionAction } from './question-request.ts';

export const questionStatuses = ['open', 'answered', 'expired', 'canceled'] as const;
export type QuestionStatus = (typeof questionStatuses)[number];

export interface Question
  extends Omit<RowOf<typeof questions>, 'status' | 'schema' | 'actions' | 'answer' | 'onTimeout'> {
  status: QuestionStatus;
  schema: AnswerSchema;
  actions: QuestionAction[];
  answer: Record<string, unknown> | null;
  onTimeout: GivenAnswer | null;
}

const selection = columnsOf(questions);
/** Over `q`. */
export const questionColumns = columnList(questions, selection, 'q');

export type QuestionEvent =
  | 'question.asked'
  | 'question.answered'
  | 'question.expired'
  | 'question.canceled'
  | 'question.reminded'
  | 'question.escalated';

/** SQL: what an event says of the question, over an alias with these columns. */
export function questionData(alias = 'q'): string {
  return `jsonb_build_object('id', ${alias}.id, 'title', ${alias}.title, 'step', ${alias}.step,
             'assignees', to_jsonb(${alias}.assignees), 'expires_at', ${alias}.expires_at)`;
}

/** SQL: the next time at which something happens to an open question. */
export function nextTime(alias: string): string {
  return `least(${alias}.expires_at, ${alias}.escalate_at, ${alias}.remind_at[1])`;
}
