// Submits a job for remote workers. Any job type is accepted, because no daemon needs a handler for it.
import type { Database } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import { enqueue, type NewJob } from '../jobs/enqueue/enqueue.ts';
import { checkDocument, noteLimitBytes } from '../jobs/enqueue/enqueue-limits.ts';
import type { UniqueOutcome } from '../jobs/enqueue/new-job.ts';
import { problem } from '../kernel/errors.ts';
import type { SchedulerJob } from './api-names.ts';
import { getSchedulerJob } from './read-worker-jobs.ts';

export interface Submitted {
  job: SchedulerJob;
  /** False if this is the job of an earlier request with the same client_request_id. */
  created: boolean;
  /** Set if the job holds the unique key of the request: the effect of the request on it. */
  unique: UniqueOutcome | undefined;
}

export async function submitJob(db: Database, schema: Schema, job: NewJob, actor: string): Promise<Submitted> {
  checkDocument(job.payload, 'payload');
  checkDocument(job.constraints, 'constraints', noteLimitBytes);
  const [enqueued] = await enqueue(db, schema, [job], actor);
  if (enqueued === undefined) throw new Error('nothing was enqueued');
  if (enqueued.kind === 'conflict') {
    throw problem('IDEMPOTENCY_CONFLICT', 'This client_request_id was used for another request.', {
      job_id: enqueued.job.id,
    });
  }
  return {
    job: await getSchedulerJob(db, schema, enqueued.job.id),
    created: enqueued.kind === 'created',
    unique: enqueued.kind === 'replayed' ? enqueued.unique : undefined,
  };
}
