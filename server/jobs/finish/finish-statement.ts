// The statement that ends attempts with outcomes of one kind: it writes status, phases, leases and events under the
// fence, and promotes the next job of each lane. If the caller has room, that job starts in the same statement;
// promoting it first and claiming it later would write it twice.

import { encodeUuids } from '../../database/connections/value-formats.ts';
import type { Schema } from '../../database/identifiers.ts';
import { jsonBytes } from '../../database/reads/bounded-reads.ts';
import { type BoundStatement, statementVariants, tenant } from '../../database/sql.ts';
import { insertEvents } from '../../events/log/record.ts';
import { writeJson } from '../../kernel/json/json-text.ts';
import { type Claimed, type NamedClaim, pickWithinBytes, startEvent, takeJob, toClaimed } from '../claim/claim.ts';
import { type ClaimedRow, claimedColumns, noClaimedColumns, returningClaimed } from '../claim/claimed-job.ts';
import { endLeases, insertLease, type LeaseValues } from '../claim/lease.ts';
import { becomesHead, firstByPriority } from '../lanes/lane.ts';
import { isTerminal } from '../model/states.ts';
import { transition } from '../transition.ts';
import {
  assignments,
  completeWithoutResult,
  entryOf,
  entrySql,
  type FinishedAttempt,
  givenDueTimes,
  isDelayed,
  isEmpty,
  type OutcomeKind,
  phaseUpdates,
} from './outcome.ts';
import { kindOf, notSuperseded, type WrittenEnd } from './stop-decisions.ts';

/** @internal Exported for its test. */
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
 * @internal Exported for its test.
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

export function endsJob(kind: OutcomeKind): boolean {
  return isTerminal(transition(kind).to);
}

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

export interface FinishOptions {
  actor: string;
  /**
   * Leases that have no other attempt. They are released in the same transaction unless a RUNNING job refers to them.
   */
  endedLeases?: string[];
  /** Claims the next jobs of the lanes that advance, in the same transaction. */
  claimNext?: NamedClaim | undefined;
}

interface FinishSummary {
  accepted: number;
  /** Null if all outcomes were accepted, so that a thousand ids are not returned. */
  ids: string[] | null;
  promoted: boolean;
  canary?: boolean;
}

export interface StatementResult {
  /** The ids of the jobs whose outcome was accepted. */
  accepted: Set<string>;
  claimed: Claimed | undefined;
  /** A lane has a new head that did not start. */
  promoted: boolean;
  /** One of the jobs was the canary of its target. */
  canary: boolean;
}

interface FinishGroup extends BoundStatement {
  read(rows: FinishRow[]): StatementResult;
}

/** One row has the summary; the others are jobs that start. */
export type FinishRow = ClaimedRow & { summary: FinishSummary | null };

/** The statement for attempts that ended alike. */
export function bindFinish(
  schema: Schema,
  end: WrittenEnd,
  items: FinishedAttempt[],
  withAsked: boolean,
  options: FinishOptions,
): FinishGroup {
  const leaseId = items[0]?.leaseId;
  const oneLease = items.every((item) => item.leaseId === leaseId);
  const isBare = end === 'complete' && items.every((item) => isEmpty(item.outcome));
  const entries: Record<string, object> = {};
  let hasEventData = false;
  // With one lease and no results there is nothing to look up.
  for (const item of isBare && oneLease ? [] : items) {
    const entry = entryOf(item.outcome);
    hasEventData ||= entry.eventData !== undefined;
    entries[item.jobId] = { lease: item.leaseId, ...entry };
  }
  const next = options.claimNext;
  const hasLanes = items.some((item) => item.targetId !== null);
  const lanes = !hasLanes ? 'none' : next === undefined ? 'promote' : 'claim';
  const statement = finishStatement({ end, oneLease, hasEntries: !isBare, hasEventData, withAsked, lanes });
  const bound = statement.bind(schema, {
    jobIds: statement.uses('jobIds') ? encodeUuids(items.map((item) => item.jobId)) : undefined,
    entries: statement.uses('entries') ? writeJson(entries) : undefined,
    leaseId: oneLease ? leaseId : undefined,
    endedLeases: options.endedLeases ?? [],
    actor: options.actor,
    count: items.length,
    ...(lanes === 'claim' &&
      next !== undefined && {
        nextLeaseId: next.leaseId,
        nextOwner: next.owner,
        nextLeaseSeconds: next.leaseSeconds,
        nextTypes: next.types ?? null,
        nextLimit: next.limit,
      }),
  });
  return { ...bound, read: (rows) => toStatementResult(items, rows, next) };
}

function toStatementResult(
  items: FinishedAttempt[],
  rows: FinishRow[],
  request: NamedClaim | undefined,
): StatementResult {
  const summary = rows.find((row) => row.summary !== null)?.summary;
  const accepted = summary?.ids ?? (summary?.accepted === items.length ? items.map((item) => item.jobId) : []);
  const started = rows.filter((row) => row.summary === null);
  const claimed = request && toClaimed(started, 'start', request.leaseId, request.owner);
  return {
    accepted: new Set(accepted),
    claimed,
    promoted: summary?.promoted ?? false,
    canary: summary?.canary ?? false,
  };
}
