// Reads of lanes: the head, the hold, the jobs in line, of one target or of a page of them. Every read is bounded: a page
// costs what it shows, however many jobs the lanes have.
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { hasNoLease } from '../claim/lease.ts';
import { type Hold, holdOf } from '../model/hold.ts';
import { holdsLane, type Job, type JobError, type StoredHold } from '../model/job.ts';
import type { Status } from '../model/states.ts';
import { ownedStatuses } from '../model/states.ts';
import { type Target, targetColumns } from './target.ts';

type LaneSelection = 'all' | 'held' | 'paused' | 'running';

export interface LaneRequest {
  selection: LaneSelection;
  /** Part of the target's id. */
  search?: string | undefined;
  /** Targets behind this id. */
  after: string;
  limit: number;
}

export interface LaneRow {
  target: Target;
  head: HeadJob | undefined;
  next: LaneJob[];
  waiting: number;
  oldestWaitingAt: string | null;
}

interface HeadJob extends LaneJob {
  progress: number | null;
  progress_message: string | null;
  attempt: number;
  started_at: string | null;
}

const shownNext = 12;
// Looking further for one page would be a scan; the page then ends early and has a next one.
const maxLookedAt = 20_000;
// More than a screen shows of lanes that run or are held; beyond it a search narrows them.
const maxActive = 5_000;

export async function listLanes(
  db: Queryable,
  schema: Schema,
  request: LaneRequest,
): Promise<{ lanes: LaneRow[]; next: string | undefined }> {
  const { targets, next } = await pageOfTargets(db, schema, request);
  const ids = targets.map((target) => target.id);
  const [heads, lines] = await Promise.all([readHeadJobs(db, schema, ids), readLines(db, schema, ids)]);
  return {
    lanes: targets.map((target) => {
      const line = lines.get(target.id);
      return {
        target,
        head: heads.get(target.id),
        next: line?.next ?? [],
        waiting: line?.waiting ?? 0,
        oldestWaitingAt: line?.oldest ?? null,
      };
    }),
    next,
  };
}

async function pageOfTargets(db: Queryable, schema: Schema, request: LaneRequest) {
  const { selection, search, after, limit } = request;
  const source = sources(schema)[selection];
  const rows = await db.query<Target & { looked_at: number; looked_to: string | null }>(
    `with looked as (select * from (${source}) s where s.id > $1 order by s.id limit $2),
     found as (
       select * from looked where $3::text is null or position(lower($3::text) in lower(id)) > 0 order by id limit $4),
     whole as (select count(*)::int as looked_at, max(id) as looked_to from looked)
     select w.looked_at, w.looked_to, f.* from whole w left join found f on true order by f.id`,
    [after, maxLookedAt, search ?? null, limit + 1],
  );
  const [whole] = rows;
  const found = rows.filter((row) => row.id !== null).map(({ looked_at, looked_to, ...target }) => target);
  const targets = found.slice(0, limit);
  if (found.length > limit) return { targets, next: targets.at(-1)?.id };
  const more = (whole?.looked_at ?? 0) >= maxLookedAt;
  return { targets, next: more ? (whole?.looked_to ?? undefined) : undefined };
}

/** SQL for the targets of each selection, through the partial indexes that the engine has anyway. */
function sources(schema: Schema): Record<LaneSelection, string> {
  const named = (ids: string) => `select ${targetColumns('t')} from ${schema}.targets t where t.id in (${ids})`;
  const held = (status: string) =>
    `(select target_id from ${schema}.jobs where status = '${status}' and lane_head and target_id is not null limit ${maxActive})`;
  const owned = ownedStatuses.map((status) => `'${status}'`).join(', ');
  return {
    all: `select ${targetColumns('t')} from ${schema}.targets t`,
    paused: `select ${targetColumns('t')} from ${schema}.targets t where t.paused_at is not null`,
    held: named(`${held('PAUSED')} union all ${held('ERROR')}`),
    running: named(
      `select j.target_id from (select unnest(job_ids) as id from ${schema}.leases where state = 'ACTIVE' limit ${maxActive}) l
         join ${schema}.jobs j on j.id = l.id where j.target_id is not null and j.status in (${owned})`,
    ),
  };
}

async function readHeadJobs(db: Queryable, schema: Schema, ids: readonly string[]): Promise<Map<string, HeadJob>> {
  const rows = await db.query<HeadJob>(
    `select ${laneColumns}, j.progress, j.progress_message, j.attempt, j.started_at from ${schema}.jobs j
      where j.target_id = any($1::text[]) and j.lane_head`,
    [ids],
  );
  return new Map(rows.map((row) => [row.target_id, row]));
}

interface Line {
  next: LaneJob[];
  waiting: number;
  oldest: string | null;
}

async function readLines(db: Queryable, schema: Schema, ids: readonly string[]): Promise<Map<string, Line>> {
  const counts = await db.query<{ id: string; waiting: number; oldest: string | null }>(
    `select t.id, w.waiting, w.oldest from unnest($1::text[]) as t(id) cross join lateral (
       select count(*)::int as waiting, min(created_at) as oldest from (
         select created_at from ${schema}.jobs where target_id = t.id and lane_rank is not null limit $2) c) w`,
    [ids, maxCounted + 1],
  );
  const busy = counts.filter((row) => row.waiting > 0).map((row) => row.id);
  const next = await db.query<LaneJob>(
    `select n.* from unnest($1::text[]) as t(id) cross join lateral (
       select ${laneColumns} from ${schema}.jobs j where j.target_id = t.id and j.lane_rank is not null
        order by j.lane_rank, j.lane_seq limit $2) n`,
    [busy, shownNext],
  );
  const lines = new Map(
    counts.map((row) => [row.id, { next: [] as LaneJob[], waiting: row.waiting, oldest: row.oldest }]),
  );
  for (const job of next) lines.get(job.target_id)?.next.push(job);
  return lines;
}

export interface LaneJob {
  id: string;
  target_id: string;
  type: string;
  status: Status;
  on_error: Job['onError'];
  priority: number;
  lane_rank: number | null;
  held_since: string | null;
  run_at: string;
  created_at: string;
  lease_owner: string | null;
  error: JobError | null;
  hold: StoredHold | null;
  /** Of a head: it is owned, but not by an active lease. */
  unleased?: boolean;
}

export const laneColumns =
  'j.id, j.target_id, j.type, j.status, j.on_error, j.priority, j.lane_rank, j.held_since, j.run_at, j.created_at, j.lease_owner, j.error, j.hold';

export interface Lane {
  head: LaneJob | undefined;
  /** Next in line, in the order in which they will run. */
  next: LaneJob[];
  /** Never above `maxCounted` + 1. */
  waiting: number;
}

// Counting a million rows is expensive, and "more than a thousand" says enough.
export const maxCounted = 1000;

export async function readLane(db: Queryable, schema: Schema, targetId: string, show = 20): Promise<Lane> {
  const heads = await readHeads(db, schema, [targetId]);
  const next = await db.query<LaneJob>(
    `select ${laneColumns} from ${schema}.jobs j where j.target_id = $1 and j.lane_rank is not null
      order by j.lane_rank, j.lane_seq limit $2`,
    [targetId, show],
  );
  const waiting = next.length < show ? next.length : await countWaiting(db, schema, targetId);
  return { head: heads.get(targetId), next, waiting };
}

/** The heads of many lanes in one statement. */
export async function readHeads(
  db: Queryable,
  schema: Schema,
  targetIds: readonly string[],
): Promise<Map<string, LaneJob>> {
  const rows = await db.query<LaneJob>(
    `select ${laneColumns}, ${hasNoLease(schema)} as unleased from ${schema}.jobs j
      where j.target_id = any($1::text[]) and j.lane_head`,
    [targetIds],
  );
  return new Map(rows.map((row) => [row.target_id, row]));
}

async function countWaiting(db: Queryable, schema: Schema, targetId: string): Promise<number> {
  const [row] = await db.query<{ count: number }>(
    `select count(*)::int as count from
       (select 1 from ${schema}.jobs where target_id = $1 and lane_rank is not null limit $2) w`,
    [targetId, maxCounted + 1],
  );
  return row?.count ?? 0;
}

export function isHold(job: LaneJob): boolean {
  return holdsLane({ status: job.status, targetId: job.target_id, onError: job.on_error });
}

/** Why the job holds its lane, if it does. */
export function holdOfLaneJob(job: LaneJob): Hold | undefined {
  return holdOf({ ...job, heldSince: job.held_since });
}
