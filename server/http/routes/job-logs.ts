// What a job's handler logged, page by page, oldest first.
import { z } from 'zod';
import type { Database } from '../../database/database.ts';
import { listLogs, mostLogLines } from '../../jobs/logs.ts';
import { encodeCursor } from '../cursor.ts';
import { pageQuery } from '../query.ts';
import { RouteGroup } from '../route.ts';
import { jobParams, mustReadJob } from './jobs.ts';

const lineSchema = z
  .strictObject({
    at: z.iso.datetime({ offset: true }),
    attempt: z.int(),
    level: z.enum(['info', 'warn', 'error']),
    message: z.string(),
    data: z.record(z.string(), z.unknown()).nullable(),
  })
  .meta({ id: 'LogLine' });

export function jobLogRoutes({ db }: { db: Database }): RouteGroup {
  const group = new RouteGroup('Jobs');
  group.route({
    method: 'get',
    path: '/api/jobs/{job_id}/logs',
    summary: "Read the lines that a job's handler logged, oldest first",
    description: `About the newest ${mostLogLines} lines are kept. To follow a running job, ask again with the last cursor.`,
    access: 'read',
    params: jobParams,
    query: z.strictObject({ ...pageQuery({ defaultLimit: 200, maxLimit: 1000 }) }),
    answers: { 200: z.strictObject({ lines: z.array(lineSchema), next_cursor: z.string().nullable() }) },
    problems: ['NOT_FOUND', 'INVALID_CURSOR'],
    handle: async ({ tenant, params, query }) => {
      const job = await mustReadJob(db, tenant, params.job_id);
      const list = `logs:${tenant.id}:${job.id}`;
      const [after = '0'] = query.cursor?.position(list, ['integer']) ?? [];
      const lines = await listLogs(db, tenant.schema, job.id, { after, limit: query.limit });
      const last = lines.at(-1)?.seq ?? (query.cursor === undefined ? undefined : after);
      return {
        lines: lines.map(({ seq: _, ...line }) => line),
        // Also behind the last line: a running job may say more.
        next_cursor: last === undefined ? null : encodeCursor(list, [last]),
      };
    },
  });
  return group;
}
