// /api/jobs: putting jobs in, one or many, and reading them. The same under /api/targets/{target_id}/jobs.
import { z } from 'zod';
import type { Queryable } from '../../database/database.ts';
import { readPhases } from '../../jobs/attempt/phases.ts';
import { jobRequest } from '../../jobs/enqueue/job-request.ts';
import type { Job } from '../../jobs/model/job.ts';
import { findJob } from '../../jobs/read/find-job.ts';
import { listJobs } from '../../jobs/read/list-jobs.ts';
import { problem } from '../../kernel/errors.ts';
import { isTargetId, isUuid } from '../../kernel/fields.ts';
import { invalidFields } from '../../kernel/parse.ts';
import type { Tenant } from '../../tenants/tenant.ts';
import { encodeCursor } from '../paging.ts';
import { RouteGroup } from '../route.ts';
import { createJob, type JobRouteDependencies } from './create-jobs.ts';
import { batchAnswer, batchBody, batchItemLimitBytes, batchLimitBytes, createBatch } from './job-batch.ts';
import { listFilter, listQuery } from './job-query.ts';
import { jobSchema, jobSummarySchema, jobSummaryToApi, jobToApi } from './job-schema.ts';

// A payload and a result may have a megabyte each.
const maxDocuments = 50;

export const jobParams = z.strictObject({ job_id: z.string() });
export const targetParams = z.strictObject({ target_id: z.string() });
export const targetJobParams = z.strictObject({ target_id: z.string(), job_id: z.string() });

export function jobRoutes(deps: JobRouteDependencies): RouteGroup {
  const group = new RouteGroup('Jobs');
  addCreation(group, deps);
  addReads(group, deps);
  addLists(group, deps);
  return group;
}

function addCreation(group: RouteGroup, deps: JobRouteDependencies): void {
  const description =
    'With the header `Idempotency-Key` or the field `client_request_id` a repeated request makes no second job: ' +
    'it answers 200 with the job that the first one made.';
  const answers = { 201: jobSchema, 200: jobSchema };
  const problems = ['UNKNOWN_JOB_TYPE', 'IDEMPOTENCY_CONFLICT', 'TENANT_SUSPENDED', 'QUEUE_FULL'] as const;
  group.route({
    method: 'post',
    path: '/api/jobs',
    summary: 'Enqueue a job',
    description,
    access: 'enqueue',
    turns: 'own',
    body: jobRequest,
    answers,
    problems,
    handle: (context) => createJob(deps, context, context.body),
  });
  group.route({
    method: 'post',
    path: '/api/targets/{target_id}/jobs',
    summary: 'Enqueue a job for a target',
    description: `The target appears on first use. ${description}`,
    access: 'enqueue',
    turns: 'own',
    params: targetParams,
    body: jobRequest.omit({ target_id: true }).meta({ id: 'TargetJobRequest' }),
    answers,
    problems,
    handle: (context) => {
      const target_id = context.params.target_id;
      if (!isTargetId(target_id)) {
        throw invalidFields([{ field: 'target_id', message: 'must be 1 to 200 printable characters, not . or ..' }]);
      }
      return createJob(deps, context, { ...context.body, target_id });
    },
  });
  group.route({
    method: 'post',
    path: '/api/jobs/batch',
    summary: 'Enqueue up to 1,000 jobs',
    description:
      'Each job gets a result of its own, in the order given; with `atomic` either all are made or none. ' +
      'With an `Idempotency-Key` a job without a `client_request_id` gets the key and its place as one.',
    access: 'enqueue',
    turns: 'own',
    body: batchBody,
    bodyLimitBytes: batchLimitBytes,
    partLimitBytes: batchItemLimitBytes,
    answers: { 201: batchAnswer, 200: batchAnswer },
    problems,
    handle: (context) => createBatch(deps, context, context.body),
  });
}

function addReads(group: RouteGroup, deps: JobRouteDependencies): void {
  const answers = { 200: jobSchema };
  const show = async (tenant: Tenant, jobId: string, targetId?: string) => {
    const job = await mustReadJob(deps.db, tenant, jobId, targetId);
    return jobToApi(job, await readPhases(deps.db, tenant.schema, job, deps.jobTypes));
  };
  group.route({
    method: 'get',
    path: '/api/jobs/{job_id}',
    summary: 'Read a job',
    access: 'read',
    params: jobParams,
    answers,
    problems: ['NOT_FOUND'],
    handle: ({ tenant, params }) => show(tenant, params.job_id),
  });
  group.route({
    method: 'get',
    path: '/api/targets/{target_id}/jobs/{job_id}',
    summary: 'Read a job of a target',
    access: 'read',
    params: targetJobParams,
    answers,
    problems: ['NOT_FOUND'],
    handle: ({ tenant, params }) => show(tenant, params.job_id, params.target_id),
  });
}

function addLists(group: RouteGroup, { db }: JobRouteDependencies): void {
  const answers = { 200: z.strictObject({ jobs: z.array(jobSummarySchema), next_cursor: z.string().nullable() }) };
  const description =
    'A page may be short, or even empty, while there is a `next_cursor`: rare jobs in a long history are searched piece by piece.';
  const show = async (tenant: Tenant, query: z.output<typeof listQuery>, targetId?: string) => {
    const list = `jobs:${tenant.id}`;
    const [before] = query.cursor?.position(list, ['uuid']) ?? [];
    const filter = { ...listFilter(query), ...(targetId !== undefined && { targetId }) };
    const withDocuments = query.include !== undefined;
    const limit = withDocuments ? Math.min(query.limit, maxDocuments) : query.limit;
    const page = await listJobs(db, tenant.schema, filter, { limit, before, withDocuments });
    return {
      jobs: page.jobs.map(jobSummaryToApi),
      next_cursor: page.next === undefined ? null : encodeCursor(list, [page.next]),
    };
  };
  group.route({
    method: 'get',
    path: '/api/jobs',
    summary: 'List jobs, newest first',
    description,
    access: 'read',
    query: listQuery,
    answers,
    problems: ['INVALID_CURSOR'],
    handle: ({ tenant, query }) => show(tenant, query),
  });
  group.route({
    method: 'get',
    path: '/api/targets/{target_id}/jobs',
    summary: 'List the jobs of a target, newest first',
    description,
    access: 'read',
    params: targetParams,
    query: listQuery.omit({ target_id: true }),
    answers,
    problems: ['INVALID_CURSOR'],
    handle: ({ tenant, params, query }) => show(tenant, query, params.target_id),
  });
}

/** Unknown, foreign and malformed ids are all the same to the caller. */
export async function mustReadJob(db: Queryable, tenant: Tenant, jobId: string, targetId?: string): Promise<Job> {
  const job = isUuid(jobId) ? await findJob(db, tenant.schema, jobId) : undefined;
  if (job === undefined || (targetId !== undefined && job.targetId !== targetId)) {
    throw problem('NOT_FOUND', 'There is no such job.');
  }
  return job;
}
