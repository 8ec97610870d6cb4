// One request, one job: its idempotency key, its checks, and the answer that says whether it is new.
import type { Request } from 'express';
import { readLiveDaemons } from '../../daemons/live-daemons.ts';
import type { Database } from '../../database/database.ts';
import { pendingPhases, readPhases } from '../../jobs/attempt/phases.ts';
import type { Enqueued } from '../../jobs/enqueue/enqueue.ts';
import { type EnqueueJobs, idempotencyConflict } from '../../jobs/enqueue/enqueue.ts';
import type { JobRequest } from '../../jobs/enqueue/job-request.ts';
import { clientRequestId, toNewJob } from '../../jobs/enqueue/job-request.ts';
import type { JobTypes } from '../../jobs/enqueue/job-types.ts';
import type { QueueLimit } from '../../jobs/enqueue/queue-limit.ts';
import { withEnqueueSpan } from '../../jobs/model/trace.ts';
import { findJob } from '../../jobs/read/find-job.ts';
import { invalidFields } from '../../kernel/parse.ts';
import type { Tenant } from '../../tenants/tenant.ts';
import { type Reply, reply } from '../route.ts';
import { jobToApi } from './job-schema.ts';

export interface JobRouteDependencies {
  db: Database;
  jobTypes: JobTypes;
  enqueueJobs: EnqueueJobs;
  /** A hint that a tenant has new work, for jobs that did not go through `enqueueJobs`. */
  wake?(tenant: Tenant, enqueued?: Enqueued[]): void;
  queueLimit: QueueLimit;
}

export interface CreationContext {
  tenant: Tenant;
  actor: string;
  request: Request;
  withTurn<T>(work: () => Promise<T>): Promise<T>;
}

export async function createJob(
  deps: JobRouteDependencies,
  { tenant, actor, request, withTurn }: CreationContext,
  asked: JobRequest,
): Promise<Reply> {
  const client_request_id = resolveIdempotencyKey(asked.client_request_id, idempotencyKey(request));
  const liveDaemons = () => withTurn(() => readLiveDaemons(deps.db));
  const known = { tenant, jobTypes: deps.jobTypes, liveDaemons };
  const newJob = await toNewJob({ ...asked, client_request_id }, known);
  await deps.queueLimit.admit(tenant, [newJob]);
  const about = { tenant: tenant.slug, type: newJob.type, count: 1, traceparent: request.get('traceparent') };
  const [enqueued] = await withEnqueueSpan(about, (traceparent) =>
    deps.enqueueJobs(tenant, [{ ...newJob, traceparent }], actor),
  );
  if (enqueued === undefined) throw new Error('the enqueuer returned nothing');
  if (enqueued.kind === 'conflict') throw idempotencyConflict(enqueued);
  const { kind } = enqueued;
  const job =
    enqueued.job.payload === undefined
      ? ((await withTurn(() => findJob(deps.db, tenant.schema, enqueued.job.id))) ?? enqueued.job)
      : enqueued.job;
  const phases =
    kind === 'created'
      ? pendingPhases(job, deps.jobTypes)
      : await withTurn(() => readPhases(deps.db, tenant.schema, job, deps.jobTypes));
  const body = jobToApi(job, phases);
  return reply(kind === 'created' ? 201 : 200, body, { Location: `/api/jobs/${job.id}` });
}

/** The header of the request, checked like the field. */
export function idempotencyKey(request: Request): string | undefined {
  const given = request.get('Idempotency-Key');
  if (given === undefined) return undefined;
  const parsed = clientRequestId.safeParse(given);
  if (parsed.success) return parsed.data;
  throw invalidFields([{ field: 'Idempotency-Key', message: 'must have 1 to 200 characters' }]);
}

function resolveIdempotencyKey(field: string | undefined, header: string | undefined): string | undefined {
  if (field !== undefined && header !== undefined && field !== header) {
    throw invalidFields([{ field: 'client_request_id', message: 'differs from the header Idempotency-Key' }]);
  }
  return field ?? header;
}
