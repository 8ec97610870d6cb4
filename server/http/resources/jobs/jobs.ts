// /api/jobs: reads and lists jobs; create-jobs.ts enqueues them. The same under /api/targets/{target_id}/jobs.
import { z } from 'zod';
import type { Database, Queryable } from '../../../database/database.ts';
import { readPhases } from '../../../jobs/attempt/phases.ts';
import { statusesOfHold } from '../../../jobs/model/hold.ts';
import { holdKinds, type Job, priorities } from '../../../jobs/model/job.ts';
import { isOnHold, type Status, statuses } from '../../../jobs/model/states.ts';
import type { JobFilter } from '../../../jobs/read/filter.ts';
import { findJob, listJobs } from '../../../jobs/read/read-jobs.ts';
import { isNameable, readWaits } from '../../../jobs/read/read-waits.ts';
import { SharedReads } from '../../../jobs/read/shared-reads.ts';
import { problem } from '../../../kernel/errors.ts';
import { isUuid, nameField, targetIdField, timeField } from '../../../kernel/fields.ts';
import type { Tenant } from '../../../tenants/tenant.ts';
import { booleanQuery, paged, pageQuery, pageSchema } from '../../request/paging.ts';
import { type RouteContext, RouteGroup } from '../../route.ts';
import { addCreation, type JobRouteDependencies } from './create-jobs.ts';
import {
  jobParams,
  jobSchema,
  jobSummarySchema,
  jobSummaryToApi,
  jobToApi,
  targetJobParams,
  targetParams,
} from './job-schema.ts';

// A payload and a result may have a megabyte each.
const maxDocuments = 50;

const statusList = z
  .string()
  .max(500)
  .transform((text) => text.split(','))
  .pipe(z.array(z.enum(statuses)).min(1))
  .meta({ type: 'string', description: 'One status, or several separated by commas.' });

function holdKindField() {
  return z
    .enum(holdKinds)
    .optional()
    .describe('Only jobs with a hold of this kind; `drain` selects those that a shutdown paused.');
}

const listQuery = z.strictObject({
  ...pageQuery(),
  status: z
    .union([statusList, z.array(statusList).transform((lists) => lists.flat())], {
      error: `must be one or more of ${statuses.join(', ')}, with commas between them`,
    })
    .optional(),
  held: booleanQuery().optional().describe('true: only jobs that wait for a person (PAUSED, ERROR).'),
  ...filterFields(),
  include: z.literal('payload,result').optional().describe('Adds payloads and results; at most 50 jobs per page then.'),
});

export const operationFilter = z
  .strictObject({
    ids: z.array(z.uuid()).min(1).max(1000).optional().describe('Only these jobs.'),
    status: z.array(z.enum(statuses)).min(1).max(statuses.length).optional(),
    ...filterFields(),
  })
  .meta({ id: 'JobFilter' });

/** The filters of lists and of bulk operations. */
function filterFields() {
  return {
    hold_kind: holdKindField(),
    type: nameField().optional(),
    queue: nameField().optional(),
    target_id: targetIdField().optional(),
    priority: z.enum(priorities).optional(),
    created_after: timeField().optional(),
    created_before: timeField().optional(),
    parent_id: z.uuid().optional().describe('Only jobs that this job enqueued.'),
    search: nameField().optional().describe('Part of the type or the target, or the beginning of the id.'),
    payload: z
      .string()
      .max(500)
      .regex(/^[^=]+=/, 'must be a path and a value, e.g. customer.id=42')
      .optional()
      .describe('A path of the payload and the value there, e.g. `customer.id=42`.'),
  };
}

export function jobRoutes(deps: JobRouteDependencies): RouteGroup {
  const group = new RouteGroup('Jobs');
  addCreation(group, deps);
  addReads(group, deps);
  addLists(group);
  return group;
}

type ReadContext = Pick<RouteContext<'read'>, 'db' | 'tenant' | 'withTurn'>;

function addReads(group: RouteGroup, deps: JobRouteDependencies): void {
  const answers = { 200: jobSchema };
  const reads = new SharedReads();
  const show = async ({ db, tenant, withTurn }: ReadContext, jobId: string, targetId?: string) => {
    const { schema } = tenant;
    const job = isUuid(jobId) ? await reads.find(jobId, { db, schema, withTurn }) : undefined;
    if (job === undefined || (targetId !== undefined && job.targetId !== targetId)) throw noSuchJob();
    const read = async () => {
      const [named = job] = await readWaits(db, schema, [job]);
      return jobToApi(named, await readPhases(db, schema, job, deps.jobTypes));
    };
    return job.hasPhases || isNameable(job) ? withTurn(read) : read();
  };
  group.route({
    method: 'get',
    path: '/api/jobs/{job_id}',
    summary: 'Read a job',
    access: 'read',
    turns: 'own',
    params: jobParams,
    answers,
    problems: ['NOT_FOUND'],
    handle: (context) => show(context, context.params.job_id),
  });
  group.route({
    method: 'get',
    path: '/api/targets/{target_id}/jobs/{job_id}',
    summary: 'Read a job of a target',
    access: 'read',
    turns: 'own',
    params: targetJobParams,
    answers,
    problems: ['NOT_FOUND'],
    handle: (context) => show(context, context.params.job_id, context.params.target_id),
  });
}

function addLists(group: RouteGroup): void {
  const answers = { 200: pageSchema('jobs', jobSummarySchema) };
  const description =
    'A page may be short, or even empty, and still have a `next_cursor`: each page searches a bounded part of the history.';
  const show = async (db: Database, tenant: Tenant, query: z.output<typeof listQuery>, targetId?: string) => {
    const filter = { ...listFilter(query), ...(targetId !== undefined && { targetId }) };
    const withDocuments = query.include !== undefined;
    const list = { name: `jobs:${tenant.id}`, position: ['uuid'] } as const;
    const page = await paged(list, query, async ([before], asked) => {
      const limit = withDocuments ? Math.min(asked, maxDocuments) : asked;
      const { jobs, next } = await listJobs(db, tenant.schema, filter, { limit, before, withDocuments });
      const rows = await readWaits(db, tenant.schema, jobs);
      return { rows, next: next === undefined ? undefined : [next] };
    });
    return { jobs: page.rows.map(jobSummaryToApi), next_cursor: page.next_cursor };
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
    handle: ({ tenant, db, query }) => show(db, tenant, query),
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
    handle: ({ tenant, db, params, query }) => show(db, tenant, query, params.target_id),
  });
}

function listFilter(
  query: Omit<z.output<typeof listQuery>, 'target_id'> & { target_id?: string | undefined },
): JobFilter {
  return {
    statuses: withHeld(query.status ?? (query.hold_kind && statusesOfHold[query.hold_kind]), query.held),
    holdKind: query.hold_kind,
    type: query.type,
    queue: query.queue,
    targetId: query.target_id,
    priority: query.priority,
    createdAfter: query.created_after,
    createdBefore: query.created_before,
    parentId: query.parent_id,
    search: query.search,
    payload: payloadFilter(query.payload),
  };
}

export function payloadFilter(text: string | undefined): JobFilter['payload'] {
  if (text === undefined) return undefined;
  const at = text.indexOf('=');
  return { path: text.slice(0, at).trim().split('.'), value: text.slice(at + 1).trim() };
}

function withHeld(given: readonly Status[] | undefined, held: boolean | undefined): readonly Status[] | undefined {
  if (held === undefined) return given;
  return (given ?? statuses).filter((status) => isOnHold(status) === held);
}

/** Throws NOT_FOUND for unknown and malformed ids, and for jobs of other targets. */
export async function mustReadJob(db: Queryable, tenant: Tenant, jobId: string, targetId?: string): Promise<Job> {
  const job = isUuid(jobId) ? await findJob(db, tenant.schema, jobId) : undefined;
  if (job === undefined || (targetId !== undefined && job.targetId !== targetId)) throw noSuchJob();
  return job;
}

function noSuchJob() {
  return problem('NOT_FOUND', 'There is no such job.');
}
