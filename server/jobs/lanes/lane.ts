// Writes to lanes: locks them, takes numbers, promotes the next job to head. A transaction that changes lanes locks
// their targets first, in id order, and reads the lanes in a later statement. The snapshot of a statement is older than
// the lock it waits for, so a single statement would miss a job that was enqueued meanwhile.
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { statement, tenant } from '../../database/sql.ts';
import { isOutOfLine } from '../../database/tables/tenant-jobs.ts';
import type { Job } from '../model/job.ts';

const lockStatement = statement(`
  with locked as materialized (
    select id
      from ${tenant}.targets
     where id = any(:targetIds::text[])
     order by id
       for no key update
  )
  select count(*) from locked`);

export async function lockTargets(tx: Queryable, schema: Schema, targetIds: readonly string[]): Promise<void> {
  if (targetIds.length > 0) await lockStatement.query(tx, schema, { targetIds }, 'prepared');
}

/** The first rank of jobs that wait by priority. Rank 0 will hold the lane as its head, rank 1 is first in line. */
export const firstByPriority = 2;

/** SQL: a job of a lane that is due and has not joined the line. */
export const isDueOutOfLine = dueOutOfLine();

export function dueOutOfLine(j = ''): string {
  return `${isOutOfLine(j)} and ${j}run_at <= now()`;
}

/** Assignments to a job in line that becomes the head of its lane. */
export const becomesHead = 'lane_head = true, lane_rank = null';

/** How many jobs join each lane. */
export type LaneCounts = ReadonlyMap<string, number>;

interface NumberedLane {
  id: string;
  /** The last of the numbers that were taken. */
  lane_seq: string;
  paused_at: string | null;
}

const takeNumbers = statement(`
  with locked as (
    select id
      from ${tenant}.targets
     where id = any(:targetIds::text[])
     order by id
       for no key update
  ),
  wanted as (
    select l.id, u.count
      from locked l
      join unnest(:targetIds::text[], :counts::int[]) as u(id, count) on u.id = l.id
  )
  update ${tenant}.targets t
     set lane_seq = t.lane_seq + w.count
    from wanted w
   where t.id = w.id
  returning t.id, t.lane_seq, t.paused_at`);

interface OpenLane {
  /** The number before the first that was taken. */
  seq: bigint;
  /** The lane has no head and is not paused, so the next job becomes its head. */
  free: boolean;
  /** Jobs of this lane are due and not in line yet. They were enqueued before the jobs of this call. */
  hasDue: boolean;
}

const insertTargets = statement(`
  insert into ${tenant}.targets (id)
  select id
    from unnest(:targetIds::text[]) as u(id)
   order by id
  on conflict (id) do nothing`);

/** Locks the lanes in id order, inserts new targets, and takes `counts` numbers of each. */
async function takeLaneNumbers(tx: Queryable, schema: Schema, counts: LaneCounts): Promise<NumberedLane[]> {
  if (counts.size === 0) return [];
  const numbered = await takeKnown(tx, schema, counts, [...counts.keys()].sort());
  return [...numbered, ...(await takeMissing(tx, schema, counts, numbered))];
}

/** Locks the lanes that have a target, and takes their numbers. */
function takeKnown(tx: Queryable, schema: Schema, counts: LaneCounts, targetIds: string[]): Promise<NumberedLane[]> {
  const numbers = targetIds.map((id) => counts.get(id));
  return takeNumbers.query<NumberedLane>(tx, schema, { targetIds, counts: numbers }, 'prepared');
}

/** Inserts the targets of the other lanes, and takes their numbers. */
async function takeMissing(
  tx: Queryable,
  schema: Schema,
  counts: LaneCounts,
  numbered: readonly NumberedLane[],
): Promise<NumberedLane[]> {
  if (numbered.length === counts.size) return [];
  const known = new Set(numbered.map((lane) => lane.id));
  const missing = [...counts.keys()].filter((id) => !known.has(id)).sort();
  await insertTargets.query(tx, schema, { targetIds: missing });
  const added = await takeKnown(tx, schema, counts, missing);
  // A job from a transaction of its caller may have been paused before its target had a row.
  await promote(tx, schema, missing);
  return added;
}

const headsAndDue = statement(`
  select target_id, true as is_head
    from ${tenant}.jobs
   where target_id = any(:targetIds::text[])
     and lane_head
  union all
  select target_id, false
    from ${tenant}.jobs
   where target_id = any(:targetIds::text[])
     and ${isDueOutOfLine}`);

/** Locks the lanes, takes `counts` numbers of each, and reads whether they are free. */
export async function openLanes(tx: Queryable, schema: Schema, counts: LaneCounts): Promise<Map<string, OpenLane>> {
  const lanes = new Map<string, OpenLane>();
  if (counts.size === 0) return lanes;
  const targetIds = [...counts.keys()].sort();
  const read = () => headsAndDue.query<{ target_id: string; is_head: boolean }>(tx, schema, { targetIds }, 'prepared');
  // Both are sent at once and run one after the other, so the second sees the commits that the locks waited for.
  let [numbered, found] = await Promise.all([takeKnown(tx, schema, counts, targetIds), read()]);
  const added = await takeMissing(tx, schema, counts, numbered);
  if (added.length > 0) {
    numbered = [...numbered, ...added];
    found = await read();
  }
  const headed = new Set(found.filter((row) => row.is_head).map((row) => row.target_id));
  const due = new Set(found.filter((row) => !row.is_head).map((row) => row.target_id));
  for (const { id, lane_seq, paused_at } of numbered) {
    const seq = BigInt(lane_seq) - BigInt(counts.get(id) ?? 0);
    lanes.set(id, { seq, free: paused_at === null && !headed.has(id), hasDue: due.has(id) });
  }
  return lanes;
}

interface PromotedJob {
  id: string;
  target_id: string;
  status: string;
  remote: boolean;
}

const promoteStatement = statement(`
  with next as (
    select (
             select j.id
               from ${tenant}.jobs j
              where j.target_id = t.id
                and j.lane_rank is not null
              order by j.lane_rank, j.lane_seq
              limit 1
           ) as id
      from ${tenant}.targets t
     where t.id = any(:targetIds::text[])
       and t.paused_at is null
       and not exists (select 1 from ${tenant}.jobs h where h.target_id = t.id and h.lane_head)
  )
  update ${tenant}.jobs
     set ${becomesHead}
   where id = any(array(select id from next where id is not null))
  returning id, target_id, status, remote`);

/** Promotes the next job of each unpaused lane without a head. The targets must be locked. */
export async function promote(tx: Queryable, schema: Schema, targetIds: readonly string[]): Promise<PromotedJob[]> {
  if (targetIds.length === 0) return [];
  return promoteStatement.query<PromotedJob>(tx, schema, { targetIds }, 'prepared');
}

const demoteStatement = statement(`
  update ${tenant}.jobs j
     set lane_head = false,
         lane_rank = 1,
         gated = j.limit_keys is not null
    from ${tenant}.targets t
   where t.id = any(:targetIds::text[])
     and t.paused_at is not null
     and j.target_id = t.id
     and j.lane_head
     and j.id is distinct from t.canary_job_id
     and j.status = 'QUEUED'`);

/** Puts the heads of paused targets back in line, first, except canaries. The targets must be locked. */
export async function demotePaused(tx: Queryable, schema: Schema, targetIds: readonly string[]): Promise<void> {
  if (targetIds.length > 0) await demoteStatement.query(tx, schema, { targetIds });
}

const lockedStatement = statement(`
  with free as materialized (
    select id
      from ${tenant}.targets
     where id = any(:targetIds::text[])
       for no key update skip locked
  )
  select id
    from ${tenant}.targets
   where id = any(:targetIds::text[])
     and id <> all(array(select id from free))`);

/** Returns the lanes that another transaction has locked, without waiting. */
export async function findLockedLanes(
  db: Queryable,
  schema: Schema,
  targetIds: readonly string[],
): Promise<Set<string>> {
  if (targetIds.length === 0) return new Set();
  const rows = await lockedStatement.query<{ id: string }>(db, schema, { targetIds });
  return new Set(rows.map((row) => row.id));
}

const headlessStatement = statement(`
  select t.id,
         t.paused_at is null
           and exists (select 1 from ${tenant}.jobs w where w.target_id = t.id and w.lane_rank is not null)
           and not exists (select 1 from ${tenant}.jobs h where h.target_id = t.id and h.lane_head) as headless
    from (select id, paused_at from ${tenant}.targets where id > :from order by id limit :limit) t
   order by t.id`);

/** Finds lanes with a line but no head, among the next `limit` targets. None should exist. */
export async function findHeadlessLanes(
  db: Queryable,
  schema: Schema,
  from: string,
  limit: number,
): Promise<{ headless: string[]; next: string | undefined }> {
  const rows = await headlessStatement.query<{ id: string; headless: boolean }>(db, schema, { from, limit });
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

export interface LaneNumber {
  id: string;
  lane_seq: string;
}

/** Takes a number in its lane for each job, in the order of `due`. A job without a lane gets 0. */
export async function numberJobs(
  tx: Queryable,
  schema: Schema,
  due: readonly Pick<Job, 'id' | 'targetId'>[],
): Promise<LaneNumber[]> {
  const counts = new Map<string, number>();
  for (const { targetId } of due) if (targetId !== null) counts.set(targetId, (counts.get(targetId) ?? 0) + 1);
  const lanes = await takeLaneNumbers(tx, schema, counts);
  const last = new Map(lanes.map((lane) => [lane.id, BigInt(lane.lane_seq) - BigInt(counts.get(lane.id) ?? 0)]));
  return due.map(({ id, targetId }) => {
    const before = targetId === null ? undefined : last.get(targetId);
    if (targetId === null || before === undefined) return { id, lane_seq: '0' };
    last.set(targetId, before + 1n);
    return { id, lane_seq: String(before + 1n) };
  });
}
