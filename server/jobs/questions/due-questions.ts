// Time-based changes of open questions: reminders, escalation, and the end of the wait. The job of an open question is
// WAITING, and its `run_at` is the first of these times, so the index of due jobs finds it.
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { statement, tenant } from '../../database/sql.ts';
import { childrenHaveEnded } from '../flows/resolve-dependencies.ts';
import { nextTime, recordQuestions } from './question.ts';

const expireStatement = statement(`
  with due as (
    select q.*, now() as at,
           coalesce(jsonb_build_object('default_answer', true) || q.on_timeout - 'answer', '{}') as data,
           case when q.on_timeout is null then jsonb_build_object(
             'code', 'QUESTION_EXPIRED',
             'message', format('Nobody answered the question "%s" in time.', q.title),
             'disposition', 'fatal') end as error
      from ${tenant}.questions q
     where q.job_id = any(:jobIds::uuid[])
       and q.status = 'open'
       and q.expires_at <= now()
       for update
  ),
  expired as (
    update ${tenant}.questions q
       set status = 'expired',
           closed_at = d.at,
           answer = d.on_timeout -> 'answer',
           action = d.on_timeout ->> 'action'
      from due d
     where q.id = d.id
  ),
  ended as (
    update ${tenant}.phases p
       set status = case when d.error is null then 'completed' else 'failed' end,
           progress = case when d.error is null then 100 else 0 end,
           result = d.on_timeout,
           error = d.error,
           finished_at = d.at
      from due d
     where p.job_id = d.job_id
       and p.name = d.step
  ),
  recorded as (
    ${recordQuestions('question.expired', 'due', 'q.data')}
  )
  select distinct job_id as "jobId" from due`);

/**
 * Ends the questions of these jobs whose time is over, with their default answer or as failed. Returns the ids of the
 * jobs.
 */
export async function expireQuestions(
  tx: Queryable,
  schema: Schema,
  jobIds: readonly string[],
  actor: string,
): Promise<string[]> {
  const rows = await expireStatement.query<{ jobId: string }>(tx, schema, { jobIds, actor });
  return rows.map(({ jobId }) => jobId);
}

const remindStatement = statement(`
  with due as (
    select q.*,
           array(select r from unnest(q.remind_at) as u(r) where r > now() order by r) as later,
           jsonb_build_object('reminder', q.reminders + 1) as data
      from ${tenant}.questions q
     where q.job_id = any(:jobIds::uuid[])
       and q.status = 'open'
       and q.remind_at[1] <= now()
       for update
  ),
  reminded as (
    update ${tenant}.questions q
       set remind_at = d.later,
           reminders = q.reminders + 1
      from due d
     where q.id = d.id
  ),
  recorded as (
    ${recordQuestions('question.reminded', 'due', 'q.data')}
  )
  select id from due`);

const escalateStatement = statement(`
  with due as (
    select q.id, q.job_id, q.target_id, q.title, q.step, q.expires_at, q.escalate_to as assignees, now() as at,
           jsonb_build_object('from', to_jsonb(q.assignees)) as data
      from ${tenant}.questions q
     where q.job_id = any(:jobIds::uuid[])
       and q.status = 'open'
       and q.escalate_at <= now()
       for update
  ),
  escalated as (
    update ${tenant}.questions q
       set assignees = d.assignees,
           escalated_at = d.at,
           escalate_at = null
      from due d
     where q.id = d.id
  ),
  recorded as (
    ${recordQuestions('question.escalated', 'due', 'q.data')}
  )
  select id from due`);

const nextStatement = statement(`
  with given as (
    select j.id,
           (select min(p.waits_until)
              from ${tenant}.phases p
             where p.job_id = j.id
               and (p.status = 'running' or (p.status = 'pending' and p.kind = 'sleep'))) as ends_at,
           (select min(${nextTime('q')})
              from ${tenant}.questions q
             where q.job_id = j.id
               and q.status = 'open') as next_at
      from ${tenant}.jobs j
     where j.id = any(:jobIds::uuid[])
       and j.status = 'WAITING'
       and j.run_at <= now()
  )
  update ${tenant}.jobs j
     set run_at = least(g.next_at, g.ends_at)
    from given g
   where j.id = g.id
     and j.status = 'WAITING'
     and g.ends_at > now()
     and g.next_at is not null
     and not ${childrenHaveEnded}
  returning j.id`);

/**
 * Expires, escalates and reminds the questions of due WAITING jobs, which the caller has locked. Returns the jobs that
 * keep waiting; the caller wakes the others.
 */
export async function processDueQuestions(
  tx: Queryable,
  schema: Schema,
  jobIds: readonly string[],
  actor: string,
): Promise<Set<string>> {
  const expired = new Set(await expireQuestions(tx, schema, jobIds, actor));
  await escalateStatement.query(tx, schema, { jobIds, actor });
  await remindStatement.query(tx, schema, { jobIds, actor });
  const open = jobIds.filter((id) => !expired.has(id));
  const waiting = await nextStatement.query<{ id: string }>(tx, schema, { jobIds: open });
  return new Set(waiting.map(({ id }) => id));
}
