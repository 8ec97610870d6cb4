// Numbers for jobs that join their lanes together.
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import type { Job } from '../model/job.ts';
import type { LaneNumber } from '../transition.ts';
import { takeLaneNumbers } from './lane.ts';

/** Takes a number in its lane for each job, in the order of `due`; a job without a lane gets 0. */
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
