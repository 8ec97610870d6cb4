// A question to a person, as in its row.
import { columnList, columnsOf, type RowOf } from '../../database/reads/drizzle.ts';
import { tenant } from '../../database/sql.ts';
import { questions } from '../../database/tables/tenant-questions.ts';
import { insertEvents } from '../../events/log/record.ts';
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
/** The columns, over `q`. */
export const questionColumns = columnList(questions, selection, 'q');

export type QuestionEvent =
  | 'question.asked'
  | 'question.answered'
  | 'question.expired'
  | 'question.canceled'
  | 'question.reminded'
  | 'question.escalated';

/** SQL that records an event for each question of `source`. `data` has additional values over `q`. Needs `:actor`. */
export function recordQuestions(type: QuestionEvent, source: string, data = `'{}'::jsonb`): string {
  const about = `jsonb_build_object('id', q.id, 'title', q.title, 'step', q.step, 'assignees', to_jsonb(q.assignees),
                'expires_at', q.expires_at)`;
  return insertEvents(tenant, {
    source: `(
        select j.id, j.target_id, j.status, j.attempt, j.lease_id, jsonb_build_object('question', ${about}) || ${data} as data
          from ${source} q
          join ${tenant}.jobs j on j.id = q.job_id
      ) as asked`,
    type: `'${type}'`,
    actor: ':actor',
    from: 'status',
    to: 'status',
    data: 'data',
  });
}

/** SQL: the next time at which an open question changes. */
export function nextTime(alias: string): string {
  return `least(${alias}.expires_at, ${alias}.escalate_at, ${alias}.remind_at[1])`;
}
