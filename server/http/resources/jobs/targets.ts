// /api/targets: list, read, label, pause and resume targets. A target is shown with its lane.
import { z } from 'zod';
import type { Database } from '../../../database/database.ts';
import { startCanary } from '../../../jobs/actions/start-canary.ts';
import type { CommitSignals } from '../../../jobs/commit-signals.ts';
import { type Lane, type LaneJob, maxCounted, readHeads, readLane } from '../../../jobs/lanes/read-lanes.ts';
import {
  changeLabels,
  labelTarget,
  listTargets,
  mustFindTarget,
  pauseTarget,
  resumeTarget,
  type Target,
} from '../../../jobs/lanes/target.ts';
import { describeHold, type Hold, holdOf } from '../../../jobs/model/hold.ts';
import { holdsLane, priorities, withoutTrace } from '../../../jobs/model/job.ts';
import { unlessNever } from '../../../jobs/model/waiting.ts';
import { problem } from '../../../kernel/errors.ts';
import { invalidFields, isTargetId, nameField, timeField } from '../../../kernel/fields.ts';
import type { Tenant } from '../../../tenants/tenant.ts';
import { booleanQuery, paged, pageOf, pageQuery, pageSchema } from '../../request/paging.ts';
import { RouteGroup } from '../../route.ts';
import { toApi } from '../../to-api.ts';
import { auditFields } from './job-actions.ts';
import { jobHoldSchema, laneJobSchema, targetParams } from './job-schema.ts';

interface TargetDependencies {
  signals: CommitSignals;
}

const maxLabels = 50;
const tooManyLabels = `must be at most ${maxLabels} labels`;
const labels = z
  .record(nameField(100), z.string().max(500))
  .refine((given) => Object.keys(given).length <= maxLabels, tooManyLabels);

const time = z.iso.datetime({ offset: true });

const holdSchema = z
  .strictObject({
    by: z.enum(['job', 'pause']),
    detail: z.string(),
    since: time.nullable(),
    job_id: z.uuid().nullable(),
    kind: jobHoldSchema.shape.kind,
    reason: z.string().nullable(),
    author: z.string().nullable(),
  })
  .meta({ id: 'Hold' });

const targetSchema = z
  .strictObject({
    id: z.string(),
    labels: z.record(z.string(), z.string()),
    paused: z.boolean(),
    paused_at: time.nullable(),
    paused_by: z.string().nullable(),
    pause_reason: z.string().nullable(),
    paused_until: time.nullable(),
    canary_job_id: z
      .uuid()
      .nullable()
      .describe('The one job that may run while the target is paused; the pause ends if it succeeds.'),
    created_at: time,
    head: laneJobSchema.nullable().describe('The job that runs, may run next, or holds the lane.'),
    hold: holdSchema.nullable().describe('Why no job of the lane can start, if none can.'),
  })
  .meta({ id: 'Target' });

export const targetLaneSchema = targetSchema
  .extend({
    waiting: z.int().describe(`Jobs that wait behind the head; at most ${maxCounted} are counted.`),
    waiting_exact: z.boolean(),
    next: z.array(laneJobSchema).describe('The next jobs of the lane, in the order in which they will run.'),
  })
  .meta({ id: 'TargetLane' });

export function targetRoutes(deps: TargetDependencies): RouteGroup {
  const group = new RouteGroup('Targets');
  addReads(group);
  addLabels(group);
  addPauses(group, deps);
  addCanary(group, deps);
  return group;
}

function addReads(group: RouteGroup): void {
  group.route({
    method: 'get',
    path: '/api/targets',
    summary: 'List targets by id, each with the head of its lane',
    access: 'read',
    query: z.strictObject({ ...pageQuery(), paused: booleanQuery().optional() }),
    answers: { 200: pageSchema('targets', targetSchema) },
    problems: ['INVALID_CURSOR'],
    handle: async ({ tenant, db, query }) => {
      const list = { name: `targets:${tenant.id}`, position: ['text'] } as const;
      const { rows, next_cursor } = await paged(list, query, async ([after = ''], limit) => {
        const found = await listTargets(db, tenant.schema, { after, limit: limit + 1, paused: query.paused });
        return pageOf(found, limit, (last) => [last.id]);
      });
      const ids = rows.map((target) => target.id);
      const heads = await readHeads(db, tenant.schema, ids);
      return { targets: rows.map((target) => targetToApi(target, heads.get(target.id))), next_cursor };
    },
  });
  group.route({
    method: 'get',
    path: '/api/targets/{target_id}',
    summary: 'Read a target and its lane',
    access: 'read',
    params: targetParams,
    answers: { 200: targetLaneSchema },
    problems: ['NOT_FOUND'],
    handle: async ({ tenant, db, params }) => {
      if (!isTargetId(params.target_id)) throw problem('NOT_FOUND', 'There is no such target.');
      const target = await mustFindTarget(db, tenant.schema, params.target_id);
      return targetLaneToApi(target, await readLane(db, tenant.schema, target.id));
    },
  });
}

function addLabels(group: RouteGroup): void {
  const answers = { 200: targetLaneSchema };
  const show = async (db: Database, tenant: Tenant, target: Target) =>
    targetLaneToApi(target, await readLane(db, tenant.schema, target.id));
  group.route({
    method: 'put',
    path: '/api/targets/{target_id}',
    summary: 'Create a target, or replace its labels',
    access: 'control',
    params: targetParams,
    body: z.strictObject({ labels }),
    answers,
    handle: async ({ tenant, db, params, body }) =>
      show(db, tenant, await labelTarget(db, tenant.schema, writableId(params.target_id), body.labels)),
  });
  group.route({
    method: 'patch',
    path: '/api/targets/{target_id}',
    summary: 'Change labels; null removes one',
    access: 'control',
    params: targetParams,
    body: z.strictObject({ labels: z.record(nameField(100), z.string().max(500).nullable()) }),
    answers,
    problems: ['NOT_FOUND'],
    handle: async ({ tenant, db, params, body }) => {
      if (!isTargetId(params.target_id)) throw problem('NOT_FOUND', 'There is no such target.');
      const { id } = await mustFindTarget(db, tenant.schema, params.target_id);
      const target = await changeLabels(db, tenant.schema, id, body.labels, maxLabels);
      if (target === undefined) throw invalidFields([{ field: 'labels', message: tooManyLabels }]);
      return show(db, tenant, target);
    },
  });
}

function addPauses(group: RouteGroup, { signals }: TargetDependencies): void {
  const answers = { 200: targetLaneSchema };
  group.route({
    method: 'post',
    path: '/api/targets/{target_id}/pause',
    summary: 'Pause a target: a running job continues, no other starts',
    access: 'control',
    params: targetParams,
    body: z.strictObject({ ...auditFields, until: timeField().optional().describe('When the pause ends.') }),
    bodyOptional: true,
    answers,
    handle: async ({ tenant, db, params, body, actor }) => {
      const targetId = writableId(params.target_id);
      const target = await pauseTarget(db, tenant.schema, { ...body, targetId, actor });
      return targetLaneToApi(target, await readLane(db, tenant.schema, targetId));
    },
  });
  group.route({
    method: 'post',
    path: '/api/targets/{target_id}/resume',
    summary: 'Resume a paused target',
    access: 'control',
    params: targetParams,
    body: z.strictObject(auditFields),
    bodyOptional: true,
    answers,
    problems: ['NOT_FOUND'],
    handle: async ({ tenant, db, params, body, actor }) => {
      if (!isTargetId(params.target_id)) throw problem('NOT_FOUND', 'There is no such target.');
      const target = await resumeTarget(db, tenant.schema, { ...body, targetId: params.target_id, actor });
      signals.jobsWritten(tenant);
      return targetLaneToApi(target, await readLane(db, tenant.schema, target.id));
    },
  });
}

function addCanary(group: RouteGroup, { signals }: TargetDependencies): void {
  group.route({
    method: 'post',
    path: '/api/targets/{target_id}/canary',
    summary: 'Let one job of a held or paused target run; the lane resumes if it succeeds',
    description:
      'Resumes the job that holds the lane, or starts the next of a paused target. The jobs behind it wait. SUCCESS and ' +
      'PARTIAL end the pause; after any other end the lane stays stopped. Asking again while the canary runs changes nothing.',
    access: 'control',
    params: targetParams,
    body: z.strictObject({
      ...auditFields,
      job_id: z.uuid().optional().describe('Refuse with 409 if another job would be the canary.'),
    }),
    bodyOptional: true,
    answers: { 200: targetLaneSchema },
    problems: ['NOT_FOUND', 'CONFLICT'],
    handle: async ({ tenant, db, params, body, actor }) => {
      if (!isTargetId(params.target_id)) throw problem('NOT_FOUND', 'There is no such target.');
      const { reason, author, job_id: jobId } = body;
      const target = await startCanary(db, tenant.schema, {
        targetId: params.target_id,
        actor,
        author,
        reason,
        jobId,
      });
      signals.jobsWritten(tenant);
      return targetLaneToApi(target, await readLane(db, tenant.schema, target.id));
    },
  });
}

function writableId(targetId: string): string {
  if (isTargetId(targetId)) return targetId;
  throw invalidFields([{ field: 'target_id', message: 'must be 1 to 200 printable characters, not . or ..' }]);
}

function targetToApi(target: Target, head: LaneJob | undefined): z.input<typeof targetSchema> {
  return toApi(targetSchema, target, {
    paused: target.pausedAt !== null,
    head: head === undefined ? null : laneJobToApi(head),
    hold: laneHold(target, head),
  });
}

export function targetLaneToApi(target: Target, lane: Lane): z.input<typeof targetLaneSchema> {
  return {
    ...targetToApi(target, lane.head),
    waiting: Math.min(lane.waiting, maxCounted),
    waiting_exact: lane.waiting <= maxCounted,
    next: lane.next.map(laneJobToApi),
  };
}

function laneJobToApi(job: LaneJob): z.input<typeof laneJobSchema> {
  return toApi(laneJobSchema, job, {
    priority: priorities[job.priority] ?? 'NORMAL',
    error: job.error && withoutTrace(job.error),
    hold: holdOf(job) ?? null,
    run_at: unlessNever(job.runAt),
  });
}

function laneHold(target: Target, head: LaneJob | undefined): z.input<typeof holdSchema> | null {
  const hold = head && holdOf(head);
  if (head !== undefined && hold !== undefined && (holdsLane(head) || hold.kind === 'handler'))
    return jobHold(head, hold);
  if (target.pausedAt === null || target.canaryJobId !== null) return null;
  const why = target.pauseReason === null ? '' : `: ${target.pauseReason}`;
  return {
    by: 'pause',
    detail: `Paused by ${target.pausedBy}${why}`,
    since: target.pausedAt,
    job_id: null,
    kind: 'user',
    reason: target.pauseReason,
    author: target.pausedBy,
  };
}

function jobHold(head: LaneJob, hold: Hold): z.input<typeof holdSchema> {
  const { kind, reason, author, since } = hold;
  const detail = `Job ${head.id} is ${head.status}: ${describeHold(hold)}`;
  return { by: 'job', detail, since, job_id: head.id, kind, reason, author };
}
