// The durable call `ask` in the database: one open question per call, fenced by the lease of the attempt. A run after a
// crash, a resume or a wait finds the same question, or how it was closed.

import type { Database, Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { statement, tenant } from '../../database/sql.ts';
import { newId } from '../../kernel/ids.ts';
import type { StepCall } from '../attempt/steps.ts';
import { fence, type HeldJob, lockHeld } from '../claim/lease.ts';
import type { JobError } from '../model/job-values.ts';
import { expireQuestions } from './due-questions.ts';
import { nextTime, recordQuestions } from './question.ts';
import type { AskedQuestion, GivenAnswer } from './question-request.ts';

/** The state of the call. */
export type QuestionState =
  | { status: 'open'; questionId: string; until: string; leftMs: number; wakeMs: number }
  | { status: 'completed'; result: GivenAnswer }
  | { status: 'failed'; error: JobError };

export type TimedQuestion = AskedQuestion & { timeout_seconds: number };

// Locks the job. If two runs ask the same question, such as a lost lease and its successor, the second finds the
// question of the first. An outcome that is written meanwhile sees `asked` and closes the question.
const heldStatement = statement(`
  update ${tenant}.jobs j
     set asked = true
   where ${fence}
  returning j.id`);

const stateStatement = statement(`
  select p.status, p.result, p.error, q.id as "questionId", q.expires_at as until,
         extract(epoch from q.expires_at - now())::float8 * 1000 as "leftMs",
         extract(epoch from ${nextTime('q')} - now())::float8 * 1000 as "wakeMs"
    from ${tenant}.phases p
    left join ${tenant}.questions q on q.job_id = p.job_id and q.step = p.name and q.status = 'open'
   where p.job_id = :jobId
     and p.name = :name`);

// An attempt that was lost or stopped left the call pending.
const reopenStatement = statement(`
  update ${tenant}.phases
     set status = 'running'
   where job_id = :jobId
     and name = :name
     and status = 'pending'`);

interface StateRow {
  status: string;
  result: GivenAnswer | null;
  error: JobError | null;
  questionId: string | null;
  until: string | null;
  leftMs: number | null;
  wakeMs: number | null;
}

// On conflict the call failed in an earlier run and asks again.
const askStatement = statement(`
  with ${lockHeld('j.id, j.target_id, j.attempt, j.lease_id')},
  given as (
    select h.*, now() as at, now() + :timeoutSeconds::float8 * interval '1 second' as expires_at,
           array(
             select now() + s * interval '1 second'
               from unnest(:reminders::float8[]) as r(s)
              where s < :timeoutSeconds::float8
              order by s
           ) as remind_at,
           case when :escalateSeconds::float8 < :timeoutSeconds::float8
             then now() + :escalateSeconds::float8 * interval '1 second' end as escalate_at
      from held h
  ),
  waits as (
    insert into ${tenant}.phases (job_id, name, kind, position, parallel, status, attempt, started_at, waits_until)
    select g.id, :name, 'question', :position, :parallel, 'running', 1, g.at, g.expires_at
      from given g
    on conflict (job_id, name) do update
       set status = excluded.status,
           result = null,
           error = null,
           started_at = excluded.started_at,
           finished_at = null,
           waits_until = excluded.waits_until
  ),
  q as (
    insert into ${tenant}.questions
      (id, job_id, step, target_id, title, context, schema, actions, assignees, asked_at, expires_at, on_timeout, remind_at, escalate_at, escalate_to)
    select :id::uuid, g.id, :name, g.target_id, :title, :context::json, :schema::json, :actions::jsonb, :assignees::text[],
           g.at, g.expires_at, :onTimeout::jsonb, g.remind_at, g.escalate_at, :escalateTo::text[]
      from given g
    returning *
  ),
  recorded as (
    ${recordQuestions('question.asked', 'q')}
  )
  select id from q`);

/** Stores the question, or reads its state. Returns undefined if the lease no longer owns the job. */
export function openQuestion(
  db: Database,
  schema: Schema,
  held: HeldJob,
  call: StepCall,
  question: TimedQuestion,
  actor: string,
): Promise<QuestionState | undefined> {
  return db.transaction(async (tx) => {
    const rows = await heldStatement.query(tx, schema, { ...held });
    if (rows.length === 0) return undefined;
    const state = await readState(tx, schema, held, call);
    if (state !== undefined && (state.status !== 'open' || state.leftMs > 0)) return state;
    if (state !== undefined) await expireQuestions(tx, schema, [held.jobId], actor);
    else await insertQuestion(tx, schema, held, call, question, actor);
    return readState(tx, schema, held, call);
  });
}

/** Returns undefined if no question is open, or if the call was reopened. */
async function readState(
  tx: Queryable,
  schema: Schema,
  { jobId }: HeldJob,
  { name }: StepCall,
): Promise<QuestionState | undefined> {
  const [row] = await stateStatement.query<StateRow>(tx, schema, { jobId, name });
  if (row === undefined) return undefined;
  const { status, result, error, questionId, until, leftMs, wakeMs } = row;
  if (status === 'completed' && result !== null) return { status, result };
  if (status === 'failed' && error !== null) return { status, error };
  if (questionId === null || until === null) return undefined;
  if (status === 'pending') await reopenStatement.query(tx, schema, { jobId, name });
  return { status: 'open', questionId, until, leftMs: leftMs ?? 0, wakeMs: wakeMs ?? 0 };
}

async function insertQuestion(
  tx: Queryable,
  schema: Schema,
  held: HeldJob,
  call: StepCall,
  question: TimedQuestion,
  actor: string,
): Promise<void> {
  await askStatement.query(tx, schema, {
    ...held,
    ...call,
    id: newId(),
    title: question.title,
    context: JSON.stringify(question.context ?? null),
    schema: JSON.stringify(question.schema),
    actions: JSON.stringify(question.actions),
    assignees: question.assignees,
    timeoutSeconds: question.timeout_seconds,
    onTimeout: question.on_timeout === 'fail' ? null : JSON.stringify(question.on_timeout),
    reminders: question.reminders,
    escalateSeconds: question.escalate_to?.after_seconds ?? null,
    escalateTo: question.escalate_to?.assignees ?? null,
    actor,
  });
}
