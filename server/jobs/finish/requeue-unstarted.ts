// Attempts whose lease expired before they began: their daemon was frozen between the claim and the start, and a sweeper
// recovered the jobs as lost. When the daemon continues it knows that nothing was done, so the job is queued again and
// the attempt is not counted.

import { type Database, retryConflicts } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import type { Job } from '../model/job.ts';
import { hasCodeSql } from '../model/job-errors.ts';
import { applyTransition } from '../transition.ts';

export interface UnstartedJobs {
  leaseId: string;
  jobs: readonly Pick<Job, 'id' | 'targetId'>[];
  actor: string;
  reason: string;
}

/** Returns how many were requeued. A job that was resumed or ended since the sweep, or left its lane, stays as it is. */
export async function requeueUnstarted(
  db: Database,
  schema: Schema,
  { leaseId, jobs, actor, reason }: UnstartedJobs,
): Promise<number> {
  let count = 0;
  for (const job of jobs) {
    const ids = await retryConflicts(() =>
      db.transaction((tx) =>
        applyTransition(tx, schema, {
          name: 'requeueUnstarted',
          jobs: [job],
          leaseId,
          extraGuard: `${hasCodeSql('LEASE_EXPIRED')} and j.lane_head`,
          set: `held_since = null,
              hold = null,
              finished_at = null,
              stale_at = null,
              error = null,
              attempt = b.attempt - 1,
              expires_at = b.expires_later`,
          actor,
          data: { reason },
        }),
      ),
    );
    count += ids.length;
  }
  return count;
}
