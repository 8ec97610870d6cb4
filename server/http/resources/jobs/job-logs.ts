// The log lines of a job's handler, oldest first.
import { z } from 'zod';
import type { Database } from '../../../database/database.ts';
import { listLogs, maxLogLines } from '../../../jobs/attempt/logs.ts';
import type { Tenant } from '../../../tenants/tenant.ts';
import { type PageQuery, paged, pageQuery, pageSchema } from '../../request/paging.ts';
import { RouteGroup } from '../../route.ts';
import { jobParams, targetJobParams } from './job-schema.ts';
import { mustReadJob } from './jobs.ts';

const lineSchema = z
  .strictObject({
    at: z.iso.datetime({ offset: true }),
    attempt: z.int(),
    level: z.enum(['info', 'warn', 'error']),
    message: z.string(),
    data: z.record(z.string(), z.unknown()).nullable(),
  })
  .meta({ id: 'LogLine' });

const answers = { 200: pageSchema('lines', lineSchema) };
const logQuery = z.strictObject({ ...pageQuery({ defaultLimit: 200, maxLimit: 1000 }) });

export function jobLogRoutes(): RouteGroup {
  const group = new RouteGroup('Jobs');
  const description = `About the newest ${maxLogLines} lines are kept. To follow a running job, repeat the request with the last cursor.`;
  const read = async (db: Database, tenant: Tenant, jobId: string, query: PageQuery, targetId?: string) => {
    const job = await mustReadJob(db, tenant, jobId, targetId);
    const list = { name: `logs:${tenant.id}:${job.id}`, position: ['integer'] } as const;
    const { rows, next_cursor } = await paged(list, query, async ([after], limit) => {
      const lines = await listLogs(db, tenant.schema, job.id, { after: after ?? '0', limit });
      // There is always a next cursor: a running job may log more.
      const last = lines.at(-1)?.seq ?? after;
      return { rows: lines, next: last === undefined ? undefined : [last] };
    });
    return { lines: rows.map(({ seq: _, ...line }) => line), next_cursor };
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
    handle: ({ tenant, db, params, query }) => read(db, tenant, params.job_id, query),
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
    handle: ({ tenant, db, params, query }) => read(db, tenant, params.job_id, query, params.target_id),
  });
  return group;
}
