// Attempts that never began although their lease expired: their daemon stood still between its claim and their start,
// and somebody else's sweeper had to take them for lost. Once the daemon is back it knows better: nothing was done, so
// the job is queued again and the attempt is not counted.
import { type Database, retryConflicts } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { changeJob } from '../actions/change.ts';
import type { Job } from '../model/job.ts';

export interface UnstartedJobs {
  leaseId: string;
  jobs: readonly Pick<Job, 'id' | 'targetId'>[];
  actor: string;
  reason: string;
}

/** Returns how many were still as the sweeper left them: a job that was resumed, ended or left its lane stays as it is. */
export async function requeueUnstarted(
  db: Database,
  schema: Schema,
  { leaseId, jobs, actor, reason }: UnstartedJobs,
): Promise<number> {
  let count = 0;
  for (const job of jobs) {
    const changed = await retryConflicts(() =>
      db.transaction((tx) =>
        changeJob(tx, schema, job, {
          transition: 'requeueUnstarted',
          actor,
          extraGuard: `j.lease_id = $4::uuid and j.error ->> 'code' = 'LEASE_EXPIRED' and j.lane_head`,
          set: `held_since = null, hold = null, finished_at = null, stale_at = null, error = null, attempt = b.attempt - 1,
                expires_at = b.expires_later, lane_head = b.free or not b.target_paused,
                lane_rank = case when b.free or not b.target_paused then null else 1 end`,
          values: [leaseId],
          data: { reason },
        }),
      ),
    );
    if (changed) count += 1;
  }
  return count;
}
