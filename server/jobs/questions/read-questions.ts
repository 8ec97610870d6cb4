// Reads one question, pages of questions (newest first), and the number of open ones. An open question of a job that
// has ended counts as canceled.

import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { jsonBytes, withinBytes } from '../../database/reads/bounded-reads.ts';
import { statement, statementVariants, tenant } from '../../database/sql.ts';
import { statusIn, terminalStatuses } from '../model/states.ts';
import { budgetStep } from './budget-question.ts';
import { type Question, type QuestionStatus, questionColumns } from './question.ts';

const jobEnded = `exists (
       select 1
         from ${tenant}.jobs j
        where j.id = q.job_id
          and ${statusIn(terminalStatuses, 'j.status')}
     )`;
const columns = `${questionColumns}, q.status = 'open' and ${jobEnded} as "isOrphan"`;

type QuestionRow = Question & { isOrphan: boolean };

const byId = statement(`
  select ${columns}
    from ${tenant}.questions q
   where q.id = :id`);

export async function readQuestion(db: Queryable, schema: Schema, id: string): Promise<Question | undefined> {
  const [row] = await byId.query<QuestionRow>(db, schema, { id });
  return row && toQuestion(row);
}

export interface QuestionFilter {
  status?: QuestionStatus | undefined;
  assignee?: string | undefined;
  jobId?: string | undefined;
  /** The durable call that asked. */
  step?: string | undefined;
  targetId?: string | undefined;
}

const conditions = {
  assignee: 'q.assignees @> array[:assignee::text]',
  jobId: 'q.job_id = :jobId',
  step: 'q.step = :step',
  targetId: 'q.target_id = :targetId',
  before: 'q.id < :before',
} as const;
type Condition = keyof typeof conditions;

interface Variant {
  status: QuestionStatus | undefined;
  /** The names of conditions, in their order. */
  given: string;
}

const bytes = ['context', 'schema', 'actions', 'on_timeout', 'answer']
  .map((name) => jsonBytes(`q.${name}`))
  .join(' + ');

const list = statementVariants<Variant>(({ status, given }) =>
  withinBytes(
    `
  select ${columns}, ${bytes} as bytes
    from ${tenant}.questions q
   where ${[...statusConditions(status), ...given.split(' ').map((name) => conditions[name as Condition])].filter(Boolean).join('\n     and ') || 'true'}
   order by q.id desc
   limit :limit`,
    'id desc',
  ),
);

/** Literals instead of parameters, so that the partial indexes are used. */
function statusConditions(status: QuestionStatus | undefined): string[] {
  if (status === undefined) return [];
  if (status === 'open') return [`q.status = 'open'`, `not ${jobEnded}`];
  return [`q.status = '${status}'`];
}

export interface QuestionPage {
  questions: Question[];
  /** There are more, after this id. */
  next: string | undefined;
}

/** Newest first. A page ends early when its questions and answers have too many bytes. */
export async function listQuestions(
  db: Queryable,
  schema: Schema,
  filter: QuestionFilter,
  { limit, before }: { limit: number; before?: string | undefined },
): Promise<QuestionPage> {
  const { status, ...rest } = filter;
  const values: Record<string, unknown> = { ...rest, before };
  const given = (Object.keys(conditions) as Condition[]).filter((name) => values[name] !== undefined).join(' ');
  const rows = await list({ status, given }).query<ListedRow>(db, schema, { ...values, limit: limit + 1 });
  const shown = rows.slice(0, limit);
  const isCut = Number(rows[0]?.found ?? 0) > shown.length;
  return { questions: shown.map(withoutCounts), next: isCut ? shown.at(-1)?.id : undefined };
}

/** With what `withinBytes` counted. */
type ListedRow = QuestionRow & { bytes: unknown; found: unknown; bytes_before: unknown };

function withoutCounts({ bytes: _, found: __, bytes_before: ___, ...row }: ListedRow): Question {
  return toQuestion(row);
}

const countOpen = statement(`
  select count(*)::int as open,
         (count(*) filter (where c.step = '${budgetStep}'))::int as "ofHolds"
    from (
      select q.step
        from ${tenant}.questions q
       where ${statusConditions('open').join('\n         and ')}
       limit :limit
    ) c`);

export interface OpenQuestions {
  open: number;
  /** The number of these that belong to a job that is held and not WAITING. */
  ofHolds: number;
}

/** Counts up to the limit. */
export async function countOpenQuestions(db: Queryable, schema: Schema, limit: number): Promise<OpenQuestions> {
  const [row] = await countOpen.query<OpenQuestions>(db, schema, { limit });
  return row ?? { open: 0, ofHolds: 0 };
}

function toQuestion({ isOrphan, ...question }: QuestionRow): Question {
  return isOrphan ? { ...question, status: 'canceled' } : question;
}
