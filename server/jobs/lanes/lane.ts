// The lane's two moves. Whoever changes a lane locks its target's row first, in id order, and looks
// at the lane in a later statement: a statement's snapshot is older than the lock it waits for, and
// a job enqueued meanwhile would be missed for ever.
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';

export async function lockTargets(tx: Queryable, schema: Schema, targetIds: readonly string[]): Promise<void> {
  if (targetIds.length === 0) return;
  await tx.query(
    `with locked as materialized (
       select id from ${schema}.targets where id = any($1::text[]) order by id for no key update)
     select count(*) from locked`,
    [targetIds],
    'often',
  );
}

/** Ranks in line: 0 holds when its turn comes, 1 goes first, and from here on by priority. */
export const firstByPriority = 2;

/** What is written to a job in line whose turn has come. */
export const becomesHead = 'lane_head = true, lane_rank = null';

export interface NumberedLane {
  id: string;
  /** The last of the numbers taken. */
  lane_seq: string;
  paused_at: string | null;
}

/** Locks the lanes in id order and takes `counts[i]` places of each. Unknown targets are left out. */
export async function takeLaneNumbers(
  tx: Queryable,
  schema: Schema,
  targetIds: readonly string[],
  counts: readonly (number | undefined)[],
): Promise<NumberedLane[]> {
  return tx.query<NumberedLane>(
    `with locked as (select id from ${schema}.targets where id = any($1::text[]) order by id for no key update),
          wanted as (select l.id, u.count from locked l join unnest($1::text[], $2::int[]) as u(id, count) on u.id = l.id)
     update ${schema}.targets t set lane_seq = t.lane_seq + w.count from wanted w where t.id = w.id
     returning t.id, t.lane_seq, t.paused_at`,
    [targetIds, counts],
    'often',
  );
}

export interface PromotedJob {
  id: string;
  target_id: string;
  status: string;
  remote: boolean;
}

/** Makes the next in line of each headless, unpaused lane its head. The targets must be locked. */
export async function promote(tx: Queryable, schema: Schema, targetIds: readonly string[]): Promise<PromotedJob[]> {
  if (targetIds.length === 0) return [];
  return tx.query<PromotedJob>(
    `with next as (
       select (select j.id from ${schema}.jobs j
                where j.target_id = t.id and j.lane_rank is not null
                order by j.lane_rank, j.lane_seq limit 1) as id
         from ${schema}.targets t
        where t.id = any($1::text[]) and t.paused_at is null
          and not exists (select 1 from ${schema}.jobs h where h.target_id = t.id and h.lane_head))
     update ${schema}.jobs set ${becomesHead}
      where id = any(array(select id from next where id is not null))
     returning id, target_id, status, remote`,
    [targetIds],
    'often',
  );
}

/** A paused target has no head that could be claimed: it goes back, first in line. The targets must be locked. */
export async function demotePaused(tx: Queryable, schema: Schema, targetIds: readonly string[]): Promise<void> {
  if (targetIds.length === 0) return;
  await tx.query(
    `update ${schema}.jobs j set lane_head = false, lane_rank = 1 from ${schema}.targets t
      where t.id = any($1::text[]) and t.paused_at is not null and j.target_id = t.id and j.lane_head and j.status = 'QUEUED'`,
    [targetIds],
  );
}

/** Which of these lanes another transaction has locked. Waits for none of them. */
export async function findLockedLanes(
  db: Queryable,
  schema: Schema,
  targetIds: readonly string[],
): Promise<Set<string>> {
  if (targetIds.length === 0) return new Set();
  const rows = await db.query<{ id: string }>(
    `with free as materialized (select id from ${schema}.targets where id = any($1::text[]) for no key update skip locked)
     select id from ${schema}.targets where id = any($1::text[]) and id <> all(array(select id from free))`,
    [targetIds],
  );
  return new Set(rows.map((row) => row.id));
}

/** Lanes with a line but no head, among the next `limit` targets. There should never be one. */
export async function findHeadlessLanes(
  db: Queryable,
  schema: Schema,
  from: string,
  limit: number,
): Promise<{ headless: string[]; next: string | undefined }> {
  const rows = await db.query<{ id: string; headless: boolean }>(
    `select t.id, t.paused_at is null
            and exists (select 1 from ${schema}.jobs w where w.target_id = t.id and w.lane_rank is not null)
            and not exists (select 1 from ${schema}.jobs h where h.target_id = t.id and h.lane_head) as headless
       from (select id, paused_at from ${schema}.targets where id > $1 order by id limit $2) t order by t.id`,
    [from, limit],
  );
  return {
    headless: rows.filter((row) => row.headless).map((row) => row.id),
    next: rows.length < limit ? undefined : rows.at(-1)?.id,
  };
}

export function distinctTargets(jobs: Iterable<{ targetId: string | null }>): string[] {
  const ids = new Set<string>();
  for (const job of jobs) if (job.targetId !== null) ids.add(job.targetId);
  return [...ids].sort();
}
