// The routes that enqueue: one job, or a batch with a result for each. They check the jobs, resolve the idempotency
// key, and respond with 201 for a new job and 200 for an existing one.
import type { Request } from 'express';
import { z } from 'zod';
import { type LiveDaemon, readLiveDaemons } from '../../../daemon-registry/live-daemons.ts';
import type { Database, Queryable } from '../../../database/database.ts';
import { pendingPhases, readPhases } from '../../../jobs/attempt/phases.ts';
import type { CommitSignals } from '../../../jobs/commit-signals.ts';
import {
  type Enqueued,
  type Enqueuer,
  enqueueAllOrNone,
  idempotencyConflict,
  type NewJob,
} from '../../../jobs/enqueue/enqueue.ts';
import { payloadLimitBytes, type QueueLimit } from '../../../jobs/enqueue/enqueue-limits.ts';
import { clientRequestId, type JobRequest, jobRequest, toNewJob } from '../../../jobs/enqueue/job-request.ts';
import type { JobTypes } from '../../../jobs/enqueue/job-types.ts';
import { type LinkedJob, linkJobs } from '../../../jobs/flows/after-request.ts';
import { withEnqueueSpan } from '../../../jobs/model/trace.ts';
import { findJob } from '../../../jobs/read/read-jobs.ts';
import { Pace } from '../../../kernel/clock.ts';
import { Problem, problem } from '../../../kernel/errors.ts';
import { type FieldError, invalidFields, isTargetId, parseFields } from '../../../kernel/fields.ts';
import { JsonText } from '../../../kernel/json/json-text.ts';
import type { Tenant } from '../../../tenants/tenant.ts';
import { JsonPart } from '../../request/body.ts';
import { type Reply, type RouteGroup, reply } from '../../route.ts';
import { jobSchema, jobSummarySchema, jobSummaryToApi, jobToApi, targetParams } from './job-schema.ts';

const batchLimitBytes = 8 * 1_048_576;
/** The size of a payload and the other fields. */
const batchItemLimitBytes = payloadLimitBytes + 65_536;
const maxBatchSize = 1000;

const batchBody = z.strictObject({
  jobs: z.array(z.unknown()).min(1).max(maxBatchSize).describe('Each as in POST /api/jobs, with its `target_id`.'),
  atomic: z.boolean().default(false).describe('All or none.'),
});

const itemSchema = z.strictObject({
  status: z.int().describe('201 created, 200 replayed, 4xx refused.'),
  job: jobSummarySchema.optional(),
  unique: z
    .enum(['skipped', 'replaced', 'debounced'])
    .optional()
    .describe('`job` holds the key of this request: what the request did to it.'),
  error: z.looseObject({ code: z.string(), detail: z.string() }).optional(),
});
type Item = z.input<typeof itemSchema>;

const batchAnswer = z.strictObject({
  results: z.array(itemSchema),
  created: z.int(),
  replayed: z.int(),
  failed: z.int(),
});

export interface JobRouteDependencies {
  jobTypes: JobTypes;
  enqueuer: Enqueuer;
  /** For jobs that were not enqueued through `enqueuer`, which signals its own. */
  signals: CommitSignals;
  queueLimit: QueueLimit;
}

export function addCreation(group: RouteGroup, deps: JobRouteDependencies): void {
  const description =
    'A repeated request with the same header `Idempotency-Key` or field `client_request_id` creates no second job: ' +
    'the response is 200 with the job of the first request.';
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
    description: `The target is created on first use. ${description}`,
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
      'The response has one result per job, in the given order; with `atomic` either all jobs are created or none. ' +
      'With an `Idempotency-Key`, a job without a `client_request_id` gets one from the key and its index.',
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

interface CreationContext {
  db: Database;
  tenant: Tenant;
  actor: string;
  request: Request;
  withTurn<T>(work: () => Promise<T>): Promise<T>;
}

async function createJob(
  deps: JobRouteDependencies,
  { db, tenant, actor, request, withTurn }: CreationContext,
  asked: JobRequest,
): Promise<Reply> {
  const client_request_id = resolveIdempotencyKey(asked.client_request_id, idempotencyKey(request));
  const liveDaemons = () => withTurn(() => readLiveDaemons(db));
  const known = { tenant, jobTypes: deps.jobTypes, liveDaemons };
  const newJob = await toNewJob({ ...asked, client_request_id }, known);
  if (asked.after !== undefined) {
    const [refused] = await withTurn(() => linkJobs(db, tenant.schema, [{ job: newJob, after: asked.after }]));
    if (refused !== undefined) throw refused;
  }
  await deps.queueLimit.admit(tenant, [newJob], inTurns(db, withTurn));
  const about = { tenant: tenant.slug, type: newJob.type, count: 1, traceparent: request.get('traceparent') };
  const [enqueued] = await withEnqueueSpan(about, (traceparent) =>
    enqueueFairly(deps, tenant, [{ ...newJob, traceparent }], actor, withTurn),
  );
  if (enqueued === undefined) throw new Error('the enqueuer returned nothing');
  if (enqueued.kind === 'conflict') throw idempotencyConflict(enqueued);
  const { kind } = enqueued;
  const job =
    enqueued.job.payload === undefined
      ? ((await withTurn(() => findJob(db, tenant.schema, enqueued.job.id))) ?? enqueued.job)
      : enqueued.job;
  const phases =
    kind === 'created'
      ? { phases: pendingPhases(job, deps.jobTypes) }
      : await withTurn(() => readPhases(db, tenant.schema, job, deps.jobTypes));
  const body = jobToApi(job, phases);
  const unique = kind === 'replayed' && enqueued.unique !== undefined ? { 'Unique-Job': enqueued.unique } : {};
  return reply(kind === 'created' ? 201 : 200, body, { Location: `/api/jobs/${job.id}`, ...unique });
}

async function createBatch(
  deps: JobRouteDependencies,
  context: CreationContext,
  { jobs, atomic }: z.output<typeof batchBody>,
): Promise<Reply> {
  const checked = await checkAll(deps, context, jobs);
  const good = checked.filter((item): item is NewJob => !(item instanceof Problem));
  if (atomic && good.length < checked.length) throw allErrors(checked);
  await deps.queueLimit.admit(context.tenant, good, inTurns(context.db, context.withTurn));
  const enqueued = await withEnqueueSpan(aboutBatch(context, good), (traceparent) => {
    const traced = good.map((job) => ({ ...job, traceparent }));
    return atomic
      ? context.withTurn(() => enqueueAllOrNone(context.db, context.tenant.schema, traced, context.actor))
      : enqueueFairly(deps, context.tenant, traced, context.actor, context.withTurn);
  });
  if (atomic) deps.signals.jobsWritten(context.tenant, enqueued);
  const queue = [...enqueued];
  const count = { created: 0, replayed: 0, failed: 0 };
  const results: JsonText[] = [];
  const pace = new Pace();
  for (const item of checked) {
    const result = item instanceof Problem ? refused(item) : enqueuedItem(queue.shift() as Enqueued);
    count[result.status === 201 ? 'created' : result.status === 200 ? 'replayed' : 'failed'] += 1;
    // Serialized in several turns, because a thousand results at once would take too long.
    results.push(new JsonText(JSON.stringify(result)));
    await pace.pause();
  }
  return reply(count.created === results.length ? 201 : 200, { results, ...count });
}

type WithTurn = CreationContext['withTurn'];

/** Jobs with a unique key share no commit with others, so each request of them uses a connection. */
function enqueueFairly(
  { enqueuer }: JobRouteDependencies,
  tenant: Tenant,
  jobs: NewJob[],
  actor: string,
  withTurn: WithTurn,
): Promise<Enqueued[]> {
  const enqueue = () => enqueuer.enqueue(tenant, jobs, actor);
  return jobs.some((job) => job.unique !== undefined) ? withTurn(enqueue) : enqueue();
}

/** Each statement takes a turn. */
function inTurns(db: Database, withTurn: WithTurn): Queryable {
  return { query: (text, values, reuse) => withTurn(() => db.query(text, values, reuse)) };
}

function aboutBatch({ tenant, request }: CreationContext, jobs: NewJob[]) {
  const types = new Set(jobs.map((job) => job.type));
  const type = types.size === 1 ? (jobs[0]?.type ?? '') : 'batch';
  return { tenant: tenant.slug, type, count: jobs.length, traceparent: request.get('traceparent') };
}

async function checkAll(
  deps: JobRouteDependencies,
  { db, tenant, request, withTurn }: CreationContext,
  jobs: unknown[],
): Promise<(NewJob | Problem)[]> {
  const key = idempotencyKey(request);
  let live: Promise<LiveDaemon[]> | undefined;
  const liveDaemons = () => (live ??= withTurn(() => readLiveDaemons(db)));
  const common = { tenant, jobTypes: deps.jobTypes, liveDaemons };
  const check = async (given: unknown, index: number) => {
    try {
      const asked = parseFields(jobRequest, given instanceof JsonPart ? await given.read() : given);
      const client_request_id = asked.client_request_id ?? (key === undefined ? undefined : `${key}#${index}`);
      return { job: await toNewJob({ ...asked, client_request_id }, common), after: asked.after };
    } catch (error) {
      if (error instanceof Problem && error.code !== 'INVALID_JSON') return error;
      throw error;
    }
  };
  const checked: (LinkedJob | Problem)[] = [];
  const pace = new Pace();
  for (const [index, given] of jobs.entries()) {
    await pace.pause();
    checked.push(await check(given, index));
  }
  const linked = checked.map((item) => (item instanceof Problem ? undefined : item));
  const refused = linked.some((item) => item?.after !== undefined)
    ? await withTurn(() => linkJobs(db, tenant.schema, linked))
    : [];
  return checked.map((item, n) => (item instanceof Problem ? item : (refused[n] ?? item.job)));
}

/** One problem that names every invalid field with the index of its job. */
function allErrors(checked: (NewJob | Problem)[]): Problem {
  const found: FieldError[] = [];
  checked.forEach((item, index) => {
    if (!(item instanceof Problem)) return;
    const { errors, field = item.code === 'UNKNOWN_JOB_TYPE' ? 'type' : '' } = item.extra as {
      errors?: FieldError[];
      field?: string;
    };
    const own = errors ?? [{ field, message: item.message }];
    for (const { field, message } of own) found.push({ field: `jobs[${index}]${field && `.${field}`}`, message });
  });
  const unknown = checked.find((item): item is Problem => item instanceof Problem && item.code === 'UNKNOWN_JOB_TYPE');
  if (unknown === undefined) return invalidFields(found.slice(0, 20));
  return problem('UNKNOWN_JOB_TYPE', unknown.message, { ...unknown.extra, errors: found.slice(0, 20) });
}

function refused({ httpStatus, extra, code, message }: Problem): Item {
  return { status: httpStatus, error: { ...extra, code, detail: message } };
}

function enqueuedItem(enqueued: Enqueued): Item {
  if (enqueued.kind === 'conflict') return refused(idempotencyConflict(enqueued));
  // Without the payloads, which the client has just sent.
  const { payload: _, result: __, ...job } = jobSummaryToApi(enqueued.job);
  const unique = enqueued.kind === 'replayed' && enqueued.unique !== undefined ? { unique: enqueued.unique } : {};
  return { status: enqueued.kind === 'created' ? 201 : 200, job, ...unique };
}

/** The header of the request, checked like the field. */
function idempotencyKey(request: Request): string | undefined {
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
