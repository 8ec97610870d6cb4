// The question of a job that a budget has stopped: raise the limit, resume unchanged, or cancel. It is stored with the
// outcome of the attempt. No handler waits for it; the answer changes the job directly.
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { statement, tenant } from '../../database/sql.ts';
import { newId } from '../../kernel/ids.ts';
import { type Spent, sumOf, type Units, unitOfRaise } from '../model/job-budget.ts';
import { isBudgetErrorSql, spentOf } from '../model/job-errors.ts';
import type { JobError } from '../model/job-values.ts';
import { never } from '../model/waiting.ts';
import { type Question, recordQuestions } from './question.ts';
import type { AnswerSchema, GivenAnswer, QuestionAction } from './question-request.ts';

/** The `step` of such a question. Durable calls always have a name, so none has this one. */
export const budgetStep = '';

const actions = [
  { name: 'Raise', label: 'Raise the limit and continue', style: 'primary' },
  { name: 'Resume', label: 'Continue as it is' },
  { name: 'Cancel', label: 'Cancel the job', style: 'danger' },
] as const satisfies QuestionAction[];
type Action = (typeof actions)[number]['name'];

// Jobs that ended differently meanwhile, for example after a cancel request, ask nothing.
const askStatement = statement(`
  with given as (
    select g.id, j.id as job_id, j.target_id, g.title, g.context, g.schema, now() as at
      from jsonb_to_recordset(:questions::jsonb) as g(id uuid, job_id uuid, title text, context json, schema json)
      join ${tenant}.jobs j on j.id = g.job_id
     where j.status = 'ERROR'
       and ${isBudgetErrorSql()}
  ),
  q as (
    insert into ${tenant}.questions (id, job_id, step, target_id, title, context, schema, actions, asked_at, expires_at)
    select g.id, g.job_id, '${budgetStep}', g.target_id, g.title, g.context, g.schema, :actions::jsonb, g.at,
           timestamptz '${never}'
      from given g
    on conflict do nothing
    returning *
  ),
  marked as (
    update ${tenant}.jobs j
       set asked = true
      from q
     where j.id = q.job_id
  ),
  recorded as (
    ${recordQuestions('question.asked', 'q')}
  )
  select id from q`);

/** Inserts questions for attempts that ended with a budget error, in their transaction. */
export async function askAboutBudgets(
  tx: Queryable,
  schema: Schema,
  stopped: readonly { jobId: string; error: JobError }[],
  actor: string,
): Promise<void> {
  const questions = stopped.flatMap(({ jobId, error }) => {
    const spent = spentOf(error);
    if (spent === undefined) return [];
    const title = `${error.message} Raise the limit?`;
    return [{ id: newId(), job_id: jobId, title, context: spent, schema: schemaOf(spent) }];
  });
  if (questions.length === 0) return;
  await askStatement.query(tx, schema, {
    questions: JSON.stringify(questions),
    actions: JSON.stringify(actions),
    actor,
  });
}

function schemaOf({ unit, used, limit }: Spent): AnswerSchema {
  const isWhole = unit === 'tokens' || (Number.isInteger(used) && Number.isInteger(limit));
  const suggested = Math.max(limit, used) * 2;
  const field = {
    type: unit === 'tokens' ? 'integer' : 'number',
    title: `New limit in ${unit}`,
    description: `More than the ${used} that are used. For this job only.`,
    exclusiveMinimum: used,
    default: isWhole ? Math.ceil(suggested) : sumOf(suggested, 0),
  };
  return { type: 'object', properties: { limit: field }, additionalProperties: false };
}

const readStatement = statement(`
  select q.id, q.title
    from ${tenant}.questions q
   where q.job_id = :jobId
     and q.step = '${budgetStep}'
     and q.status = 'open'`);

/** Returns undefined if none is open. */
export async function readBudgetQuestion(
  db: Queryable,
  schema: Schema,
  jobId: string,
): Promise<Pick<Question, 'id' | 'title'> | undefined> {
  const [question] = await readStatement.query<Pick<Question, 'id' | 'title'>>(db, schema, { jobId });
  return question;
}

const closeStatement = statement(`
  with closed as (
    update ${tenant}.questions q
       set status = 'canceled',
           closed_at = now()
     where q.job_id = :jobId
       and q.step = '${budgetStep}'
       and q.status = 'open'
    returning q.*
  ),
  recorded as (
    ${recordQuestions('question.canceled', 'closed')}
  )
  select id from closed`);

/** A person has resumed the job in another way, so the question is closed. */
export async function closeBudgetQuestion(tx: Queryable, schema: Schema, jobId: string, actor: string): Promise<void> {
  await closeStatement.query(tx, schema, { jobId, actor });
}

/** The effect of the answer: the job ends, or is resumed with this budget. */
export function decideBudget(error: JobError | null, { action, answer }: GivenAnswer): 'cancel' | Units {
  switch (action as Action) {
    case 'Cancel':
      return 'cancel';
    case 'Raise': {
      const spent = spentOf(error);
      return spent === undefined ? {} : { [unitOfRaise(spent)]: Number(answer.limit) };
    }
    default:
      return {};
  }
}
