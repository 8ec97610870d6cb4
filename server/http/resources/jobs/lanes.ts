// /api/lanes: targets with their lanes, as they are drawn: the head, the line behind it, the hold.
import { z } from 'zod';
import type { Database } from '../../../database/database.ts';
import { listLanes } from '../../../jobs/lanes/read-lanes.ts';
import { encodeCursor, pageQuery } from '../../request/paging.ts';
import { RouteGroup } from '../../route.ts';
import { laneJobSchema, targetLaneSchema, targetLaneToApi } from './targets.ts';

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
    oldest_waiting_at: time.nullable().describe('When the job was enqueued that waits longest.'),
  })
  .meta({ id: 'Lane' });

export function laneRoutes({ db }: { db: Database }): RouteGroup {
  const group = new RouteGroup('Targets');
  group.route({
    method: 'get',
    path: '/api/lanes',
    summary: 'List lanes by target: the head, the next in line, the hold',
    description: 'With a search a page may be short, even empty, and still have a next one.',
    access: 'read',
    query: z.strictObject({
      ...pageQuery({ defaultLimit: 25, maxLimit: 100 }),
      show: z.enum(selections).default('all').describe('`held`: stopped by a job that waits for a person.'),
      search: z.string().min(1).max(200).optional().describe("Part of the target's id."),
    }),
    answers: { 200: z.strictObject({ lanes: z.array(laneSchema), next_cursor: z.string().nullable() }) },
    problems: ['INVALID_CURSOR'],
    handle: async ({ tenant, query }) => {
      const list = `lanes:${tenant.id}:${query.show}:${query.search ?? ''}`;
      const [after = ''] = query.cursor?.position(list, ['text']) ?? [];
      const { search, limit } = query;
      const page = await listLanes(db, tenant.schema, { selection: query.show, search, after, limit });
      return {
        lanes: page.lanes.map(({ target, head, next, waiting, oldestWaitingAt }) => {
          const lane = targetLaneToApi(target, { head, next, waiting });
          return {
            ...lane,
            head:
              head && lane.head
                ? {
                    ...lane.head,
                    progress: head.progress,
                    progress_message: head.progressMessage,
                    attempts: head.attempt,
                    started_at: head.startedAt,
                  }
                : null,
            oldest_waiting_at: oldestWaitingAt,
          };
        }),
        next_cursor: page.next === undefined ? null : encodeCursor(list, [page.next]),
      };
    },
  });
  return group;
}
