// Many jobs in one request. Every item is checked by itself, so that one bad item does not hide what
// is wrong with the others; what is good goes in together.
import { z } from 'zod';
import { type LiveDaemon, readLiveDaemons } from '../../daemons/live-daemons.ts';
import { payloadLimitBytes } from '../../jobs/enqueue/document-limit.ts';
import type { Enqueued, NewJob } from '../../jobs/enqueue/enqueue.ts';
import { enqueueAllOrNone, idempotencyConflict } from '../../jobs/enqueue/enqueue.ts';
import { jobRequest, toNewJob } from '../../jobs/enqueue/job-request.ts';
import { withEnqueueSpan } from '../../jobs/model/trace.ts';
import { Problem, problem } from '../../kernel/errors.ts';
import { Pace } from '../../kernel/pace.ts';
import { type FieldError, invalidFields, parseFields } from '../../kernel/parse.ts';
import { JsonPart } from '../body.ts';
import { type Reply, reply } from '../route.ts';
import { type CreationContext, idempotencyKey, type JobRouteDependencies } from './create-jobs.ts';
import { jobSummarySchema, jobSummaryToApi } from './job-schema.ts';

export const batchLimitBytes = 8 * 1_048_576;
/** A payload and the fields beside it. */
export const batchItemLimitBytes = payloadLimitBytes + 65_536;
const maxBatchSize = 1000;

export const batchBody = z.strictObject({
  jobs: z.array(z.unknown()).min(1).max(maxBatchSize).describe('Each as in POST /api/jobs, with its `target_id`.'),
  atomic: z.boolean().default(false).describe('All or none.'),
});

const itemSchema = z.strictObject({
  status: z.int().describe('201 made, 200 a replay, 4xx refused.'),
  job: jobSummarySchema.optional(),
  error: z.looseObject({ code: z.string(), detail: z.string() }).optional(),
});
type Item = z.input<typeof itemSchema>;

export const batchAnswer = z.strictObject({
  results: z.array(itemSchema),
  created: z.int(),
  replayed: z.int(),
  failed: z.int(),
});

export async function createBatch(
  deps: JobRouteDependencies,
  context: CreationContext,
  { jobs, atomic }: z.output<typeof batchBody>,
): Promise<Reply> {
  const checked = await checkAll(deps, context, jobs);
  const good = checked.filter((item): item is NewJob => !(item instanceof Problem));
  if (atomic && good.length < checked.length) throw allFaults(checked);
  await deps.queueLimit.admit(context.tenant, good);
  const enqueued = await withEnqueueSpan(aboutBatch(context, good), (traceparent) => {
    const traced = good.map((job) => ({ ...job, traceparent }));
    return atomic
      ? context.withTurn(() => enqueueAllOrNone(deps.db, context.tenant.schema, traced, context.actor))
      : deps.enqueueJobs(context.tenant, traced, context.actor);
  });
  if (atomic) deps.wake?.(context.tenant, enqueued);
  const queue = [...enqueued];
  const results = checked.map((item) => (item instanceof Problem ? refused(item) : made(queue.shift() as Enqueued)));
  const count = (status: number) => results.filter((item) => item.status === status).length;
  const created = count(201);
  const replayed = count(200);
  const body = { results, created, replayed, failed: results.length - created - replayed };
  return reply(created === results.length ? 201 : 200, body);
}

function aboutBatch({ tenant, request }: CreationContext, jobs: NewJob[]) {
  const types = new Set(jobs.map((job) => job.type));
  const type = types.size === 1 ? (jobs[0]?.type ?? '') : 'batch';
  return { tenant: tenant.slug, type, count: jobs.length, traceparent: request.get('traceparent') };
}

async function checkAll(
  deps: JobRouteDependencies,
  { tenant, request }: CreationContext,
  jobs: unknown[],
): Promise<(NewJob | Problem)[]> {
  const key = idempotencyKey(request);
  let live: Promise<LiveDaemon[]> | undefined;
  const liveDaemons = () => (live ??= readLiveDaemons(deps.db));
  const common = { tenant, jobTypes: deps.jobTypes, liveDaemons };
  const check = async (given: unknown, index: number) => {
    try {
      const asked = parseFields(jobRequest, given instanceof JsonPart ? given.read() : given);
      const client_request_id = asked.client_request_id ?? (key === undefined ? undefined : `${key}#${index}`);
      return await toNewJob({ ...asked, client_request_id }, common);
    } catch (error) {
      if (error instanceof Problem) return error;
      throw error;
    }
  };
  const checked: (NewJob | Problem)[] = [];
  const pace = new Pace();
  for (const [index, given] of jobs.entries()) {
    checked.push(await check(given, index));
    await pace.pause();
  }
  return checked;
}

/** One answer that names every fault with its place in the batch. */
function allFaults(checked: (NewJob | Problem)[]): Problem {
  const faults: FieldError[] = [];
  checked.forEach((item, index) => {
    if (!(item instanceof Problem)) return;
    const { errors, field = item.code === 'UNKNOWN_JOB_TYPE' ? 'type' : '' } = item.extra as {
      errors?: FieldError[];
      field?: string;
    };
    const own = errors ?? [{ field, message: item.message }];
    for (const { field, message } of own) faults.push({ field: `jobs[${index}]${field && `.${field}`}`, message });
  });
  const unknown = checked.find((item): item is Problem => item instanceof Problem && item.code === 'UNKNOWN_JOB_TYPE');
  if (unknown === undefined) return invalidFields(faults.slice(0, 20));
  return problem('UNKNOWN_JOB_TYPE', unknown.message, { ...unknown.extra, errors: faults.slice(0, 20) });
}

function refused(fault: Problem): Item {
  return { status: fault.httpStatus, error: { ...fault.extra, code: fault.code, detail: fault.message } };
}

function made(enqueued: Enqueued): Item {
  if (enqueued.kind === 'conflict') return refused(idempotencyConflict(enqueued));
  // Without the payloads: the client has just sent them.
  const { payload: _, result: __, ...job } = jobSummaryToApi(enqueued.job);
  return { status: enqueued.kind === 'created' ? 201 : 200, job };
}
