// Queues the PENDING jobs that are due. A retry has kept its lane; a scheduled job joins the line now.
import { type Database, type Queryable, retryConflicts } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { distinctTargets, takeLaneNumbers } from '../lanes/lane.ts';
import type { Job } from '../model/job.ts';
import { applyTransition, type LaneNumber, transition } from '../transition.ts';

type DueJob = Pick<Job, 'id' | 'targetId'>;

/** Queues up to `limit` due jobs. Returns how many; a full batch means there may be more. */
export async function queueDueJobs(db: Database, schema: Schema, actor: string, limit = 500): Promise<number> {
  const due = await db.query<DueJob>(
    `select j.id, j.target_id as "targetId"
       from ${schema}.jobs j
      where ${transition('becomeDue').guard()}
        and j.run_at <= now()
      order by j.run_at, j.id
      limit $1`,
    [limit],
  );
  if (due.length === 0) return 0;
  return retryConflicts(() => db.transaction((tx) => queueJobs(tx, schema, due, actor)));
}

async function queueJobs(tx: Queryable, schema: Schema, due: DueJob[], actor: string): Promise<number> {
  const ids = await applyTransition(tx, schema, {
    name: 'becomeDue',
    jobs: due,
    extraGuard: 'j.run_at <= now()',
    actor,
    laneNumbers: await numberJobs(tx, schema, due),
  });
  return ids.length;
}

/** Takes a number in its lane for each job, in the order of `due`; a job without a lane gets 0. */
async function numberJobs(tx: Queryable, schema: Schema, due: DueJob[]): Promise<LaneNumber[]> {
  const counts = new Map<string, number>();
  for (const { targetId } of due) if (targetId !== null) counts.set(targetId, (counts.get(targetId) ?? 0) + 1);
  const targets = distinctTargets(due);
  const lanes = await takeLaneNumbers(
    tx,
    schema,
    targets,
    targets.map((id) => counts.get(id)),
  );
  const last = new Map(lanes.map((lane) => [lane.id, BigInt(lane.lane_seq) - BigInt(counts.get(lane.id) ?? 0)]));
  return due.map(({ id, targetId }) => {
    const before = targetId === null ? undefined : last.get(targetId);
    if (targetId === null || before === undefined) return { id, lane_seq: '0' };
    last.set(targetId, before + 1n);
    return { id, lane_seq: String(before + 1n) };
  });
}

/** When the next PENDING job is due, in milliseconds from now by the database's clock. */
export async function nextDueInMs(db: Queryable, schema: Schema): Promise<number | undefined> {
  const rows = await db.query<{ ms: number | null }>(
    `select extract(epoch from (min(run_at) - now()))::float8 * 1000 as ms
       from ${schema}.jobs
      where status = 'PENDING'`,
  );
  const ms = rows[0]?.ms;
  return ms === null || ms === undefined ? undefined : Math.max(0, ms);
}
