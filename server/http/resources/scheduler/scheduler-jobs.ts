// /api/scheduler/jobs: submit, claim, report, cancel and read jobs of remote workers.
import { z } from 'zod';
import { cancelJob } from '../../../jobs/actions/pause-and-cancel.ts';
import type { StepGroupCommit } from '../../../jobs/attempt/step-group-commit.ts';
import type { CommitSignals } from '../../../jobs/commit-signals.ts';
import type { NewJob } from '../../../jobs/enqueue/enqueue.ts';
import type { QueueLimit } from '../../../jobs/enqueue/enqueue-limits.ts';
import { ownBudgets, requestHash } from '../../../jobs/enqueue/job-request.ts';
import type { JobTypes } from '../../../jobs/enqueue/job-types.ts';
import { linkJobs } from '../../../jobs/flows/after-request.ts';
import { limitKeysOf } from '../../../jobs/limits/limit-keys.ts';
import { withEnqueueSpan } from '../../../jobs/model/trace.ts';
import type { Config } from '../../../kernel/config.ts';
import { isUuid } from '../../../kernel/fields.ts';
import type { Logger } from '../../../kernel/logger.ts';
import { toJobIntent, toJobResult } from '../../../scheduler/api-names.ts';
import type { ClaimWaiters } from '../../../scheduler/claim-waiters.ts';
import { reportStatus } from '../../../scheduler/report-status.ts';
import { claimForWorker } from '../../../scheduler/worker-claim.ts';
import {
  getSchedulerJob,
  listSchedulerJobs,
  noSuchJob,
  readJobEvents,
  submitJob,
} from '../../../scheduler/worker-jobs.ts';
import type { Tenant } from '../../../tenants/tenant.ts';
import { paged, pageQuery, pageSchema } from '../../request/paging.ts';
import { RouteGroup, reply } from '../../route.ts';
import {
  claimBody,
  eventSchema,
  idParams,
  jobIntentSchema,
  jobResultSchema,
  maxWaitSeconds,
  oneJob,
  stateQuery,
  statusBody,
  submitBody,
  timeQuery,
} from './scheduler-schemas.ts';

export interface SchedulerDependencies {
  config: Pick<Config, 'claimSeconds' | 'tokenLimit' | 'resultLimitBytes' | 'questionTimeoutSeconds'>;
  waiters: ClaimWaiters;
  logger: Logger;
  queueLimit: QueueLimit;
  stepCommits: StepGroupCommit;
  signals: CommitSignals;
  /** Checks the payloads of children and applies the defaults of their types. */
  jobTypes: JobTypes;
}

const base = '/api/scheduler/jobs';
const jobParams = idParams('job_id');

export function schedulerJobRoutes(deps: SchedulerDependencies): RouteGroup {
  const group = new RouteGroup('Scheduler');
  addSubmit(group, deps);
  addClaim(group, deps);
  addChanges(group, deps);
  addReads(group);
  return group;
}

function addSubmit(group: RouteGroup, { waiters, signals, queueLimit }: SchedulerDependencies): void {
  group.route({
    method: 'post',
    path: `${base}/submit`,
    summary: 'Submit a job for remote workers',
    description:
      'Any job_type is accepted. A repeated request with the same client_request_id gets 200 and the first job; a `unique` key that is held gets 200 and its job, and the header `Unique-Job` says what the request did to it.',
    access: 'enqueue',
    body: submitBody,
    answers: { 201: oneJob, 200: oneJob },
    problems: ['IDEMPOTENCY_CONFLICT', 'QUEUE_FULL'],
    handle: async ({ body, tenant, db, actor, request }) => {
      const newJob = toNewJob(body, tenant);
      const [refused] = await linkJobs(db, tenant.schema, [{ job: newJob, after: body.after }]);
      if (refused !== undefined) throw refused;
      await queueLimit.admit(tenant, [newJob]);
      const about = { tenant: tenant.slug, type: body.job_type, count: 1, traceparent: request.get('traceparent') };
      const { job, created, unique } = await withEnqueueSpan(about, (traceparent) =>
        submitJob(db, tenant.schema, { ...newJob, traceparent }, actor),
      );
      if (created || unique !== undefined) {
        waiters.wake(tenant.schema, job.queue);
        signals.jobsWritten(tenant);
      }
      const headers = unique === undefined ? {} : { 'Unique-Job': unique };
      return reply(created ? 201 : 200, { job: toJobIntent(job) }, headers);
    },
  });
}

function toNewJob(body: z.output<typeof submitBody>, { limits }: Tenant): NewJob {
  const job: NewJob = {
    type: body.job_type,
    queue: body.addon_id,
    priority: body.priority,
    costUnits: body.cost_units,
    constraints: body.constraints ?? undefined,
    payload: body.payload ?? {},
    targetId: body.target_id ?? undefined,
    maxAttempts: body.max_attempts,
    ...ownBudgets(body),
    clientRequestId: body.client_request_id ?? undefined,
    requestHash: body.client_request_id ? requestHash(body, 'submit:') : undefined,
    remote: true,
    unique: body.unique ? { ...body.unique, limits } : undefined,
  };
  job.limitKeys = limitKeysOf(limits, job);
  return job;
}

function addClaim(group: RouteGroup, { config, waiters }: SchedulerDependencies): void {
  group.route({
    method: 'post',
    path: `${base}/claim`,
    summary: 'Claim the next job or jobs; 204 if there is none',
    access: 'worker',
    body: claimBody,
    turns: 'own',
    answers: { 200: z.union([oneJob, z.strictObject({ jobs: z.array(jobIntentSchema) })]), 204: null },
    problems: ['TOO_MANY_REQUESTS'],
    handle: async ({ body, tenant, db, key, response, withTurn }) => {
      const gone = new AbortController();
      response.once('close', () => gone.abort());
      const jobs = await claimForWorker(db, waiters, tenant, {
        keyId: key.id,
        queue: body.addon_id,
        workerId: body.worker_id,
        limit: body.limit,
        jobTypes: body.accept_job_types ?? undefined,
        maxCostUnits: body.max_cost_units ?? undefined,
        capabilities: body.constraints_capabilities ?? {},
        claimSeconds: config.claimSeconds,
        waitMs: Math.min(body.wait_sec, maxWaitSeconds) * 1000,
        signal: gone.signal,
        withTurn,
      });
      if (jobs[0] === undefined) return reply(204);
      return body.limit > 1 ? { jobs: jobs.map(toJobIntent) } : { job: toJobIntent(jobs[0]) };
    },
  });
}

function addChanges(group: RouteGroup, { config, waiters, signals }: SchedulerDependencies): void {
  group.route({
    method: 'post',
    path: `${base}/{job_id}/status`,
    summary: 'Report PREPARING or LEASE_PENDING, progress with RUNNING, or release the claim with QUEUED',
    description:
      'States only go forward. Each report before the lease keeps the claim alive; a report with RUNNING does not renew the lease.',
    access: 'worker',
    params: jobParams,
    body: statusBody,
    allowSuspended: true,
    answers: { 200: oneJob },
    problems: ['NOT_FOUND', 'INVALID_TRANSITION', 'LEASE_LOST', 'CONFLICT'],
    handle: async ({ params, body, tenant, db }) => {
      const job = await reportStatus(db, tenant.schema, {
        jobId: requireUuid(params.job_id),
        state: body.state,
        note: body.note ?? undefined,
        progress: body.progress ?? undefined,
        workerId: body.worker_id,
        leaseId: body.lease_id,
        claimSeconds: config.claimSeconds,
      });
      if (body.state === 'QUEUED') waiters.wake(tenant.schema, job.queue);
      return { job: toJobIntent(job) };
    },
  });
  group.route({
    method: 'post',
    path: `${base}/{job_id}/cancel`,
    summary: 'Cancel a job; a running one gets a stop request',
    description: 'A RUNNING job keeps its state and gets `cancel_requested`; it is CANCELED when its lease ends.',
    access: 'control',
    params: jobParams,
    body: z.strictObject({ reason: z.string().max(2000).nullish() }),
    bodyOptional: true,
    answers: { 200: oneJob },
    problems: ['NOT_FOUND', 'INVALID_TRANSITION'],
    handle: async ({ params, body, tenant, db, actor }) => {
      const jobId = requireUuid(params.job_id);
      await cancelJob(db, tenant.schema, { jobId, actor, reason: body.reason ?? undefined });
      // The next job of its lane may be claimable now.
      waiters.wake(tenant.schema);
      signals.jobsWritten(tenant);
      return { job: toJobIntent(await getSchedulerJob(db, tenant.schema, jobId)) };
    },
  });
}

function addReads(group: RouteGroup): void {
  group.route({
    method: 'get',
    path: base,
    summary: 'List jobs, newest first',
    access: 'read',
    query: z.strictObject({
      ...pageQuery(),
      state: stateQuery.optional(),
      addon_id: z.string().max(200).optional(),
      created_after: timeQuery.optional(),
      created_before: timeQuery.optional(),
    }),
    answers: { 200: pageSchema('jobs', jobIntentSchema) },
    problems: ['INVALID_CURSOR'],
    handle: async ({ query, tenant, db }) => {
      const list = { name: `scheduler-jobs:${tenant.id}`, position: ['uuid'] } as const;
      const filter = {
        state: query.state,
        queue: query.addon_id,
        createdAfter: query.created_after,
        createdBefore: query.created_before,
      };
      const { rows, next_cursor } = await paged(list, query, async ([after], limit) => {
        const { jobs, next } = await listSchedulerJobs(db, tenant.schema, filter, limit, after);
        return { rows: jobs, next: next === undefined ? undefined : [next] };
      });
      return { jobs: rows.map(toJobIntent), next_cursor };
    },
  });
  group.route({
    method: 'get',
    path: `${base}/{job_id}`,
    summary: 'Read a job and, once it has ended, its result',
    access: ['read', 'worker'],
    params: jobParams,
    answers: { 200: z.strictObject({ job: jobIntentSchema, result: jobResultSchema.nullable() }) },
    problems: ['NOT_FOUND'],
    handle: async ({ params, tenant, db }) => {
      const job = await getSchedulerJob(db, tenant.schema, requireUuid(params.job_id));
      return { job: toJobIntent(job), result: toJobResult(job) };
    },
  });
  group.route({
    method: 'get',
    path: `${base}/{job_id}/events`,
    summary: "Read a job's history, oldest first",
    access: 'read',
    params: jobParams,
    query: z.strictObject(pageQuery({ defaultLimit: 200, maxLimit: 1000 })),
    answers: { 200: pageSchema('events', eventSchema) },
    problems: ['NOT_FOUND', 'INVALID_CURSOR'],
    handle: async ({ params, query, tenant, db }) => {
      const job = await getSchedulerJob(db, tenant.schema, requireUuid(params.job_id));
      const list = { name: `scheduler-events:${job.id}`, position: ['integer'] } as const;
      const { rows, next_cursor } = await paged(list, query, async ([after], limit) => {
        const { events, lastSeq } = await readJobEvents(db, tenant.schema, job, limit, after);
        return { rows: events, next: lastSeq === undefined ? undefined : [lastSeq] };
      });
      return { events: rows, next_cursor };
    },
  });
}

/** NOT_FOUND also for an id that is not a uuid. */
function requireUuid(jobId: string): string {
  if (!isUuid(jobId)) throw noSuchJob();
  return jobId;
}
