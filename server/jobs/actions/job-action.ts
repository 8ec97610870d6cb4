// The frame of every action on a job: reads the job, tries again if the job changed between the read and the write, and
// refuses with an error that names the last change.
import type { Database, Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { statement, tenant } from '../../database/sql.ts';
import { retryConflicts } from '../../database/sql-errors.ts';
import { type Problem, problem } from '../../kernel/errors.ts';
import type { Job } from '../model/job.ts';
import { findJob } from '../read/read-jobs.ts';

export interface ActionRequest {
  jobId: string;
  /** The actor of the event: `key:<id>` or `user:<author>`. */
  actor: string;
  author?: string | undefined;
  reason?: string | undefined;
  /** If set, a job of another target counts as not found. */
  targetId?: string | undefined;
}

export interface ActionResult {
  job: Job;
  /** False if the job runs and its owner was asked to stop it; the HTTP answer is 202. */
  done: boolean;
}

// People do not change a job that often: five conflicts in a row mean that scripts change it concurrently.
const maxAttempts = 5;

/**
 * Calls `attempt` with the current job until it returns a result. `undefined` means that the job changed and must be
 * read again.
 */
export async function actOnJob(
  db: Database,
  schema: Schema,
  request: ActionRequest,
  attempt: (job: Job) => Promise<ActionResult | 'changed' | undefined>,
): Promise<ActionResult> {
  for (let i = 0; i < maxAttempts; i++) {
    const job = await requireJob(db, schema, request);
    const result = await retryConflicts(() => attempt(job));
    if (result === 'changed') return { job: await requireJob(db, schema, request), done: true };
    if (result !== undefined) return result;
  }
  throw problem('CONFLICT', 'The job kept changing; read it and try again.');
}

async function requireJob(db: Queryable, schema: Schema, request: ActionRequest): Promise<Job> {
  const job = await findJob(db, schema, request.jobId);
  if (job === undefined || (request.targetId !== undefined && job.targetId !== request.targetId)) {
    throw problem('NOT_FOUND', 'There is no such job.');
  }
  return job;
}

/** Returns the fields of the request for the event, without those that were not given. */
export function eventData(request: ActionRequest, more: object = {}): object {
  return {
    ...(request.reason !== undefined && { reason: request.reason }),
    ...(request.author !== undefined && { author: request.author }),
    ...more,
  };
}

interface LastEvent {
  type: string;
  actor: string;
  at: string;
  data: { author?: string } | null;
}

const lastEventStatement = statement(`
  select type, actor, at, data
    from ${tenant}.events
   where job_id = :jobId
     and (:types::text[] is null or type = any(:types::text[]))
   order by seq desc
   limit 1`);

export async function lastEvent(
  db: Queryable,
  schema: Schema,
  jobId: string,
  types?: string[],
): Promise<LastEvent | undefined> {
  const [event] = await lastEventStatement.query<LastEvent>(db, schema, { jobId, types: types ?? null });
  return event;
}

/**
 * Returns the 409 of an action that the job's status does not allow. It names the status and the event that led to it.
 */
export async function refusal(db: Queryable, schema: Schema, job: Job, action: string): Promise<Problem> {
  const event = await lastEvent(db, schema, job.id);
  const by = event === undefined ? '' : `: ${event.type} by ${event.data?.author ?? event.actor} at ${event.at}`;
  return problem('INVALID_TRANSITION', `Cannot ${action} a job that is ${job.status}${by}.`, {
    job_status: job.status,
    ...(event !== undefined && {
      last_event: { type: event.type, actor: event.actor, at: event.at, author: event.data?.author },
    }),
  });
}
