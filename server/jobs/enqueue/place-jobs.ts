// Decides the initial status of a new job and its position in its lane. Locks and numbers the lanes.
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { statement, tenant } from '../../database/sql.ts';
import { newId } from '../../kernel/ids.ts';
import { queueDueJobsOf } from '../finish/due-jobs.ts';
import { toWaiting } from '../flows/dependencies.ts';
import { firstByPriority, openLanes } from '../lanes/lane.ts';
import { defaultOf, requestColumns } from '../model/columns.ts';
import { priorityRank } from '../model/job.ts';
import { type Status, transitions } from '../model/states.ts';
import type { PlacedJob } from './insert-jobs.ts';
import type { NewJob } from './new-job.ts';

/** The initial statuses: due, for later, and waiting for others. */
const due = transitions.enqueue.to;
const later = transitions.schedule.to;
const waits = transitions.enqueueWaiting.to;

/** The job has no lane and waits for no other job. */
function isFree({ targetId, after, waiting }: NewJob): boolean {
  return targetId === undefined && after === undefined && waiting === undefined;
}

/**
 * True if one insert can decide the places of the jobs and nothing follows it. If several jobs of a lane may be due
 * later, or may exist already, which of them comes first is known only after the insert.
 */
export function fitsOneFlight(newJobs: readonly NewJob[]): boolean {
  const isSimple = ({ unique, phases, after, waiting }: NewJob) => !(unique ?? phases ?? after ?? waiting);
  if (!newJobs.every(isSimple)) return false;
  const counts = countByLane(newJobs);
  return newJobs.every(
    (job) => job.targetId === undefined || counts.get(job.targetId) === 1 || !(job.runAt ?? job.clientRequestId),
  );
}

/**
 * Rows whose places are decided by the insert (`lanes: 'joined'`): `laneHead` is true for the first job of a lane, and
 * `laneSeq` is relative to the last number that the jobs of its lane take.
 */
export function placeByInsert(jobs: readonly NewJob[]): { rows: PlacedJob[]; counts: Map<string, number> } {
  const counts = countByLane(jobs);
  const placed = new Map<string, number>();
  const rows = jobs.map((job) => {
    if (job.targetId === undefined) return place(job, due, true, null, '0');
    const position = (placed.get(job.targetId) ?? 0) + 1;
    placed.set(job.targetId, position);
    return place(job, due, position === 1, null, String(position - (counts.get(job.targetId) ?? 0)));
  });
  return { rows, counts };
}

function countByLane(jobs: readonly NewJob[]): Map<string, number> {
  const counts = new Map<string, number>();
  for (const { targetId } of jobs) if (targetId !== undefined) counts.set(targetId, (counts.get(targetId) ?? 0) + 1);
  return counts;
}

/** Known defaults go into the row, because a null in it would not get the table's default. */
const defaults = Object.fromEntries(requestColumns.map((column) => [column, defaultOf(column) ?? undefined]));

/**
 * Has every key of a row from the start. Thousands of jobs a second pass here, and adding keys one by one makes an
 * object several times as expensive.
 */
const blankRow = {
  ...defaults,
  status: undefined,
  laneHead: undefined,
  laneRank: undefined,
  laneSeq: undefined,
  expiresInSeconds: undefined,
};

export function place(job: NewJob, status: Status, head: boolean, rank: number | null, seq: string): PlacedJob {
  if (status !== waits && (job.waiting !== undefined || job.after !== undefined)) {
    const waiting = toWaiting(job);
    if (waiting !== undefined) return place({ ...job, waiting, runAt: undefined }, waits, head, null, seq);
  }
  const row: Record<string, unknown> = { ...blankRow };
  for (const key in job) {
    const value = job[key as keyof NewJob];
    if (value !== undefined && value !== null && !isNoColumn(key)) row[key] = value;
  }
  row.id ??= newId();
  row.payload ??= {};
  if (job.priority) row.priority = priorityRank(job.priority);
  row.status = status;
  row.laneHead = head;
  row.laneRank = rank;
  row.laneSeq = seq;
  return row as unknown as PlacedJob;
}

function isNoColumn(key: string): boolean {
  return key === 'phases' || key === 'after' || key === 'unique' || key === 'earlierHash';
}

// In a cluster the first statement of a transaction chooses the node, so it names a table of the tenant.
const futureStatement = statement(`
  select t.position
    from unnest(:positions::int[], :times::timestamptz[]) as t(position, run_at)
    left join ${tenant}.jobs on false
   where t.run_at > now()`);

/**
 * Returns the positions of jobs that are not due by the database's clock. For jobs without a lane the insert decides.
 */
export async function findFutureJobs(tx: Queryable, schema: Schema, jobs: NewJob[]): Promise<Set<number>> {
  const timed = jobs.flatMap((job, position) =>
    job.runAt === undefined || isFree(job) ? [] : [{ position, runAt: job.runAt }],
  );
  if (timed.length === 0) return new Set();
  const positions = timed.map((t) => t.position);
  const rows = await futureStatement.query<{ position: number }>(tx, schema, {
    positions,
    times: timed.map((t) => t.runAt),
  });
  return new Set(rows.map((row) => row.position));
}

export async function placeInLanes(
  tx: Queryable,
  schema: Schema,
  jobs: NewJob[],
  future: Set<number>,
  actor: string,
): Promise<PlacedJob[]> {
  const counts = countByLane(jobs);
  let lanes = await openLanes(tx, schema, counts);
  const withDue = [...lanes].flatMap(([id, lane]) => (lane.hasDue ? [id] : []));
  if (withDue.length > 0) {
    // These jobs were committed before this transaction began, so they get lower numbers.
    await queueDueJobsOf(tx, schema, withDue, actor);
    lanes = await openLanes(tx, schema, counts);
  }
  return jobs.map((job, position) => {
    const isLater = future.has(position) || toWaiting(job) !== undefined;
    const status = isLater ? later : due;
    const lane = job.targetId === undefined ? undefined : lanes.get(job.targetId);
    if (lane === undefined) return place(job, status, true, null, '0');
    lane.seq += 1n;
    const seq = String(lane.seq);
    // A job joins its lane when it is due.
    if (status === later) return place(job, status, false, null, seq);
    if (lane.free) {
      lane.free = false;
      return place(job, status, true, null, seq);
    }
    return place(job, status, false, firstByPriority + priorityRank(job.priority ?? 'NORMAL'), seq);
  });
}
