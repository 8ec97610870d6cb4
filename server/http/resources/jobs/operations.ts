// /api/operations: cancel, resume or retry the jobs that match a filter, with a dry run and progress.
import { z } from 'zod';
import {
  countJobs,
  countNotEligible,
  createOperation,
  eligible,
  findOperation,
  listOperations,
  type Operation,
  operationActions,
} from '../../../jobs/actions/bulk-operations.ts';
import { statuses } from '../../../jobs/model/states.ts';
import type { JobFilter } from '../../../jobs/read/filter.ts';
import { problem } from '../../../kernel/errors.ts';
import { invalidFields, isUuid } from '../../../kernel/fields.ts';
import { lastUuid } from '../../../kernel/limits.ts';
import type { Tenant } from '../../../tenants/tenant.ts';
import { paged, pageQuery, pageSchema } from '../../request/paging.ts';
import { RouteGroup, reply } from '../../route.ts';
import { toApi } from '../../to-api.ts';
import { auditFields } from './job-actions.ts';
import { operationFilter, payloadFilter } from './jobs.ts';

export interface OperationDependencies {
  /** There is a new operation to run. */
  wakeOperations?(tenant: Tenant): void;
}

const time = z.iso.datetime({ offset: true });

const operationSchema = z
  .strictObject({
    id: z.uuid(),
    action: z.enum(operationActions),
    filter: operationFilter,
    status: z.enum(['running', 'finished', 'failed']),
    author: z.string().nullable(),
    reason: z.string().nullable(),
    matched: z.int().describe('Jobs that matched when the operation started.'),
    done: z.int(),
    failed: z.int().describe('Jobs for which the action was refused because their status had changed.'),
    progress: z.number().describe('0 to 100.'),
    canary: z
      .enum(['waiting', 'succeeded', 'failed'])
      .nullable()
      .describe('`waiting`: the other jobs wait for the outcome of `canary_job_id`. `failed`: they stay on hold.'),
    canary_job_id: z.uuid().nullable(),
    created_at: time,
    finished_at: time.nullable(),
  })
  .meta({ id: 'Operation' });

const dryRunSchema = z.strictObject({
  dry_run: z.literal(true),
  action: z.enum(operationActions),
  matched: z.int(),
  not_eligible: z
    .array(z.strictObject({ status: z.enum(statuses), count: z.int() }))
    .describe(
      'Jobs that match the filter but to which the action does not apply. Of finished jobs only those named by `ids`.',
    ),
});

export function operationRoutes(deps: OperationDependencies): RouteGroup {
  const group = new RouteGroup('Operations');
  addCreation(group, deps);
  addReads(group);
  return group;
}

function addCreation(group: RouteGroup, { wakeOperations }: OperationDependencies): void {
  group.route({
    method: 'post',
    path: '/api/operations',
    summary: 'Cancel, resume or retry all jobs that match a filter',
    description:
      '`resume` applies to PAUSED and ERROR jobs, `retry` to those in ERROR, `cancel` to all that have not ended. Jobs ' +
      'enqueued later are not affected. With `dry_run` the response is 200 with the counts, and nothing is changed. With ' +
      '`canary` the oldest job is resumed first; unless it succeeds, the operation fails and the others stay on hold.',
    access: 'control',
    body: z.strictObject({
      action: z.enum(operationActions),
      filter: operationFilter,
      dry_run: z.boolean().default(false),
      canary: z
        .boolean()
        .default(false)
        .describe('Resume or retry the oldest job first, and the others only if it succeeds.'),
      ...auditFields,
    }),
    answers: { 202: operationSchema, 200: dryRunSchema },
    handle: async ({ tenant, db, body }) => {
      const filter = toFilter(body.filter);
      if (body.canary && body.action === 'cancel') {
        throw invalidFields([{ field: 'canary', message: 'is for resume and retry' }]);
      }
      if (body.dry_run) {
        const matched = await countJobs(db, tenant.schema, eligible(body.action, filter));
        const notEligible = await countNotEligible(db, tenant.schema, body.action, filter);
        return reply(200, { dry_run: true, action: body.action, matched, not_eligible: notEligible });
      }
      const { action, author, reason, canary } = body;
      const operation = await createOperation(db, tenant.schema, { action, filter, author, reason, canary });
      wakeOperations?.(tenant);
      return reply(202, operationToApi(operation), { Location: `/api/operations/${operation.id}` });
    },
  });
}

function addReads(group: RouteGroup): void {
  group.route({
    method: 'get',
    path: '/api/operations/{operation_id}',
    summary: 'Read a bulk operation and its progress',
    access: 'read',
    params: z.strictObject({ operation_id: z.string() }),
    answers: { 200: operationSchema },
    problems: ['NOT_FOUND'],
    handle: async ({ tenant, db, params }) => {
      const id = params.operation_id;
      const operation = isUuid(id) ? await findOperation(db, tenant.schema, id) : undefined;
      if (operation === undefined) throw problem('NOT_FOUND', 'There is no such operation.');
      return operationToApi(operation);
    },
  });
  group.route({
    method: 'get',
    path: '/api/operations',
    summary: 'List bulk operations, newest first',
    access: 'read',
    query: z.strictObject(pageQuery()),
    answers: { 200: pageSchema('operations', operationSchema) },
    problems: ['INVALID_CURSOR'],
    handle: async ({ tenant, db, query }) => {
      const list = { name: `operations:${tenant.id}`, position: ['uuid'] } as const;
      const page = await paged(list, query, async ([before = lastUuid], limit) => {
        const { operations, next } = await listOperations(db, tenant.schema, { before, limit });
        return { rows: operations, next: next === undefined ? undefined : [next] };
      });
      return { operations: page.rows.map(operationToApi), next_cursor: page.next_cursor };
    },
  });
}

function toFilter(given: z.output<typeof operationFilter>): JobFilter {
  return {
    ids: given.ids,
    statuses: given.status,
    holdKind: given.hold_kind,
    type: given.type,
    queue: given.queue,
    targetId: given.target_id,
    priority: given.priority,
    createdAfter: given.created_after,
    createdBefore: given.created_before,
    parentId: given.parent_id,
    search: given.search,
    payload: payloadFilter(given.payload),
  };
}

function operationToApi(operation: Operation): z.input<typeof operationSchema> {
  const { filter, matched, done, failed } = operation;
  const share = matched === 0 ? 1 : Math.min(1, (done + failed) / matched);
  return toApi(operationSchema, operation, {
    filter: toApi(operationFilter, filter, {
      ids: filter.ids && [...filter.ids],
      payload: filter.payload && `${filter.payload.path.join('.')}=${filter.payload.value}`,
      status: filter.statuses && statuses.filter((status) => filter.statuses?.includes(status)),
    }),
    progress: operation.status === 'finished' ? 100 : Math.floor(share * 100),
  });
}
