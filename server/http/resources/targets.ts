// /api/targets: lanes as people see them. List, look, label, pause and resume.
import { z } from 'zod';
import type { Database } from '../../database/database.ts';
import { readHeads, readLane } from '../../jobs/lanes/read-lane.ts';
import {
  changeLabels,
  labelTarget,
  listTargets,
  mustFindTarget,
  pauseTarget,
  resumeTarget,
  type Target,
} from '../../jobs/lanes/target.ts';
import { problem } from '../../kernel/errors.ts';
import { isTargetId, nameField, timeField } from '../../kernel/fields.ts';
import { invalidFields } from '../../kernel/parse.ts';
import type { Tenant } from '../../tenants/tenant.ts';
import { booleanQuery, encodeCursor, pageQuery } from '../paging.ts';
import { RouteGroup } from '../route.ts';
import { auditFields } from './job-actions.ts';
import { targetParams } from './jobs.ts';
import { targetLaneSchema, targetLaneToApi, targetSchema, targetToApi } from './target-schemas.ts';

interface TargetDependencies {
  db: Database;
  /** A hint that a lane may have moved on. */
  wake?(tenant: Tenant): void;
}

const maxLabels = 50;
const tooManyLabels = `must be at most ${maxLabels} labels`;
const labels = z
  .record(nameField(100), z.string().max(500))
  .refine((given) => Object.keys(given).length <= maxLabels, tooManyLabels);

export function targetRoutes(deps: TargetDependencies): RouteGroup {
  const group = new RouteGroup('Targets');
  addReads(group, deps);
  addLabels(group, deps);
  addPauses(group, deps);
  return group;
}

function addReads(group: RouteGroup, { db }: TargetDependencies): void {
  group.route({
    method: 'get',
    path: '/api/targets',
    summary: 'List targets by id, each with the head of its lane',
    access: 'read',
    query: z.strictObject({ ...pageQuery(), paused: booleanQuery().optional() }),
    answers: { 200: z.strictObject({ targets: z.array(targetSchema), next_cursor: z.string().nullable() }) },
    problems: ['INVALID_CURSOR'],
    handle: async ({ tenant, query }) => {
      const list = `targets:${tenant.id}`;
      const [after = ''] = query.cursor?.position(list, ['text']) ?? [];
      const found = await listTargets(db, tenant.schema, { after, limit: query.limit + 1, paused: query.paused });
      const page = found.slice(0, query.limit);
      const heads = await readHeads(
        db,
        tenant.schema,
        page.map((target) => target.id),
      );
      const last = found.length > page.length ? page.at(-1) : undefined;
      return {
        targets: page.map((target) => targetToApi(target, heads.get(target.id))),
        next_cursor: last === undefined ? null : encodeCursor(list, [last.id]),
      };
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
    handle: async ({ tenant, params }) => {
      if (!isTargetId(params.target_id)) throw problem('NOT_FOUND', 'There is no such target.');
      const target = await mustFindTarget(db, tenant.schema, params.target_id);
      return targetLaneToApi(target, await readLane(db, tenant.schema, target.id));
    },
  });
}

function addLabels(group: RouteGroup, { db }: TargetDependencies): void {
  const answers = { 200: targetLaneSchema };
  const show = async (tenant: Tenant, target: Target) =>
    targetLaneToApi(target, await readLane(db, tenant.schema, target.id));
  group.route({
    method: 'put',
    path: '/api/targets/{target_id}',
    summary: 'Make a target, or replace its labels',
    access: 'control',
    params: targetParams,
    body: z.strictObject({ labels }),
    answers,
    handle: async ({ tenant, params, body }) =>
      show(tenant, await labelTarget(db, tenant.schema, writableId(params.target_id), body.labels)),
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
    handle: async ({ tenant, params, body }) => {
      if (!isTargetId(params.target_id)) throw problem('NOT_FOUND', 'There is no such target.');
      const { id } = await mustFindTarget(db, tenant.schema, params.target_id);
      const target = await changeLabels(db, tenant.schema, id, body.labels, maxLabels);
      if (target === undefined) throw invalidFields([{ field: 'labels', message: tooManyLabels }]);
      return show(tenant, target);
    },
  });
}

function addPauses(group: RouteGroup, { db, wake }: TargetDependencies): void {
  const answers = { 200: targetLaneSchema };
  group.route({
    method: 'post',
    path: '/api/targets/{target_id}/pause',
    summary: 'Pause a target: what runs goes on, nothing starts',
    access: 'control',
    params: targetParams,
    body: z.strictObject({ ...auditFields, until: timeField().optional().describe('When the pause ends by itself.') }),
    bodyOptional: true,
    answers,
    handle: async ({ tenant, params, body, actor }) => {
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
    handle: async ({ tenant, params, body, actor }) => {
      if (!isTargetId(params.target_id)) throw problem('NOT_FOUND', 'There is no such target.');
      const target = await resumeTarget(db, tenant.schema, { ...body, targetId: params.target_id, actor });
      wake?.(tenant);
      return targetLaneToApi(target, await readLane(db, tenant.schema, target.id));
    },
  });
}

function writableId(targetId: string): string {
  if (isTargetId(targetId)) return targetId;
  throw invalidFields([{ field: 'target_id', message: 'must be 1 to 200 printable characters, not . or ..' }]);
}
