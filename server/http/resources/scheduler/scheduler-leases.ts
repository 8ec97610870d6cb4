// /api/scheduler/lease: leases of remote workers. Request, renew by heartbeat, release with the outcome.

import { z } from 'zod';
import { checkDocument, noteLimitBytes } from '../../../jobs/enqueue/enqueue-limits.ts';
import type { JobError } from '../../../jobs/model/job.ts';
import { budgetRules } from '../../../jobs/model/job-budget.ts';
import { type JobErrorCode, jobError } from '../../../jobs/model/job-errors.ts';
import { isUuid } from '../../../kernel/fields.ts';
import type { Logger } from '../../../kernel/logger.ts';
import { type SchedulerJob, toJobIntent, toLeaseView } from '../../../scheduler/api-names.ts';
import { releaseLease } from '../../../scheduler/release-lease.ts';
import { requestLease } from '../../../scheduler/request-lease.ts';
import { heartbeat, noSuchLease, readLease } from '../../../scheduler/worker-lease.ts';
import { RouteGroup } from '../../route.ts';
import type { SchedulerDependencies } from './scheduler-jobs.ts';
import {
  heartbeatBody,
  idParams,
  jobIntentSchema,
  jobResultSchema,
  leaseRequestBody,
  leaseSchema,
  oneLease,
  releaseBody,
  spentSchema,
} from './scheduler-schemas.ts';

const base = '/api/scheduler/lease';
const leaseParams = idParams('lease_id');
// The size of a release: its result and the other fields.
const envelopeBytes = 65_536;
const maxNameLength = 200;
const maxStackLength = 6144;
const maxErrorBytes = 32_768;

export function schedulerLeaseRoutes(deps: SchedulerDependencies): RouteGroup {
  const group = new RouteGroup('Scheduler');
  addRequest(group, deps);
  addHeartbeat(group, deps);
  addRelease(group, deps);
  group.route({
    method: 'get',
    path: `${base}/{lease_id}`,
    summary: 'Read a lease',
    access: ['read', 'worker'],
    params: leaseParams,
    answers: { 200: oneLease },
    problems: ['NOT_FOUND'],
    handle: async ({ params, tenant, db }) => ({
      lease: toLeaseView(await readLease(db, tenant.schema, requireUuid(params.lease_id))),
    }),
  });
  return group;
}

function addRequest(group: RouteGroup, { config }: SchedulerDependencies): void {
  group.route({
    method: 'post',
    path: `${base}/request`,
    summary: 'Request a lease for a claimed job; granted if there is capacity',
    access: 'worker',
    body: leaseRequestBody,
    answers: {
      200: z.union([
        z.strictObject({ approved: z.literal(true), lease: leaseSchema }),
        z.strictObject({ approved: z.literal(false), retry_after_sec: z.number(), reason: z.string() }),
      ]),
    },
    problems: ['NOT_FOUND', 'INVALID_TRANSITION', 'LEASE_LOST', 'CONFLICT'],
    handle: async ({ body, tenant, db }) => {
      const answer = await requestLease(db, tenant.schema, {
        jobId: body.job_id,
        queue: body.addon_id,
        jobType: body.job_type,
        costUnits: body.cost_units,
        workerId: body.worker_id,
        requestId: body.request_id,
        ttlSeconds: body.ttl_sec,
        claimSeconds: config.claimSeconds,
      });
      return answer.approved
        ? { approved: true, lease: toLeaseView(answer.lease) }
        : { approved: false, retry_after_sec: answer.retryAfterSeconds, reason: answer.reason };
    },
  });
}

function addHeartbeat(group: RouteGroup, { config }: SchedulerDependencies): void {
  group.route({
    method: 'post',
    path: `${base}/{lease_id}/heartbeat`,
    summary: 'Renew a lease, report progress, receive stop requests',
    access: 'worker',
    turns: 'renewal',
    params: leaseParams,
    body: heartbeatBody,
    allowSuspended: true,
    answers: {
      200: z.strictObject({
        lease: leaseSchema,
        job: jobIntentSchema,
        budget_spent: spentSchema
          .nullable()
          .describe('The budget that the job has exceeded: stop, then release; a person is asked.'),
      }),
    },
    problems: ['NOT_FOUND', 'LEASE_LOST'],
    handle: async ({ params, body, tenant, db }) => {
      const { lease, job, spent } = await heartbeat(db, tenant.schema, {
        leaseId: requireUuid(params.lease_id),
        jobId: body.job_id,
        workerId: body.worker_id,
        progress: body.progress ?? undefined,
        message: body.message ?? undefined,
        tokensUsed: body.tokens_used ?? undefined,
        usage: body.usage ?? undefined,
        rules: budgetRules(tenant, config.tokenLimit),
      });
      return { lease: toLeaseView(lease), job: toJobIntent(job), budget_spent: spent ?? null };
    },
  });
}

function addRelease(group: RouteGroup, { config, waiters, signals, logger }: SchedulerDependencies): void {
  group.route({
    method: 'post',
    path: `${base}/{lease_id}/release`,
    summary: 'Release a lease with the outcome, which finishes the attempt',
    description: 'A repeated release gets the response of the first. `result` is null while the job will be retried.',
    access: 'worker',
    params: leaseParams,
    body: releaseBody,
    bodyLimitBytes: config.resultLimitBytes + envelopeBytes,
    allowSuspended: true,
    answers: {
      200: z.strictObject({ lease: leaseSchema, job: jobIntentSchema, result: jobResultSchema.nullable() }),
    },
    problems: ['NOT_FOUND', 'LEASE_LOST', 'CONFLICT'],
    handle: async ({ params, body, tenant, db }) => {
      checkDocument(body.result_data, 'result_data', config.resultLimitBytes);
      const error = toError(body.error);
      checkDocument(error, 'error', noteLimitBytes);
      checkDocument(body.metrics, 'metrics', noteLimitBytes);
      const { lease, job, answer } = await releaseLease(db, tenant.schema, {
        leaseId: requireUuid(params.lease_id),
        jobId: body.job_id,
        workerId: body.worker_id,
        status: body.status,
        result: body.result_data,
        error,
        metrics: body.metrics ?? undefined,
        recoverable: body.recoverable,
        requeue: body.requeue,
        closesQuestions: body.close_questions,
        rules: budgetRules(tenant, config.tokenLimit),
      });
      if (body.status === 'FAILED' || body.status === 'TIMEOUT') logFailure(logger, tenant.slug, job, body.worker_id);
      // The next job of the lane may be claimable, or capacity is free again.
      waiters.wake(tenant.schema);
      signals.jobsWritten(tenant);
      return { lease: toLeaseView(lease), ...answer };
    },
  });
}

/** The same limits as for attempts in a daemon. */
function logFailure(logger: Logger, tenant: string, job: SchedulerJob, workerId: string): void {
  const { id, type, targetId, attempt, leaseId, error } = job;
  logger.warn({ tenant, jobId: id, type, targetId, attempt, leaseId, workerId, error }, 'attempt failed');
}

/**
 * An error is never refused because of its size, so that every failure is recorded. Parts that are too large are cut or
 * dropped.
 */
function toError(given: z.output<typeof releaseBody>['error']): JobError | undefined {
  if (given === null || given === undefined) return undefined;
  if (typeof given === 'string') return jobError('HANDLER_ERROR', given);
  const { name, stack, ...details } = given;
  const error: JobError = {
    code: given.code ?? ('HANDLER_ERROR' satisfies JobErrorCode),
    message: given.message ?? 'The worker gave no message.',
    ...(name !== undefined && { name: name.slice(0, maxNameLength) }),
    ...(stack !== undefined && { stack: stack.slice(0, maxStackLength).toWellFormed() }),
  };
  const whole: JobError = { ...details, ...error };
  return Buffer.byteLength(JSON.stringify(whole)) <= maxErrorBytes ? whole : error;
}

/** NOT_FOUND also for an id that is not a uuid. */
function requireUuid(leaseId: string): string {
  if (!isUuid(leaseId)) throw noSuchLease();
  return leaseId;
}
