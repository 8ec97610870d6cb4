// /api/lanes: all lanes with their head, the next jobs and the hold, for the dashboard.
import { z } from 'zod';
import { type LaneRow, listLanes } from '../../../jobs/lanes/read-lanes.ts';
import { paged, pageQuery, pageSchema } from '../../request/paging.ts';
import { RouteGroup } from '../../route.ts';
import { laneJobSchema } from './job-schema.ts';
import { targetLaneSchema, targetLaneToApi } from './targets.ts';

const time = z.iso.datetime({ offset: true });
const selections = ['all', 'held', 'paused', 'running'] as const;

const laneSchema = targetLaneSchema
  .extend({
    head: laneJobSchema
      .extend({
        progress: z.number().nullable(),
        progress_message: z.string().nullable(),
        attempts: z.int(),
        started_at: time.nullable(),
      })
      .nullable(),
    oldest_waiting_at: time.nullable().describe('When the longest waiting job was enqueued.'),
  })
  .meta({ id: 'Lane' });

export function laneRoutes(): RouteGroup {
  const group = new RouteGroup('Targets');
  group.route({
    method: 'get',
    path: '/api/lanes',
    summary: 'List lanes by target: head, next jobs, hold',
    description: 'With a search a page may be short, even empty, and still have a next one.',
    access: 'read',
    query: z.strictObject({
      ...pageQuery({ defaultLimit: 25, maxLimit: 100 }),
      show: z.enum(selections).default('all').describe('`held`: lanes that a job holds until a person acts.'),
      search: z.string().min(1).max(200).optional().describe("Part of the target's id."),
    }),
    answers: { 200: pageSchema('lanes', laneSchema) },
    problems: ['INVALID_CURSOR'],
    handle: async ({ tenant, db, query }) => {
      const { show, search } = query;
      const list = { name: `lanes:${tenant.id}:${show}:${search ?? ''}`, position: ['text'] } as const;
      const { rows, next_cursor } = await paged(list, query, async ([after = ''], limit) => {
        const { lanes, next } = await listLanes(db, tenant.schema, { selection: show, search, after, limit });
        return { rows: lanes, next: next === undefined ? undefined : [next] };
      });
      return { lanes: rows.map(laneToApi), next_cursor };
    },
  });
  return group;
}

function laneToApi({ target, oldestWaitingAt, ...lane }: LaneRow): z.input<typeof laneSchema> {
  const shown = targetLaneToApi(target, lane);
  const head =
    lane.head && shown.head
      ? {
          ...shown.head,
          progress: lane.head.progress,
          progress_message: lane.head.progressMessage,
          attempts: lane.head.attempt,
          started_at: lane.head.startedAt,
        }
      : null;
  return { ...shown, head, oldest_waiting_at: oldestWaitingAt };
}
