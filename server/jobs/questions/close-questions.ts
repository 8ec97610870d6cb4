// Closes the open questions of jobs that have ended, and moves the times of questions of jobs that were on hold.
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { statement, tenant } from '../../database/sql.ts';
import { type HeldJob, lockHeld } from '../claim/lease.ts';
import { recordQuestions } from './question.ts';

/** CTEs that close the open questions of the jobs in `source` and record it. Needs `:actor`. */
function cancelQuestions(source: string): string {
  return `asked as (
    update ${tenant}.questions q
       set status = 'canceled',
           closed_at = now()
      from ${source} s
     where q.job_id = s.id
       and q.status = 'open'
    returning q.*
  ),
  unasked as (
    ${recordQuestions('question.canceled', 'asked')}
  )`;
}

const closeStatement = statement(`
  with ended as (
    select unnest(:jobIds::uuid[]) as id
  ),
  ${cancelQuestions('ended')}
  select id from asked`);

/** Runs after the statement that ended the jobs, so that it sees questions asked before their rows were locked. */
export async function closeQuestions(
  tx: Queryable,
  schema: Schema,
  jobIds: readonly string[],
  actor: string,
): Promise<void> {
  if (jobIds.length > 0) await closeStatement.query(tx, schema, { jobIds, actor });
}

const closeHeldStatement = statement(`
  with ${lockHeld()},
  ${cancelQuestions('held')}
  select id from held`);

/** Closes the questions of a job that its holder completes. Returns undefined if the lease no longer owns the job. */
export async function closeQuestionsOf(
  db: Queryable,
  schema: Schema,
  held: HeldJob,
  actor: string,
): Promise<true | undefined> {
  const rows = await closeHeldStatement.query(db, schema, { ...held, actor });
  return rows.length > 0 ? true : undefined;
}

const moveStatement = statement(`
  with held as (
    select now() - :since::timestamptz as pause
  ),
  moved as (
    select q.id, q.job_id, q.step, q.expires_at + h.pause as expires_at, q.escalate_at + h.pause as escalate_at,
           array(select r + h.pause from unnest(q.remind_at) as u(r) order by r) as remind_at
      from ${tenant}.questions q
     cross join held h
     where q.job_id = :jobId
       and q.status = 'open'
  ),
  waits as (
    update ${tenant}.phases p
       set waits_until = m.expires_at
      from moved m
     where p.job_id = m.job_id
       and p.name = m.step
  ),
  moved_links as (
    select l.id, l.expires_at + h.pause as expires_at
      from ${tenant}.question_links l
     cross join held h
     where l.question_id = any(array(select id from moved))
  ),
  links as (
    update ${tenant}.question_links l
       set expires_at = m.expires_at
      from moved_links m
     where l.id = m.id
  )
  update ${tenant}.questions q
     set expires_at = m.expires_at,
         escalate_at = m.escalate_at,
         remind_at = m.remind_at
    from moved m
   where q.id = m.id`);

/** Moves the times of open questions by the time that the job was on hold. */
export async function extendQuestions(
  tx: Queryable,
  schema: Schema,
  { id, heldSince }: { id: string; heldSince: string | null },
): Promise<void> {
  if (heldSince !== null) await moveStatement.query(tx, schema, { jobId: id, since: heldSince });
}
