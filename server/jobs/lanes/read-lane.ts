// Reads of a target's lane: its head, its hold, the jobs in line. Every read is bounded.
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { hasNoLease } from '../claim/lease.ts';
import { type Hold, holdOf } from '../model/hold.ts';
import { holdsLane, type Job, type JobError, type StoredHold } from '../model/job.ts';
import type { Status } from '../model/states.ts';

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
