// How an attempt ends: the holder's (or the sweeper's) outcome, fenced by job, lease and status.
// Many outcomes of a tenant are settled in one transaction; zero rows for a job means it was lost.
import { type Database, type Queryable, retryConflicts } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { encodeUuids } from '../../database/uuid-array.ts';
import { insertEvents } from '../../events/log/record.ts';
import { type Claimed, type NamedClaim, toClaimed } from '../claim/claim.ts';
import type { ClaimedRow } from '../claim/claimed-job.ts';
import { endLeases } from '../claim/lease.ts';
import { advanceLanes, noLanes } from '../lanes/advance.ts';
import { demotePaused, distinctTargets, lockTargets } from '../lanes/lane.ts';
import { type CancelDetail, type StopIntent, stoppedByUser } from '../model/job.ts';
import { become, guard, type TransitionName, transitions } from '../model/states.ts';
import {
  completeBare,
  entry,
  entryOf,
  isEmpty,
  type Outcome,
  type OutcomeKind,
  phaseWrites,
  stopRequestGuard,
  writes,
} from './outcome.ts';

export interface FinishedAttempt {
  jobId: string;
  leaseId: string;
  targetId: string | null;
  outcome: Outcome;
}

export interface FinishResult {
  /** Job ids whose outcome was accepted. All others were no longer ours. */
  accepted: Set<string>;
  /** The next jobs of the lanes that moved on, if they were asked for. */
  claimed: Claimed | undefined;
  /** A lane moved on or a job went back: there may be something to claim. */
  runnable: boolean;
}

export interface FinishOptions {
  actor: string;
  /** Leases of which the caller has nothing left to settle: released in the same transaction, unless a RUNNING job refers to them. */
  endedLeases?: string[];
  /** Takes the next jobs of the lanes that move on, in the same transaction. */
  claimNext?: NamedClaim | undefined;
}

export async function finishAttempts(
  db: Database,
  schema: Schema,
  items: FinishedAttempt[],
  options: FinishOptions,
): Promise<FinishResult> {
  const kind = items[0]?.outcome.kind;
  // Without lanes and with one kind of outcome there is nothing to hold together: one statement.
  if (items.every((item) => item.targetId === null && item.outcome.kind === kind)) {
    const written = await retryConflicts(() => write(db, schema, items, options));
    const left = supersededByStopRequest(items, written);
    if (left.length === 0) return toFinishResult(items, written);
    const asked = await retryConflicts(() => db.transaction((tx) => finishAsRequested(tx, schema, left, options)));
    return toFinishResult(items, merge([written, asked]));
  }
  // Where no outcome can be overruled, no answer decides what is sent next.
  if (items.every((item) => stopRequestGuard[item.outcome.kind] === undefined)) {
    return toFinishResult(
      items,
      await retryConflicts(() => db.pipelinedTransaction((tx) => write(tx, schema, items, options))),
    );
  }
  return retryConflicts(() => db.transaction((tx) => finishAttemptsIn(tx, schema, items, options)));
}

export async function finishAttemptsIn(
  tx: Queryable,
  schema: Schema,
  items: FinishedAttempt[],
  options: FinishOptions,
): Promise<FinishResult> {
  const written = await write(tx, schema, items, options);
  const left = supersededByStopRequest(items, written);
  if (left.length === 0) return toFinishResult(items, written);
  return toFinishResult(items, merge([written, await finishAsRequested(tx, schema, left, options)]));
}

interface Written {
  /** The ids of the jobs whose outcome was accepted. */
  accepted: Set<string>;
  claimed: Claimed | undefined;
  /** A lane has another head, which did not start. */
  promoted: boolean;
}

function merge(parts: Written[]): Written {
  const [first, ...others] = parts;
  if (first === undefined) return { accepted: new Set(), claimed: undefined, promoted: false };
  for (const part of others) for (const id of part.accepted) first.accepted.add(id);
  return {
    accepted: first.accepted,
    claimed: parts.find((part) => part.claimed !== undefined)?.claimed,
    promoted: parts.some((part) => part.promoted),
  };
}

function toFinishResult(items: FinishedAttempt[], { accepted, claimed, promoted }: Written): FinishResult {
  return { accepted, claimed, runnable: promoted || items.some(isRequeued) };
}

/** All outcomes, and how their lanes go on. Everything is sent before the first answer comes. */
async function write(
  tx: Queryable,
  schema: Schema,
  items: FinishedAttempt[],
  options: FinishOptions,
): Promise<Written> {
  const targets = distinctTargets(items);
  const groups = [...groupByKind(items)].sort(([, a], [, b]) => b.length - a.length);
  // The next jobs are claimed with the largest group. Leases end with the last: it sees what those before it wrote.
  // What cannot be said is found out before anything is sent.
  const statements = groups.map(([kind, group], n) =>
    outcomeStatement(schema, kind, group, {
      actor: options.actor,
      ...(n === 0 && { claimNext: options.claimNext }),
      ...(n === groups.length - 1 && options.endedLeases && { endedLeases: options.endedLeases }),
    }),
  );
  const locked = lockTargets(tx, schema, targets);
  const written = statements.map(async ({ text, values, read }) =>
    read(await tx.query<FinishRow>(text, values, 'often')),
  );
  const demoted = items.some(isRequeued) ? demotePaused(tx, schema, targets) : undefined;
  const [parts] = await Promise.all([Promise.all(written), locked, demoted]);
  return merge(parts);
}

/** Outcomes that may have been refused because people had asked for another end. */
function supersededByStopRequest(items: FinishedAttempt[], { accepted }: Written): FinishedAttempt[] {
  if (accepted.size === items.length) return [];
  return items.filter((item) => stopRequestGuard[item.outcome.kind] !== undefined && !accepted.has(item.jobId));
}

/** Ends those attempts the way people asked. */
async function finishAsRequested(
  tx: Queryable,
  schema: Schema,
  items: FinishedAttempt[],
  { actor, endedLeases = [] }: FinishOptions,
): Promise<Written> {
  const rows = await tx.query<{ id: string; lease_id: string; intent: StopIntent; detail: CancelDetail | null }>(
    `select id, lease_id, cancel_intent as intent, cancel_detail as detail from ${schema}.jobs
      where id = any($1::uuid[]) and status = 'RUNNING' and cancel_intent is not null order by id for update`,
    [items.map((item) => item.jobId)],
  );
  const byId = new Map(rows.map((row) => [row.id, row]));
  const asked = items.flatMap((item): FinishedAttempt[] => {
    const row = byId.get(item.jobId);
    if (row?.lease_id !== item.leaseId) return [];
    const kind = row.intent === 'pause' ? 'stopPaused' : 'stopCanceled';
    const { handler } = item.outcome;
    return [{ ...item, outcome: { kind, message: stoppedByUser[row.intent], by: row.detail ?? undefined, handler } }];
  });
  return write(tx, schema, asked, { actor, endedLeases });
}

function isRequeued(item: FinishedAttempt): boolean {
  return item.outcome.kind === 'requeue' || item.outcome.kind === 'recover';
}

function groupByKind(items: FinishedAttempt[]): Map<OutcomeKind, FinishedAttempt[]> {
  const groups = new Map<OutcomeKind, FinishedAttempt[]>();
  for (const item of items) {
    const group = groups.get(item.outcome.kind);
    if (group) group.push(item);
    else groups.set(item.outcome.kind, [item]);
  }
  return groups;
}

/** The planner would weigh each of a thousand ids by itself, and come to the same plan. */
const ids = 'array(select unnest($1::uuid[]))';

/** A thousand jobs that end as they should need no answer each: ids are told only if some were refused. */
interface FinishSummary {
  accepted: number;
  ids: string[] | null;
  promoted: boolean;
}

interface OutcomeStatement {
  text: string;
  values: unknown[];
  read(rows: FinishRow[]): Written;
}

/** One row tells of all; the others are jobs that start. */
type FinishRow = ClaimedRow & { told: FinishSummary | null };

function outcomeStatement(
  schema: Schema,
  kind: OutcomeKind,
  items: FinishedAttempt[],
  options: FinishOptions,
): OutcomeStatement {
  const transition: TransitionName = kind;
  const lease = items[0]?.leaseId;
  const oneLease = items.every((item) => item.leaseId === lease);
  const bare = kind === 'complete' && items.every((item) => isEmpty(item.outcome));
  const entries: Record<string, object> = {};
  let told = false;
  // With one fence and no results there is nothing to look up.
  for (const item of bare && oneLease ? [] : items) {
    const own = entryOf(item.outcome);
    told ||= own.eventData !== undefined;
    entries[item.jobId] = { lease: item.leaseId, ...own };
  }
  // Times are computed in a SELECT: a cluster refuses arithmetic on now() and a column in an UPDATE.
  const later = kind === 'retry' || kind === 'recoverLater';
  const given = `given as (
       select key::uuid as id, now() + (value ->> 'delay')::float8 * interval '1 millisecond' as due_at
         from jsonb_each($2::jsonb)),`;
  const phases = phaseWrites[kind];
  const next = items.some((item) => item.targetId !== null) ? advanceLanes(schema, options.claimNext) : noLanes;
  return {
    text: `with ${later ? given : ''}
     settled as (
       update ${schema}.jobs j set ${become(transition)}, ${bare ? completeBare : writes[kind]} lease_owner = null,
         cancel_requested = false, cancel_intent = null, cancel_detail = null, updated_at = now()
         ${later ? 'from given g' : ''}
        where ${later ? 'j.id = g.id' : `j.id = any(${ids})`} and ${guard(transition, 'j')} ${stopRequestGuard[kind] ?? ''}
          and j.lease_id = ${oneLease ? '$5::uuid' : `(${entry} ->> 'lease')::uuid`}
       returning j.id, j.target_id, j.attempt, j.lease_id, j.lane_head, j.lane_seq, j.priority),
     ${phases === undefined ? '' : `phased as (update ${schema}.phases p ${phases}),`}
     ${endLeases(schema, '$4::uuid[]', 'settled')},
     ${next.ctes}
     told as (${insertEvents(
       schema,
       {
         source: 'settled',
         type: `'${transitions[transition].event}'`,
         actor: '$3',
         from: `'RUNNING'`,
         to: `'${transitions[transition].to}'`,
         ...(told && { data: `$2::jsonb -> id::text -> 'eventData'` }),
       },
       ...next.events,
     )})
     ${next.started}
     select ${next.blank} jsonb_build_object('accepted', accepted, 'promoted', ${next.promoted},
         'ids', case when accepted < $6::int then (select jsonb_agg(id) from settled) end) as told
       from (select count(*)::int as accepted from settled) c
      where $1::uuid[] is not null and $2::jsonb is not null and $5::uuid is not null`,
    values: [
      encodeUuids(items.map((item) => item.jobId)),
      JSON.stringify(entries),
      options.actor,
      options.endedLeases ?? [],
      lease,
      items.length,
      ...next.values,
    ],
    read: (rows) => writtenOf(items, rows, options.claimNext),
  };
}

function writtenOf(items: FinishedAttempt[], rows: FinishRow[], request: NamedClaim | undefined): Written {
  const told = rows.find((row) => row.told !== null)?.told;
  const accepted = told?.ids ?? (told?.accepted === items.length ? items.map((item) => item.jobId) : []);
  const started = rows.filter((row) => row.told === null);
  const claimed = request && toClaimed(started, 'start', request.leaseId, request.owner);
  return { accepted: new Set(accepted), claimed, promoted: told?.promoted ?? false };
}
