// Replays the events of every lane, ordered by target: attempts never overlap, no job starts before one that holds the
// lane or was requeued at its head, and jobs of one priority start in the order in which they were enqueued.

import type { Queryable } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import { scan } from '../database/reads/bounded-reads.ts';
import { isTerminal, ownedStatuses, type Status, transitions } from '../jobs/model/states.ts';
import type { Violations } from './violation.ts';

export interface LanesReport {
  targets: number;
  starts: number;
}

interface LaneRow {
  xid: string;
  seq: string;
  type: string;
  target_id: string;
  job_id: string | null;
  from_status: Status | null;
  to_status: Status | null;
  /** From the job's row; null if retention has deleted it. */
  priority: number | null;
  on_error: string | null;
}

interface LaneJob {
  status: Status;
  priority: number | null;
  /** The job has waited since its enqueue without any change, so only its turn can start it. */
  inLine: boolean;
}

interface Lane {
  targetId: string;
  paused: boolean;
  /** The job that has started and still has the lane: it runs, waits for its retry, or holds the lane. */
  head: string | undefined;
  /** Unfinished jobs in the order in which they were enqueued. */
  jobs: Map<string, LaneJob>;
}

/** With `pruned` a target may have been paused by an event that was removed. */
export async function verifyLanes(
  tx: Queryable,
  schema: Schema,
  pruned: boolean,
  violations: Violations,
): Promise<LanesReport> {
  const report = { targets: 0, starts: 0 };
  let lane: Lane | undefined;
  const rows = scan<LaneRow>(
    tx,
    `select e.xid, e.seq, e.type, e.target_id, e.job_id, e.from_status, e.to_status, j.priority, j.on_error
       from ${schema}.events e left join ${schema}.jobs j on j.id = e.job_id
      where e.target_id is not null and (e.job_id is null or e.from_status is distinct from e.to_status)
      order by e.target_id, e.seq`,
  );
  for await (const batch of rows) {
    for (const row of batch) {
      if (lane?.targetId !== row.target_id) {
        lane = { targetId: row.target_id, paused: pruned, head: undefined, jobs: new Map() };
        report.targets++;
      }
      if (row.type === 'target.paused') pauseLane(lane);
      else if (row.type === 'target.resumed') lane.paused = false;
      else if (row.job_id !== null && row.to_status !== null) {
        if (isStart(row)) {
          report.starts++;
          checkStart(lane, row, row.job_id, violations);
        }
        move(lane, row, row.job_id, row.to_status);
      }
    }
  }
  return report;
}

function isOwned(status: Status | null | undefined): boolean {
  return status !== null && status !== undefined && ownedStatuses.includes(status);
}

function isStart(row: LaneRow): boolean {
  return isOwned(row.to_status) && !isOwned(row.from_status);
}

/** A paused target has no claimable head, so its head waits again. */
function pauseLane(lane: Lane): void {
  lane.paused = true;
  if (lane.head !== undefined && lane.jobs.get(lane.head)?.status === 'QUEUED') lane.head = undefined;
}

function checkStart(lane: Lane, row: LaneRow, jobId: string, violations: Violations): void {
  const wrong = (kind: 'lane_overlap' | 'lane_order', detail: string) =>
    violations.add({ kind, event: `${row.xid}:${row.seq}`, jobId, targetId: lane.targetId, detail });
  if (lane.head !== undefined && lane.head !== jobId) {
    const status = lane.jobs.get(lane.head)?.status;
    if (isOwned(status)) wrong('lane_overlap', `starts while ${lane.head} is ${status}`);
    else wrong('lane_order', `starts before ${lane.head}, which is ${status} and has the lane`);
    return;
  }
  const job = lane.jobs.get(jobId);
  if (!job?.inLine) return;
  for (const [otherId, other] of lane.jobs) {
    if (otherId === jobId) return;
    if (other.inLine && other.priority === job.priority) {
      wrong('lane_order', `starts before ${otherId}, which was enqueued earlier with the same priority`);
      return;
    }
  }
}

function move(lane: Lane, row: LaneRow, jobId: string, to: Status): void {
  const job = lane.jobs.get(jobId);
  if (isTerminal(to) || (to === 'ERROR' && row.on_error !== 'block') || row.type === transitions.suspendAside.event) {
    lane.jobs.delete(jobId);
    if (lane.head === jobId) lane.head = undefined;
    return;
  }
  // A job that was enqueued for later, held or requeued has a different position in the lane.
  const inLine = row.from_status === null && to === 'QUEUED' && row.priority !== null;
  if (job) Object.assign(job, { status: to, inLine: false });
  else lane.jobs.set(jobId, { status: to, priority: row.priority, inLine });
  if (isStart(row)) lane.head = jobId;
  if (to === 'QUEUED' && lane.paused && lane.head === jobId) lane.head = undefined;
}
