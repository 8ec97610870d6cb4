// What a job's handler logged, page by page, oldest first.
import { z } from 'zod';
import type { Database } from '../../database/database.ts';
import { listLogs, maxLogLines } from '../../jobs/attempt/logs.ts';
import type { Tenant } from '../../tenants/tenant.ts';
import { encodeCursor, pageQuery } from '../paging.ts';
import { RouteGroup } from '../route.ts';
import { jobParams, mustReadJob, targetJobParams } from './jobs.ts';

const lineSchema = z
  .strictObject({
    at: z.iso.datetime({ offset: true }),
    attempt: z.int(),
    level: z.enum(['info', 'warn', 'error']),
    message: z.string(),
    data: z.record(z.string(), z.unknown()).nullable(),
  })
  .meta({ id: 'LogLine' });

const answers = { 200: z.strictObject({ lines: z.array(lineSchema), next_cursor: z.string().nullable() }) };
const logQuery = z.strictObject({ ...pageQuery({ defaultLimit: 200, maxLimit: 1000 }) });
type LogQuery = z.output<typeof logQuery>;

export function jobLogRoutes({ db }: { db: Database }): RouteGroup {
  const group = new RouteGroup('Jobs');
  const description = `About the newest ${maxLogLines} lines are kept. To follow a running job, ask again with the last cursor.`;
  const read = async (tenant: Tenant, jobId: string, { cursor, limit }: LogQuery, targetId?: string) => {
    const job = await mustReadJob(db, tenant, jobId, targetId);
    const list = `logs:${tenant.id}:${job.id}`;
    const [after = '0'] = cursor?.position(list, ['integer']) ?? [];
    const lines = await listLogs(db, tenant.schema, job.id, { after, limit });
    const last = lines.at(-1)?.seq ?? (cursor === undefined ? undefined : after);
    return {
      lines: lines.map(({ seq: _, ...line }) => line),
      // Also behind the last line: a running job may say more.
      next_cursor: last === undefined ? null : encodeCursor(list, [last]),
    };
  };
  group.route({
    method: 'get',
    path: '/api/jobs/{job_id}/logs',
    summary: "Read the lines that a job's handler logged, oldest first",
    description,
    access: 'read',
    params: jobParams,
    query: logQuery,
    answers,
    problems: ['NOT_FOUND', 'INVALID_CURSOR'],
    handle: ({ tenant, params, query }) => read(tenant, params.job_id, query),
  });
  group.route({
    method: 'get',
    path: '/api/targets/{target_id}/jobs/{job_id}/logs',
    summary: "Read the lines that the handler of a target's job logged, oldest first",
    description,
    access: 'read',
    params: targetJobParams,
    query: logQuery,
    answers,
    problems: ['NOT_FOUND', 'INVALID_CURSOR'],
    handle: ({ tenant, params, query }) => read(tenant, params.job_id, query, params.target_id),
  });
  return group;
}
