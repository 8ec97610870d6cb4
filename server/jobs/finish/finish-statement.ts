// The statement that ends attempts with outcomes of one kind: it writes status, phases, leases and events under the
// fence, and promotes the next job of each lane. If the caller has room, that job starts in the same statement;
// promoting it first and claiming it later would write it twice.

import { jsonBytes } from '../../database/reads/bounded-reads.ts';
import { statementVariants, tenant } from '../../database/sql.ts';
import { insertEvents } from '../../events/log/record.ts';
import { pickWithinBytes, startEvent, takeJob } from '../claim/claim.ts';
import { claimedColumns, noClaimedColumns, returningClaimed } from '../claim/claimed-job.ts';
import { endLeases, insertLease, type LeaseValues } from '../claim/lease.ts';
import { becomesHead, firstByPriority } from '../lanes/lane.ts';
import { never } from '../model/waiting.ts';
import { nextTime } from '../questions/question.ts';
import { transition } from '../transition.ts';
import { endsJob, type OutcomeKind } from './outcome.ts';
import { kindOf, notSuperseded, type WrittenEnd } from './stop-decisions.ts';

export interface FinishVariant {
  end: WrittenEnd;
  /** One lease owns all the jobs. Otherwise the entry of each job names its lease. */
  oneLease: boolean;
  /** Some outcomes have data to store. Without entries, the statement looks up nothing per job. */
  hasEntries: boolean;
  /** Some outcomes have data for their events. */
  hasEventData: boolean;
  /** Jobs that have asked a question may end too; the caller closes their questions. */
  withAsked: boolean;
  /** The effect on lanes: none without targets, otherwise the next job becomes head or starts. */
  lanes: 'none' | 'promote' | 'claim';
}

/** A subselect, because the planner would otherwise estimate each of a thousand ids and choose the same plan. */
const jobIds = 'array(select unnest(:jobIds::uuid[]))';

/**
 * Parameters: jobIds, leaseId (or leases in the entries), entries, endedLeases, actor, count; with lanes 'claim' also
 * nextLeaseId, nextOwner, nextLeaseSeconds, nextTypes and nextLimit. Returns one row with a `summary`, and one for each
 * job that started. The targets must have been locked by an earlier statement.
 */
export const finishStatement = statementVariants<FinishVariant>(
  ({ end, oneLease, hasEntries, hasEventData, withAsked, lanes }) => {
    const kind = kindOf(end);
    const guard = notSuperseded(end);
    return `
  with ${givenDueTimes[kind] ?? ''}
  finished as (
    ${transition(kind).update(tenant, {
      place: 'head',
      set: `${hasEntries ? assignments[kind] : completeWithoutResult},
           lease_owner = null,
           cancel_requested = false,
           cancel_intent = null,
           cancel_detail = null,
           updated_at = now()`,
      from: isDelayed(kind) ? 'given g' : undefined,
      where: `${isDelayed(kind) ? 'j.id = g.id' : `j.id = any(${jobIds})`}
       and j.lease_id = ${oneLease ? ':leaseId::uuid' : `(${entrySql} ->> 'lease')::uuid`}
       ${guard === undefined ? '' : `and ${guard}`}
       ${endsJob(kind) && !withAsked ? `and ${neverAsked}` : ''}`,
      returning: 'j.id, j.target_id, j.attempt, j.lease_id, j.lane_head, j.lane_seq, j.priority',
    })}
  ),
  ${phaseUpdates[kind] ?? ''}
  ${endLeases(tenant, ':endedLeases::uuid[]', 'finished')},
  ${lanes === 'none' ? '' : nextInLane}
  ${lanes === 'claim' ? startNext : ''}
  ${lanes === 'none' ? '' : promoted(lanes === 'claim' ? 'select id from next except select id from picked' : 'select id from next')}
  recorded as (
    ${insertEvents(
      tenant,
      transition(kind).events('finished', {
        actor: ':actor',
        ...(hasEventData && { data: `:entries::jsonb -> id::text -> 'eventData'` }),
      }),
      ...(lanes === 'claim' ? [startEvent('start', nextLease)] : []),
    )}
  )
  ${lanes === 'claim' ? selectStarted : ''}
  select ${lanes === 'claim' ? `${noClaimedColumns},` : ''}
         jsonb_build_object(
           'accepted', accepted,
           'promoted', ${lanes === 'none' ? 'false' : 'exists (select 1 from promoted)'},
           ${lanes === 'none' || !transition(kind).decidesCanary ? '' : `'canary', ${hasCanary},`}
           'ids', case when accepted < :count::int then (select jsonb_agg(id) from finished) end
         ) as summary
    from (select count(*)::int as accepted from finished) as c`;
  },
);

const hasCanary = `exists (
             select 1
               from ${tenant}.targets t
              where t.canary_job_id = any(array(select id from finished))
           )`;

const selectStarted = `select ${claimedColumns(true)},
    null::jsonb as summary
  from claimed
  union all`;

/**
 * A guard of outcomes that end the job. If the job has asked a question, the outcome is refused, and finish.ts writes
 * it together with the end of the questions.
 */
const neverAsked = 'j.asked is null';

/** Finds heads that leave their lane in `finished`, because a statement cannot read its own writes. */
const nextInLane = `next as (
    select n.*
      from finished f
     cross join lateral (
       ${firstInLine(`and (j.lane_rank, j.lane_seq) <= (f.priority + ${firstByPriority}, f.lane_seq + 4)`)}
       union all
       ${firstInLine('')}
       limit 1
     ) n
     where not f.lane_head
       and not exists (select 1 from ${tenant}.targets t where t.id = f.target_id and t.paused_at is not null)
  ),`;

/**
 * The next job usually has one of the next numbers, so the first of the two selects finds it without reading a long
 * line.
 */
function firstInLine(close: string): string {
  return `(
         select j.id, j.status, j.type, j.remote, j.gated, j.priority, j.created_at, ${jsonBytes('j.payload')} as bytes
           from ${tenant}.jobs j
          where j.target_id = f.target_id
            and j.lane_rank is not null
            ${close}
          order by j.lane_rank, j.lane_seq
          limit 1
       )`;
}

const nextLease: LeaseValues = { lease: ':nextLeaseId::uuid', owner: ':nextOwner::text', seconds: ':nextLeaseSeconds' };

const startNext = `startable as (
    select id, priority, created_at, bytes
      from next n
     where ${transition('start').guard('n')}
       and not n.remote
       and not n.gated
       and (:nextTypes::text[] is null or n.type = any(:nextTypes::text[]))
     order by n.priority, n.created_at, n.id
     limit :nextLimit
  ),
  picked as (${pickWithinBytes('startable')}
  ),
  leased as (${insertLease(tenant, 'local', nextLease, 'picked')}
  ),
  claimed as (
    ${transition('start').update(tenant, {
      place: 'next',
      set: takeJob('start', nextLease),
      where: 'j.id = any(array(select id from picked))',
      returning: returningClaimed,
    })}
  ),`;

function promoted(ids: string): string {
  return `promoted as (
    update ${tenant}.jobs
       set ${becomesHead}
     where id = any(array(${ids}))
    returning id
  ),`;
}

// What each outcome writes, over a job `j`. The entry of a job is looked up in one object, because joining a list of
// (job, lease) pairs makes a nested loop over the batch.
const entrySql = '(:entries::jsonb -> j.id::text)';

const completed = `finished_at = now(),
           progress = 100`;
const setError = `error = ${entrySql} -> 'error'`;
const setResult = `result = ${entrySql} -> 'result'`;
const heldWithError = `held_since = now(),
           ${setError},
           hold = ${entrySql} -> 'hold'`;

/** The attempt is not counted, and the deadline of the job moves. */
const waits = `run_at = g.due_at,
           held_since = now(),
           waiting = ${entrySql} -> 'waiting',
           hold = null,
           error = null,
           attempt_floor = j.attempt_floor + 1`;

/** The assignments of each outcome, besides those of its transition. */
const assignments: Record<OutcomeKind, string> = {
  complete: `${completed},
           ${setResult},
           error = null`,
  completePartly: `${completed},
           ${setResult},
           ${setError}`,
  retry: `hold = null,
           run_at = g.due_at,
           ${setError}`,
  // Only completed jobs show 100. Otherwise the progress of a failed attempt stays as reported.
  fail: `progress = case when j.progress >= 100 then 99 else j.progress end,
           finished_at = now(),
           ${heldWithError}`,
  stopPaused: heldWithError,
  stopCanceled: `finished_at = now(),
           hold = null,
           ${setError}`,
  suspend: waits,
  suspendAside: waits,
  requeue: `hold = null,
           attempt = j.attempt - 1`,
  recover: `hold = null,
           ${setError}`,
  recoverLater: `hold = null,
           run_at = g.due_at,
           ${setError}`,
};

const completeWithoutResult = `${completed},
           result = null,
           error = null`;

const interruptPhases = updatePhases(`status = 'pending'`, `('running')`);
/** The new state of phases that have not ended. */
const phaseUpdates: Partial<Record<OutcomeKind, string>> = {
  retry: interruptPhases,
  recover: interruptPhases,
  recoverLater: interruptPhases,
  stopPaused: interruptPhases,
  requeue: interruptPhases,
  // A wait stays open, because the handler may reach it again after a resume.
  fail: updatePhases(
    `status = 'failed', error = :entries::jsonb -> f.id::text -> 'error', finished_at = now()`,
    `('running')
       and p.kind = 'phase'`,
  ),
  stopCanceled: updatePhases(`status = 'cancelled', finished_at = now()`, `('pending', 'running')`),
};

function updatePhases(set: string, from: string): string {
  return `phases as (
    update ${tenant}.phases p
       set ${set}
      from finished f
     where p.job_id = f.id
       and p.status in ${from}
  ),`;
}

// The time at which a job is due again: after a backoff, or when its wait ends.

/** The job has a time at which it is due again. */
function isDelayed(kind: OutcomeKind): boolean {
  return givenDueTimes[kind] !== undefined;
}

// Times are computed in a SELECT: a cluster refuses arithmetic on now() and a column in an UPDATE.
function dueTimes(dueAt: string): string {
  return `given as (
    select key::uuid as id, ${dueAt} as due_at
      from jsonb_each(:entries::jsonb)
  ),`;
}

const afterDelay = dueTimes(`now() + (value ->> 'delayMs')::float8 * interval '1 millisecond'`);
// The waited event may have arrived before the job was locked. Reminders come before the end of a wait.
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
/** The CTE `given` of each outcome with such a time. */
const givenDueTimes: Partial<Record<OutcomeKind, string>> = {
  retry: afterDelay,
  recoverLater: afterDelay,
  suspend: atWakeTime,
  suspendAside: atWakeTime,
};
