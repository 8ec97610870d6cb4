// PENDING jobs whose time has come. A retry keeps its lane; a scheduled job enters the line now.
import { type Database, type Queryable, retryConflicts } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { insertEvents } from '../../events/log/record.ts';
import { firstByPriority, promote, takeLaneNumbers } from '../lanes/lane.ts';
import { become, guard, transitions } from '../model/states.ts';

interface DueRow {
  id: string;
  target_id: string | null;
  priority: number;
}

/** Queues up to `limit` due jobs. Returns how many; a full batch means there may be more. */
export async function queueDueJobs(db: Database, schema: Schema, actor: string, limit = 500): Promise<number> {
  const due = await db.query<DueRow>(
    `select id, target_id, priority from ${schema}.jobs
      where ${guard('becomeDue')} and run_at <= now() order by run_at, id limit $1`,
    [limit],
  );
  if (due.length === 0) return 0;
  return retryConflicts(() => db.transaction((tx) => queueJobs(tx, schema, due, actor)));
}

/** When the next PENDING job is due, in milliseconds from now by the database's clock. */
export async function nextDueInMs(db: Queryable, schema: Schema): Promise<number | undefined> {
  const rows = await db.query<{ ms: number | null }>(
    `select extract(epoch from (min(run_at) - now()))::float8 * 1000 as ms from ${schema}.jobs where status = 'PENDING'`,
  );
  const ms = rows[0]?.ms;
  return ms === null || ms === undefined ? undefined : Math.max(0, ms);
}

async function queueJobs(tx: Queryable, schema: Schema, due: DueRow[], actor: string): Promise<number> {
  const counts = new Map<string, number>();
  for (const job of due) if (job.target_id !== null) counts.set(job.target_id, (counts.get(job.target_id) ?? 0) + 1);
  const targets = [...counts.keys()].sort();
  const lanes = new Map(
    (
      await takeLaneNumbers(
        tx,
        schema,
        targets,
        targets.map((id) => counts.get(id)),
      )
    ).map((lane) => [
      lane.id,
      { next: BigInt(lane.lane_seq) - BigInt(counts.get(lane.id) ?? 0), paused: lane.paused_at !== null },
    ]),
  );
  const given = due.map((job) => {
    const lane = job.target_id === null ? undefined : lanes.get(job.target_id);
    if (lane === undefined) return { id: job.id, paused: false, rank: null, seq: '0' };
    lane.next += 1n;
    return { id: job.id, paused: lane.paused, rank: firstByPriority + job.priority, seq: String(lane.next) };
  });
  const rows = await tx.query(
    `with given as (
       select g.id, g.paused, g.rank, g.seq
         from jsonb_to_recordset($1::jsonb) as g(id uuid, paused boolean, rank smallint, seq bigint)),
     ready as (
       -- A retry keeps its lane; of a paused target, which has no head that could be claimed, it goes first when it is resumed.
       update ${schema}.jobs j set ${become('becomeDue')}, lane_seq = g.seq, updated_at = now(), lane_head = j.lane_head and not g.paused,
         lane_rank = case when not j.lane_head then g.rank when g.paused then 1 end
         from given g
        where j.id = any($2::uuid[]) and j.id = g.id and ${guard('becomeDue', 'j')} and j.run_at <= now()
       returning j.id, j.target_id, j.attempt, j.lease_id),
     told as (${insertEvents(schema, {
       source: 'ready',
       type: `'${transitions.becomeDue.event}'`,
       actor: '$3',
       from: `'PENDING'`,
       to: `'QUEUED'`,
     })})
     select id from ready`,
    [JSON.stringify(given), due.map((job) => job.id), actor],
  );
  await promote(tx, schema, targets);
  return rows.length;
}
