// The phases of a job, in order. A job that has not started shows those of its definition, all pending.
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import type { JobTypes } from '../enqueue/job-types.ts';
import type { Job, JobError } from '../model/job.ts';

export interface Phase {
  name: string;
  status: 'pending' | 'running' | 'completed' | 'partial' | 'failed' | 'skipped' | 'cancelled';
  progress: number;
  message: string | null;
  result: unknown;
  error: JobError | null;
  attempt: number;
  started_at: string | null;
  finished_at: string | null;
}

export async function readPhases(
  db: Queryable,
  schema: Schema,
  job: Pick<Job, 'id' | 'type' | 'attempt' | 'finishedAt'>,
  jobTypes?: Pick<JobTypes, 'defaults'>,
): Promise<Phase[]> {
  const rows = await db.query<Phase>(
    `select name, status, progress, message, result, error, attempt, started_at, finished_at
       from ${schema}.phases where job_id = $1 order by position, name`,
    [job.id],
  );
  if (rows.length > 0 || job.attempt > 0 || job.finishedAt !== null) return rows;
  return jobTypes === undefined ? [] : pendingPhases(job, jobTypes);
}

/** The phases of a job that was made just now. */
export function pendingPhases(job: Pick<Job, 'type'>, jobTypes: Pick<JobTypes, 'defaults'>): Phase[] {
  return (jobTypes.defaults(job.type).phases ?? []).map(pendingPhase);
}

function pendingPhase(name: string): Phase {
  const never = { started_at: null, finished_at: null };
  return { name, status: 'pending', progress: 0, message: null, result: null, error: null, attempt: 0, ...never };
}
