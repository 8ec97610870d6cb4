// Renders every UPDATE of a job's status, with its events, from one entry of the table in model/states.ts, so that the
// guard, the new status, the event and the lane step cannot come from different entries. The initial status is part of
// the insert.
import type { Queryable } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import { statement, tenant } from '../database/sql.ts';
import { type EventSelect, insertEvents } from '../events/log/record.ts';
import { concludeCanaries } from './lanes/conclude-canaries.ts';
import { becomesHead, distinctTargets, firstByPriority, type LaneNumber, lockTargets, promote } from './lanes/lane.ts';
import type { Job } from './model/job.ts';
import {
  isOnHold,
  isTerminal,
  type LaneStep,
  type Status,
  statusIn,
  type TransitionName,
  transitions,
} from './model/states.ts';
import { closeQuestions } from './questions/close-questions.ts';

export interface JobTransition {
  readonly from: readonly Status[];
  readonly to: Status;
  readonly event: string;
  readonly lane: LaneStep;
  /** `j.status in (…)`, for a SELECT of the jobs that could make this transition. */
  guard(alias?: string): string;
  /** The job has ended or waits for a person, which decides about a canary (see lanes/conclude-canaries.ts). */
  readonly decidesCanary: boolean;
  /** The UPDATE of `jobs j`, with the guard, the new status and the lane step. */
  update(schema: Schema, parts: UpdateParts): string;
  /** The events of the updated rows; `source` needs `before_status` if the transition has several `from`. */
  events(source: string, columns: EventColumns): EventSelect;
}

/**
 * The place of the jobs in their lanes before the change.
 * - `head`: each is the head of its lane, as every job with an owner is, or has no lane.
 * - `next`: each is the first of a lane without a head, and becomes the head with this change.
 * - `read`: the CTE `b` has it (see `lockJobs`).
 */
type LanePlace = 'head' | 'next' | 'read';

interface UpdateParts {
  place: LanePlace;
  /** Additional assignments. */
  set: string;
  from?: string | undefined;
  where: string;
  returning: string;
}

type EventColumns = Pick<EventSelect, 'actor' | 'data' | 'attempt' | 'lease'>;

export function transition(name: TransitionName): JobTransition {
  return rendered[name];
}

const rendered = Object.fromEntries(
  (Object.keys(transitions) as TransitionName[]).map((name) => [name, render(name)]),
) as Record<TransitionName, JobTransition>;

function render(name: TransitionName): JobTransition {
  const { to, event, lane } = transitions[name];
  const from: readonly Status[] = transitions[name].from;
  const guard = (alias = 'j') => statusIn(from, `${alias}.status`);
  return {
    from,
    to,
    event,
    lane,
    decidesCanary: isTerminal(to) || isOnHold(to),
    guard,
    update(schema, { place, set, from: tables, where, returning }) {
      if (writesOwnColumns.test(set)) throw new Error(`${name}: only the table of transitions sets status and lane`);
      const assignments = [
        `status = '${to}'`,
        to === 'QUEUED' ? 'gated = j.limit_keys is not null' : '',
        place === 'next' ? becomesHead : laneWrites[lane][place],
        set,
      ];
      return `update ${schema}.jobs j
          set ${assignments.filter(Boolean).join(',\n              ')}
         ${tables === undefined ? '' : `from ${tables}`}
        where ${where}
          and ${guard()}
       returning ${returning}`;
    },
    events: (source, columns) => ({
      // A job that already has the status did not change. Without this condition a denied worker that asks again would
      // fill the log.
      source: from.includes(to) ? `${source} where before_status <> '${to}'` : source,
      type: `'${event}'`,
      from: from.length === 1 ? `'${from[0]}'` : 'before_status',
      to: `'${to}'`,
      ...columns,
    }),
  };
}

const writesOwnColumns = /(?<![\w.])(status|lane_head|lane_rank)\s*=/;

export interface TransitionRequest {
  name: TransitionName;
  jobs: readonly Pick<Job, 'id' | 'targetId'>[];
  /** The lease that must own the jobs, for a change by its holder. */
  leaseId?: string | undefined;
  /** An additional guard, over `j`. */
  extraGuard?: string | undefined;
  /** Assignments besides status, lane and `updated_at`, over `j` and `b` (see `lockJobs`). */
  set?: string | undefined;
  /** The values of `:name` in `set` and `extraGuard`. */
  values?: Readonly<Record<string, unknown>> | undefined;
  actor: string;
  /** The data of the event. */
  data?: object | undefined;
  /** The number that each job takes, for a transition that joins its lane. Taking the numbers has locked the lanes. */
  laneNumbers?: readonly LaneNumber[] | undefined;
}

/**
 * Locks the lanes, changes the jobs that still satisfy the guard, records an event for each, and promotes the next job
 * of every lane that has lost its head. Closes the questions of jobs that end. Returns the ids of the changed jobs; the
 * others have another status or lease than when the caller read them.
 */
export async function applyTransition(tx: Queryable, schema: Schema, request: TransitionRequest): Promise<string[]> {
  const { jobs, actor, data, leaseId, laneNumbers } = request;
  const { update, events, lane, decidesCanary } = transition(request.name);
  const targets = lane === 'keep' ? [] : distinctTargets(jobs);
  if (laneNumbers === undefined) await lockTargets(tx, schema, targets);
  const assignments = [request.set, 'updated_at = now()'].filter(Boolean);
  const change = statement(
    `with b as (${lockJobs(request)}),
     changed as (${update(tenant, {
       place: 'read',
       set: assignments.join(',\n              '),
       from: 'b',
       where: 'j.id = b.id',
       returning: 'j.id, j.target_id, j.attempt, j.lease_id, j.asked, b.before_status',
     })}),
     recorded as (${insertEvents(tenant, events('changed', { actor: ':actor', data: ':data::jsonb' }))})
     select id, asked from changed`,
  );
  const rows = await change.query<{ id: string; asked: boolean | null }>(tx, schema, {
    ...request.values,
    ids: jobs.map((job) => job.id),
    actor,
    data: data === undefined ? null : JSON.stringify(data),
    leaseId,
    laneNumbers: laneNumbers && JSON.stringify(laneNumbers),
  });
  if (rows.length > 0 && decidesCanary) await concludeCanaries(tx, schema, targets, actor);
  if (rows.length > 0) await promote(tx, schema, targets);
  const asked = isTerminal(transitions[request.name].to) ? rows.filter((row) => row.asked) : [];
  await closeQuestions(tx, schema, idsOf(asked), actor);
  return idsOf(rows);
}

function idsOf(rows: readonly { id: string }[]): string[] {
  return rows.map(({ id }) => id);
}

/**
 * Selects the jobs before the change. Times are computed here, because a cluster refuses arithmetic on now() and a
 * column in an UPDATE.
 */
function lockJobs({ name, leaseId, extraGuard, laneNumbers }: TransitionRequest): string {
  const numbers = 'join jsonb_to_recordset(:laneNumbers::jsonb) as n(id uuid, lane_seq bigint) on n.id = j.id';
  return `
       select j.id,
              j.status as before_status,
              j.attempt,
              j.lane_head,
              j.target_id is null as without_lane,
              j.on_error = 'block' as blocks,
              ${firstByPriority} + j.priority as rank_by_priority,
              t.paused_at is not null and t.canary_job_id is distinct from j.id as target_paused,
              ${laneNumbers === undefined ? '' : 'n.lane_seq,'}
              case when j.held_since is null then j.expires_at else j.expires_at + (now() - j.held_since) end as expires_later
         from ${tenant}.jobs j
         left join ${tenant}.targets t on t.id = j.target_id
         ${laneNumbers === undefined ? '' : numbers}
        where j.id = any(:ids::uuid[])
          and ${transition(name).guard()}
          ${leaseId === undefined ? '' : 'and j.lease_id = :leaseId::uuid'}
          ${extraGuard === undefined ? '' : `and ${extraGuard}`}
          for update of j`;
}

/**
 * The assignments of each lane step. A job without a lane is always its own head. A head that goes to the front stays
 * head; if its target is paused, finish.ts puts it back in line (see `demotePaused`).
 */
const laneWrites: Record<LaneStep, Record<'head' | 'read', string>> = {
  keep: { head: '', read: '' },
  join: {
    head: '',
    read: `lane_head = b.lane_head and not b.target_paused,
              lane_rank = case when not b.lane_head then b.rank_by_priority when b.target_paused then 1 end,
              lane_seq = b.lane_seq`,
  },
  front: {
    head: '',
    read: `lane_head = b.lane_head and not b.target_paused,
              lane_rank = case when b.lane_head and not b.target_paused then null else 1 end`,
  },
  hold: { head: '', read: 'lane_rank = case when b.lane_head then null else 0 end' },
  holdOrLeave: {
    head: `lane_head = (j.target_id is null or j.on_error = 'block')`,
    read: `lane_head = b.without_lane or (b.lane_head and b.blocks),
              lane_rank = case when b.lane_head or not b.blocks then null else 0 end`,
  },
  leave: { head: 'lane_head = (j.target_id is null)', read: 'lane_head = b.without_lane, lane_rank = null' },
};
