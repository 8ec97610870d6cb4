// SQL: when jobs whose attempt ended are due again: after a backoff, or when what they wait for has come.
import { tenant } from '../../database/sql.ts';
import { never } from '../model/waiting.ts';
import { nextTime } from '../questions/question.ts';
import type { OutcomeKind } from './outcome.ts';

/** The job has a time at which it is due again. */
export function isDelayed(kind: OutcomeKind): boolean {
  return givenDueTimes[kind] !== undefined;
}

// Times are computed in a SELECT: a cluster refuses arithmetic on now() and a column in an UPDATE.
function dueTimes(dueAt: string): string {
  return `given as (
    select key::uuid as id, ${dueAt} as due_at
      from jsonb_each(:entries::jsonb)
  ),`;
}

const afterDelay = dueTimes(`now() + (value ->> 'delay')::float8 * interval '1 millisecond'`);
// What others end may have ended before the job was locked; reminders come before the end of a wait.
const atWakeTime = dueTimes(`case
           when value -> 'awaited' is null then coalesce(value -> 'waiting' ->> 'until', '${never}')::timestamptz
           when exists (
             select 1
               from ${tenant}.phases p
              where p.job_id = key::uuid
                and value -> 'awaited' -> 'steps' ? p.name
                and p.status in ('completed', 'failed')
           ) then now()
           else least(
             coalesce(value -> 'awaited' ->> 'until', '${never}')::timestamptz,
             (select min(${nextTime('q')})
                from ${tenant}.questions q
               where q.job_id = key::uuid
                 and q.status = 'open'))
           end`);
/** The CTE `given` of each outcome that has such a time. */
export const givenDueTimes: Partial<Record<OutcomeKind, string>> = {
  retry: afterDelay,
  recoverLater: afterDelay,
  suspend: atWakeTime,
  suspendAside: atWakeTime,
};
