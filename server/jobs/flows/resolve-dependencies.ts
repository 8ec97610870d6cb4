// Applies the ends of jobs to the jobs that wait for them: jobs that run after others, parents that wait for children,
// and children that wait for their turn. It only marks the edges and makes such jobs due; `queueDueJobs` does the rest
// in its own batches.
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { statement, tenant } from '../../database/sql.ts';
import { statusIn, succeededStatuses, terminalStatuses } from '../model/states.ts';
import { isUnfinished, noStep } from './dependencies.ts';

export interface Touched {
  /** Jobs that have ended or failed. */
  ended: readonly string[];
  /** Waiting jobs. The jobs they wait for may have ended before. */
  waiting: readonly string[];
}

/** Returns the number of jobs that became due. Safe to repeat, and correct for any ids. */
export async function resolveDependencies(tx: Queryable, schema: Schema, { ended, waiting }: Touched): Promise<number> {
  if (ended.length === 0 && waiting.length === 0) return 0;
  const marked = await markStatement.query<{ job_id: string }>(tx, schema, { ended, waiting });
  const jobIds = [...new Set([...waiting, ...marked.map((row) => row.job_id)])];
  if (jobIds.length === 0) return 0;
  const opened = await openStatement.query<{ after_id: string }>(tx, schema, { jobIds });
  const ids = [...new Set([...jobIds, ...opened.map((row) => row.after_id)])];
  return (await dueStatement.query(tx, schema, { jobIds: ids })).length;
}

// A failed job holds the jobs that run after it until a person has decided about it, unless their edge says otherwise.
// A missing job was deleted after its end.
const markStatement = statement(`
  with edges as (
    select d.job_id, d.after_id, d.on_failure
      from ${tenant}.dependencies d
     where d.after_id = any(:ended::uuid[])
       and ${isUnfinished()}
    union
    select d.job_id, d.after_id, d.on_failure
      from ${tenant}.dependencies d
     where d.job_id = any(:waiting::uuid[])
       and ${isUnfinished()}
  ),
  ended as (
    select e.job_id, e.after_id,
           case when ${statusIn(succeededStatuses, 'j.status')} then 'succeeded'
                when j.status = 'ERROR' then 'failed'
                else 'canceled' end as state
      from edges e
      left join ${tenant}.jobs j on j.id = e.after_id
     where j.id is null
        or ${statusIn(terminalStatuses, 'j.status')}
        or (j.status = 'ERROR' and e.on_failure <> 'hold')
  )
  update ${tenant}.dependencies d
     set state = e.state
    from ended e
   where d.job_id = e.job_id
     and d.after_id = e.after_id
  returning d.job_id`);

/** SQL for the children that may start: as many as their call allows to be unfinished, in its order. */
const openStatement = statement(`
  with calls as (
    select p.job_id, p.name as step,
           (
             select d.concurrency
               from ${tenant}.dependencies d
              where d.job_id = p.job_id
                and d.step = p.name
                and d.state = 'gated'
              limit 1
           ) as concurrency
      from ${tenant}.phases p
     where p.job_id = any(:jobIds::uuid[])
       and p.kind = 'children'
  ),
  free as (
    select c.job_id, c.step,
           c.concurrency - (
             select count(*)
               from ${tenant}.dependencies d
              where d.job_id = c.job_id
                and d.step = c.step
                and d.state = 'open'
           ) as places
      from calls c
     where c.concurrency is not null
  ),
  next as (
    select n.job_id, n.after_id
      from free f
     cross join lateral (
       select d.job_id, d.after_id
         from ${tenant}.dependencies d
        where d.job_id = f.job_id
          and d.step = f.step
          and d.state = 'gated'
        order by d.position
        limit greatest(f.places, 0)
     ) n
  )
  update ${tenant}.dependencies d
     set state = 'open'
    from next n
   where d.job_id = n.job_id
     and d.after_id = n.after_id
  returning d.after_id`);

const hasUnfinished = (step: string) => `exists (
             select 1
               from ${tenant}.dependencies d
              where d.job_id = j.id
                and d.step = ${step}
                and ${isUnfinished()}
           )`;

const hasFailed = (step: string, policies: string) => `exists (
             select 1
               from ${tenant}.dependencies d
              where d.job_id = j.id
                and d.step = ${step}
                and d.state in ('failed', 'canceled')
                and d.on_failure in ${policies}
           )`;

/** SQL over a WAITING job `j`: none of the jobs it runs after is unfinished, or one of them decides about it. */
const afterIsOver = `not ${hasUnfinished(`'${noStep}'`)}
           or ${hasFailed(`'${noStep}'`, `('hold', 'cancel')`)}`;

const turnHasCome = `not exists (
             select 1
               from ${tenant}.dependencies d
              where d.after_id = j.id
                and d.state = 'gated'
           )`;

/** SQL over a WAITING job `j`: its handler can make the call again and get the results of its children. */
export const childrenHaveEnded = `exists (
             select 1
               from ${tenant}.phases p
              where p.job_id = j.id
                and p.kind = 'children'
                and p.status = 'pending'
                and (not ${hasUnfinished('p.name')} or ${hasFailed('p.name', `('stop')`)})
           )`;

/** SQL over a WAITING job `j`: its wait has ended, according to its edges. */
const isReady = `case j.waiting ->> 'kind'
           when 'after' then ${afterIsOver}
           when 'turn' then ${turnHasCome}
           else ${childrenHaveEnded}
         end`;

const dueStatement = statement(`
  with ready as (
    select j.id, greatest(now(), (j.waiting ->> 'not_before')::timestamptz) as at
      from ${tenant}.jobs j
     where j.id = any(:jobIds::uuid[])
       and j.status = 'WAITING'
       and j.run_at > now()
       and ${isReady}
  )
  update ${tenant}.jobs j
     set run_at = r.at
    from ready r
   where j.id = r.id
     and j.status = 'WAITING'
     and j.run_at > r.at
  returning j.id`);
