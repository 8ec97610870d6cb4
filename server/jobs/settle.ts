// How an attempt ends: the holder's (or the sweeper's) outcome, fenced by job, lease and status.
// Many outcomes of a tenant are settled in one transaction; zero rows for a job means it was lost.
import { type Database, type Queryable, retryConflicts } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import { encodeUuids } from '../database/uuid-array.ts';
import { insertEvents } from '../events/record.ts';
import { type Claimed, type ClaimRequest, claimNext } from './claim.ts';
import { type CancelDetail, type StopIntent, stoppedByUser } from './job.ts';
import { demotePaused, distinctTargets, lockTargets, promote } from './lane.ts';
import {
  completeBare,
  entry,
  entryOf,
  isEmpty,
  type Outcome,
  type OutcomeKind,
  phaseWrites,
  unlessAsked,
  writes,
} from './outcome.ts';
import { become, guard, type TransitionName, transitions } from './states.ts';

export interface Settlement {
  jobId: string;
  leaseId: string;
  targetId: string | null;
  outcome: Outcome;
}

export interface Settled {
  /** Job ids whose outcome was accepted. All others were no longer ours. */
  accepted: Set<string>;
  /** The next jobs of the lanes that moved on, if they were asked for. */
  claimed: Claimed | undefined;
  /** A lane moved on or a job went back: there may be something to claim. */
  runnable: boolean;
}

export interface SettleOptions {
  actor: string;
  /** Leases of which nothing is left to settle: they are released in the same transaction. */
  endedLeases?: string[];
  /** Takes the next jobs of the lanes that move on, in the same transaction. */
  claimNext?: ClaimRequest | undefined;
}

export async function settle(
  db: Database,
  schema: Schema,
  items: Settlement[],
  options: SettleOptions,
): Promise<Settled> {
  return retryConflicts(() => {
    const first = items[0];
    const alone =
      first !== undefined && items.every((i) => i.targetId === null && i.outcome.kind === first.outcome.kind);
    // Without lanes and with one kind of outcome there is nothing to hold together: one statement.
    if (alone) return settleAlone(db, schema, first.outcome.kind, items, options);
    return db.transaction((tx) => settleIn(tx, schema, items, options));
  });
}

async function settleAlone(
  db: Database,
  schema: Schema,
  kind: OutcomeKind,
  items: Settlement[],
  options: SettleOptions,
): Promise<Settled> {
  const written = await settleKind(db, schema, kind, items, options);
  const left = overruled(items, written);
  if (left.length > 0) written.push(...(await db.transaction((tx) => settleAsked(tx, schema, left, options.actor))));
  return { accepted: idsOf(written), claimed: undefined, runnable: items.some(goesBack) };
}

export async function settleIn(
  tx: Queryable,
  schema: Schema,
  items: Settlement[],
  options: SettleOptions,
): Promise<Settled> {
  const targets = distinctTargets(items);
  const paused = await lockTargets(tx, schema, targets);
  const written: Written[] = [];
  let ended = options.endedLeases;
  for (const [kind, group] of groupByKind(items)) {
    written.push(
      ...(await settleKind(tx, schema, kind, group, { actor: options.actor, ...(ended && { endedLeases: ended }) })),
    );
    ended = undefined;
  }
  const left = overruled(items, written);
  if (left.length > 0) written.push(...(await settleAsked(tx, schema, left, options.actor)));
  if (items.some(goesBack)) await demotePaused(tx, schema, targets);
  const accepted = idsOf(written);
  const leaving = new Set(written.filter((row) => !row.holds).map((row) => row.id));
  const free = distinctTargets(items.filter((item) => leaving.has(item.jobId))).filter((id) => !paused.has(id));
  const claimed = options.claimNext && (await claimNext(tx, schema, options.claimNext, free));
  const taken = new Set(claimed?.jobs.map((job) => job.targetId));
  const promoted = await promote(
    tx,
    schema,
    targets.filter((id) => !taken.has(id)),
  );
  return { accepted, claimed, runnable: promoted.length > 0 || items.some(goesBack) };
}

/** A job whose outcome was accepted. */
interface Written {
  id: string;
  /** It is still the head of its lane. */
  holds: boolean;
}

function idsOf(written: Written[]): Set<string> {
  return new Set(written.map((row) => row.id));
}

function overruled(items: Settlement[], written: Written[]): Settlement[] {
  if (written.length === items.length) return [];
  const done = idsOf(written);
  return items.filter((item) => unlessAsked[item.outcome.kind] !== undefined && !done.has(item.jobId));
}

/** Ends the attempts the way people asked, where that is why their own outcome was refused. */
async function settleAsked(tx: Queryable, schema: Schema, items: Settlement[], actor: string): Promise<Written[]> {
  const leases = new Map(items.map((item) => [item.jobId, item.leaseId]));
  const rows = await tx.query<{ id: string; lease_id: string; intent: StopIntent; detail: CancelDetail | null }>(
    `select id, lease_id, cancel_intent as intent, cancel_detail as detail from ${schema}.jobs
      where id = any($1::uuid[]) and status = 'RUNNING' and cancel_intent is not null order by id for update`,
    [[...leases.keys()]],
  );
  const written: Written[] = [];
  for (const intent of ['pause', 'cancel'] as const) {
    const kind = intent === 'pause' ? 'stopPaused' : 'stopCanceled';
    const asked = rows.filter((row) => row.intent === intent && leases.get(row.id) === row.lease_id);
    if (asked.length === 0) continue;
    const settlements = asked.map((row) => ({
      jobId: row.id,
      leaseId: row.lease_id,
      targetId: null,
      outcome: { kind, message: stoppedByUser[intent], by: row.detail ?? undefined } as Outcome,
    }));
    written.push(...(await settleKind(tx, schema, kind, settlements, { actor })));
  }
  return written;
}

function goesBack(item: Settlement): boolean {
  return item.outcome.kind === 'giveBack' || item.outcome.kind === 'recover';
}

function groupByKind(items: Settlement[]): Map<OutcomeKind, Settlement[]> {
  const groups = new Map<OutcomeKind, Settlement[]>();
  for (const item of items) {
    const group = groups.get(item.outcome.kind);
    if (group) group.push(item);
    else groups.set(item.outcome.kind, [item]);
  }
  return groups;
}

/** The planner would weigh each of a thousand ids by itself, and come to the same plan. */
const ids = 'array(select unnest($1::uuid[]))';

async function settleKind(
  tx: Queryable,
  schema: Schema,
  kind: OutcomeKind,
  items: Settlement[],
  options: SettleOptions,
): Promise<Written[]> {
  const transition: TransitionName = kind;
  const lease = items[0]?.leaseId;
  const oneLease = items.every((item) => item.leaseId === lease);
  const bare = kind === 'complete' && items.every((item) => isEmpty(item.outcome));
  const entries: Record<string, object> = {};
  let told = false;
  // With one fence and no results there is nothing to look up.
  for (const item of bare && oneLease ? [] : items) {
    const own = entryOf(item.outcome);
    told ||= own.told !== undefined;
    entries[item.jobId] = { lease: item.leaseId, ...own };
  }
  // Times are computed in a SELECT: a cluster refuses arithmetic on now() and a column in an UPDATE.
  const later = kind === 'retry' || kind === 'recoverLater';
  const given = `given as (
       select key::uuid as id, now() + (value ->> 'delay')::float8 * interval '1 millisecond' as due_at
         from jsonb_each($2::jsonb)),`;
  const phases = phaseWrites[kind];
  const rows = await tx.query<{ id: string | null; accepted: number; holds: boolean }>(
    `with ${later ? given : ''}
     settled as (
       update ${schema}.jobs j set ${become(transition)}, ${bare ? completeBare : writes[kind]} lease_owner = null,
         cancel_requested = false, cancel_intent = null, cancel_detail = null, updated_at = now()
         ${later ? 'from given g' : ''}
        where ${later ? 'j.id = g.id' : `j.id = any(${ids})`} and ${guard(transition, 'j')} ${unlessAsked[kind] ?? ''}
          and j.lease_id = ${oneLease ? '$5::uuid' : `(${entry} ->> 'lease')::uuid`}
       returning j.id, j.target_id, j.attempt, j.lease_id, j.lane_head),
     ${phases === undefined ? '' : `phased as (update ${schema}.phases p ${phases}),`}
     ended as (delete from ${schema}.leases where id = any($4::uuid[]) and kind = 'local'),
     told as (${insertEvents(schema, {
       source: 'settled',
       type: `'${transitions[transition].event}'`,
       actor: '$3',
       from: `'RUNNING'`,
       to: `'${transitions[transition].to}'`,
       ...(told && { data: `$2::jsonb -> id::text -> 'told'` }),
     })})
     select s.id, c.accepted, s.lane_head and s.target_id is not null as holds from (select count(*)::int as accepted from settled) c
       left join settled s on c.accepted < $6::int or (s.lane_head and s.target_id is not null)
      where $1::uuid[] is not null and $2::jsonb is not null and $5::uuid is not null`,
    [
      encodeUuids(items.map((item) => item.jobId)),
      JSON.stringify(entries),
      options.actor,
      options.endedLeases ?? [],
      lease,
      items.length,
    ],
    'often',
  );
  return writtenOf(items, rows);
}

/** A thousand jobs that end as they should need no answer each: only those that hold are told, or all if some were refused. */
function writtenOf(items: Settlement[], rows: { id: string | null; accepted: number; holds: boolean }[]): Written[] {
  const accepted = rows[0]?.accepted ?? 0;
  const told = new Map(rows.flatMap(({ id, holds }) => (id === null ? [] : [[id, holds] as const])));
  const known = accepted < items.length ? items.filter((item) => told.has(item.jobId)) : items;
  return known.map(({ jobId }) => ({ id: jobId, holds: told.get(jobId) ?? false }));
}
