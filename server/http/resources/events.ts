// The event log over HTTP: a job's history and the tenant's log. The live stream is in event-stream.ts.
import { z } from 'zod';
import type { Database } from '../../database/database.ts';
import { eventToApi } from '../../events/log/event-to-api.ts';
import { type EventPage, type EventPlace, readHistory, readLog } from '../../events/log/read-log.ts';
import { findJob } from '../../jobs/read/find-job.ts';
import { problem } from '../../kernel/errors.ts';
import { timeField } from '../../kernel/fields.ts';
import { openText, sealText } from '../../kernel/sealed-text.ts';
import type { Tenant } from '../../tenants/tenant.ts';
import { type Cursor, encodeCursor, invalidCursor } from '../cursor.ts';
import { pageQuery } from '../query.ts';
import { RouteGroup } from '../route.ts';
import { eventPageSchema, jobIdParam, targetIdParam } from './event-schemas.ts';

export function eventRoutes({ db }: { db: Database }): RouteGroup {
  const group = new RouteGroup('Events');
  group.route({
    method: 'get',
    path: '/api/jobs/{job_id}/events',
    summary: 'The history of a job, oldest first',
    access: 'read',
    params: z.strictObject({ job_id: z.string() }),
    query: z.strictObject(pageQuery({ maxLimit: 1000 })),
    answers: { 200: eventPageSchema },
    problems: ['NOT_FOUND', 'INVALID_CURSOR'],
    handle: ({ params, query, tenant }) => history(db, tenant, { jobId: params.job_id }, query),
  });
  group.route({
    method: 'get',
    path: '/api/targets/{target_id}/jobs/{job_id}/events',
    summary: "The history of a target's job, oldest first",
    access: 'read',
    params: z.strictObject({ target_id: z.string(), job_id: z.string() }),
    query: z.strictObject(pageQuery({ maxLimit: 1000 })),
    answers: { 200: eventPageSchema },
    problems: ['NOT_FOUND', 'INVALID_CURSOR'],
    handle: ({ params, query, tenant }) =>
      history(db, tenant, { jobId: params.job_id, targetId: params.target_id }, query),
  });
  group.route({
    method: 'get',
    path: '/api/events',
    summary: 'The event log, newest first',
    description:
      'Each page reads a bounded part of the log: with filters a page may be short, even empty, and still have a next one.',
    access: 'read',
    query: z.strictObject({
      ...pageQuery({ maxLimit: 1000 }),
      type: z
        .string()
        .max(2000)
        .transform((text) => text.split(','))
        .optional()
        .describe('One type, or several with commas between them.'),
      job_id: jobIdParam.optional(),
      target_id: targetIdParam.optional(),
      actor: z.string().max(300).optional(),
      since: timeField().optional().describe('At this time or later.'),
      until: timeField().optional().describe('Before this time.'),
    }),
    answers: { 200: eventPageSchema },
    problems: ['INVALID_CURSOR'],
    async handle({ query, tenant }) {
      const list = `events:${tenant.id}`;
      const page = await readLog(db, tenant.schema, {
        types: query.type,
        jobId: query.job_id,
        targetId: query.target_id,
        actor: query.actor,
        since: query.since,
        until: query.until,
        before: placeOf(tenant, list, query.cursor),
        limit: query.limit,
      });
      return present(tenant, list, page);
    },
  });
  return group;
}

async function history(
  db: Database,
  tenant: Tenant,
  of: { jobId: string; targetId?: string },
  query: { limit: number; cursor?: Cursor | undefined },
) {
  if (!jobIdParam.safeParse(of.jobId).success) throw problem('NOT_FOUND', 'There is no such job.');
  const list = `events:${tenant.id}:${of.jobId}`;
  const after = placeOf(tenant, list, query.cursor);
  const page = await readHistory(db, tenant.schema, { ...of, after, limit: query.limit });
  // A job that retention deleted still has its history; one whose history was deleted still has its row.
  if (page.events.length === 0 && !after) {
    const job = await findJob(db, tenant.schema, of.jobId);
    if (!job || (of.targetId !== undefined && job.targetId !== of.targetId)) {
      throw problem('NOT_FOUND', 'There is no such job.');
    }
  }
  return present(tenant, list, page);
}

/** Sealed: transaction ids are counted over all tenants. */
function placeOf({ secret }: Tenant, list: string, cursor: Cursor | undefined): EventPlace | undefined {
  if (cursor === undefined) return undefined;
  const [sealed] = cursor.position(list, ['text']);
  const [, xid, seq] = /^(\d{1,20}):(\d{1,19})$/.exec(openText(secret, list, sealed) ?? '') ?? [];
  if (xid === undefined || seq === undefined) throw invalidCursor();
  return { xid, seq };
}

function present({ secret }: Tenant, list: string, page: EventPage) {
  return {
    events: page.events.map(eventToApi),
    next_cursor: page.next ? encodeCursor(list, [sealText(secret, list, `${page.next.xid}:${page.next.seq}`)]) : null,
  };
}
