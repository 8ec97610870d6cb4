// /api/events: the history of a job, the log of the tenant, and the live stream.
import { z } from 'zod';
import type { Database, Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { eventToApi } from '../../events/log/event.ts';
import { type EventPage, type EventPlace, readHistory, readLog } from '../../events/log/read-log.ts';
import { durableSnapshot } from '../../events/log/transaction-ids.ts';
import type { StreamFilter } from '../../events/stream/frames.ts';
import type { EventStreams } from '../../events/stream/streams.ts';
import type { CommitSignals } from '../../jobs/commit-signals.ts';
import type { Job } from '../../jobs/model/job.ts';
import { isTerminal, statuses } from '../../jobs/model/states.ts';
import { findJob, listJobs } from '../../jobs/read/read-jobs.ts';
import { eventName, type Receipt, receiveEvent, sentEvent } from '../../jobs/received/receive-event.ts';
import { problem } from '../../kernel/errors.ts';
import { timeField } from '../../kernel/fields.ts';
import { openText, sealText } from '../../kernel/sealed-text.ts';
import type { TenantRegistry } from '../../tenants/registry.ts';
import type { Tenant } from '../../tenants/tenant.ts';
import { callerOf } from '../request/authenticate.ts';
import { booleanQuery, invalidCursor, type PageQuery, paged, pageQuery } from '../request/paging.ts';
import { handled, RouteGroup, reply } from '../route.ts';
import { toApi } from '../to-api.ts';
import { jobSummaryToApi } from './jobs/job-schema.ts';

const eventSchema = z
  .strictObject({
    id: z.string().describe('Its number in the log of the tenant.'),
    at: z.string(),
    type: z.string().describe('What happened, e.g. `job.started`.'),
    job_id: z.string().nullable(),
    target_id: z.string().nullable(),
    from: z.string().nullable().describe('Status before.'),
    to: z.string().nullable().describe('Status after.'),
    attempt: z.int().nullable(),
    lease_id: z.string().nullable(),
    actor: z.string().describe('Who: `key:<id>`, `user:<name>`, `worker:<id>`, `sweeper:<daemon>`, `schedule:<name>`.'),
    data: z.record(z.string(), z.unknown()).nullable(),
  })
  .meta({ id: 'Event' });

const eventPageSchema = z.strictObject({
  events: z.array(eventSchema),
  next_cursor: z.string().nullable().describe('Null at the end. A page may be short and still have a next one.'),
});

const jobIdParam = z.uuid().transform((id) => id.toLowerCase());
const targetIdParam = z.string().min(1).max(200);

export function eventRoutes(): RouteGroup {
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
    handle: ({ params, query, tenant, db }) => history(db, tenant, { jobId: params.job_id }, query),
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
    handle: ({ params, query, tenant, db }) =>
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
        .describe('One type, or several separated by commas.'),
      job_id: jobIdParam.optional(),
      target_id: targetIdParam.optional(),
      actor: z.string().max(300).optional(),
      since: timeField().optional().describe('At this time or later.'),
      until: timeField().optional().describe('Before this time.'),
    }),
    answers: { 200: eventPageSchema },
    problems: ['INVALID_CURSOR'],
    async handle({ query, tenant, db }) {
      const filter = {
        types: query.type,
        jobId: query.job_id,
        targetId: query.target_id,
        actor: query.actor,
        since: query.since,
        until: query.until,
      };
      return pagedEvents(tenant, `events:${tenant.id}`, query, (before, limit) =>
        readLog(db, tenant.schema, { ...filter, before, limit }),
      );
    },
  });
  return group;
}

async function history(db: Database, tenant: Tenant, of: { jobId: string; targetId?: string }, query: PageQuery) {
  if (!jobIdParam.safeParse(of.jobId).success) throw problem('NOT_FOUND', 'There is no such job.');
  return pagedEvents(tenant, `events:${tenant.id}:${of.jobId}`, query, async (after, limit) => {
    const page = await readHistory(db, tenant.schema, { ...of, after, limit });
    // A job that retention deleted still has its history, and a job whose history was deleted still has its row.
    if (page.events.length === 0 && after === undefined) {
      const job = await findJob(db, tenant.schema, of.jobId);
      if (!job || (of.targetId !== undefined && job.targetId !== of.targetId)) {
        throw problem('NOT_FOUND', 'There is no such job.');
      }
    }
    return page;
  });
}

/** Positions are encrypted, because they contain transaction ids, which count over all tenants. */
async function pagedEvents(
  { secret }: Tenant,
  list: string,
  query: PageQuery,
  read: (place: EventPlace | undefined, limit: number) => Promise<EventPage>,
) {
  const { rows, next_cursor } = await paged({ name: list, position: ['text'] }, query, async ([sealed], limit) => {
    const { events, next } = await read(sealed === undefined ? undefined : openPlace(secret, list, sealed), limit);
    return { rows: events, next: next && [sealText(secret, list, `${next.xid}:${next.seq}`)] };
  });
  return { events: rows.map(eventToApi), next_cursor };
}

function openPlace(secret: string, list: string, sealed: string): EventPlace {
  const [, xid, seq] = /^(\d{1,20}):(\d{1,19})$/.exec(openText(secret, list, sealed) ?? '') ?? [];
  if (xid === undefined || seq === undefined) throw invalidCursor();
  return { xid, seq };
}

interface EventStreamDependencies {
  db: Database;
  streams: EventStreams;
  registry: Pick<TenantRegistry, 'byId'>;
}

export function eventStreamRoutes(deps: EventStreamDependencies): RouteGroup {
  const group = new RouteGroup('Events');
  group.route({
    method: 'get',
    path: '/api/events/stream',
    summary: 'The live stream of events',
    description:
      'Server-sent events, named `job:started`, `job:completed`…; the data is an Event. A reader that reconnects ' +
      'with `Last-Event-ID` misses no event and gets none twice; the event `reset` means that this was not possible.',
    access: 'read',
    query: z.strictObject({
      job_id: jobIdParam.optional(),
      target_id: targetIdParam.optional(),
      snapshot: booleanQuery().optional().describe('Send the current jobs that match the filter first.'),
      last_event_id: z.string().max(8000).optional().describe('For clients that cannot set the header.'),
    }),
    contentType: 'text/event-stream',
    // Readers of one tenant share their reads, and stay connected for hours.
    turns: 'own',
    answers: { 200: z.string() },
    problems: ['TOO_MANY_REQUESTS', 'DRAINING'],
    async handle({ query, tenant, db, key, request, response, withTurn }) {
      if (request.method === 'HEAD') return reply(200, undefined, { 'Content-Type': 'text/event-stream' });
      const filter = { jobId: query.job_id, targetId: query.target_id };
      const caller = callerOf(response);
      await deps.streams.open(response, {
        tenant,
        keyId: key.id,
        filter,
        // A browser that reconnects sends the header, with the URL of its first request.
        lastEventId: request.get('Last-Event-ID') || query.last_event_id || undefined,
        readSnapshot: query.snapshot ? () => withTurn(() => readSelection(db, tenant.schema, filter)) : undefined,
        async stillAllowed() {
          const known = deps.registry.byId(tenant.id);
          if (!known || known.status === 'DELETING') return false;
          const current = await caller?.recheck();
          if (current === undefined) return false;
          return current.tenantId === null || (current.tenantId === tenant.id && current.scopes.includes('read'));
        },
      });
      return handled;
    },
  });
  return group;
}

// More than a screen shows. Lists read the jobs of a large tenant.
const maxSnapshotJobs = 500;

/**
 * Returns the jobs that match the filter of a stream, and the database snapshot in which they were read. The stream
 * continues after this snapshot.
 */
async function readSelection(db: Database, schema: Schema, selection: StreamFilter) {
  return db.transaction(async (tx) => {
    await tx.query('set transaction isolation level repeatable read, read only');
    const [row] = await tx.query<{ snapshot: string }>(`select ${durableSnapshot(schema)}::text as snapshot`);
    const { jobs, complete } = await readJobs(tx, schema, selection);
    return { snapshot: row?.snapshot ?? '', content: { jobs: jobs.map(jobSummaryToApi), complete } };
  });
}

/** One job in any status; without a job id, all unfinished jobs. */
async function readJobs(
  tx: Queryable,
  schema: Schema,
  { jobId, targetId }: StreamFilter,
): Promise<{ jobs: Job[]; complete: boolean }> {
  if (jobId !== undefined) {
    const job = await findJob(tx, schema, jobId);
    const wanted = job && (targetId === undefined || job.targetId === targetId);
    return { jobs: wanted ? [job] : [], complete: true };
  }
  const unfinished = statuses.filter((status) => !isTerminal(status));
  const page = await listJobs(tx, schema, { statuses: unfinished, targetId }, { limit: maxSnapshotJobs });
  return { jobs: page.jobs, complete: page.next === undefined };
}

// POST /api/events/{name}: events from outside, for jobs that wait for them.

interface ReceivedEventDependencies {
  signals: CommitSignals;
}

const receiptSchema = z
  .strictObject({
    id: z.string().describe('The given id, else a generated one.'),
    name: z.string(),
    received_at: z.iso.datetime({ offset: true }),
  })
  .meta({ id: 'EventReceipt' });

export function receivedEventRoutes({ signals }: ReceivedEventDependencies): RouteGroup {
  const group = new RouteGroup('Events');
  group.route({
    method: 'post',
    path: '/api/events/{name}',
    summary: 'Send an event to the jobs that wait for it',
    description:
      'Every job that waits for an event of this name, with data that contains its `match`, gets it exactly once. So does a job ' +
      'that was enqueued before and begins to wait later. 201: it was received. 200: an event of this name and `id` was received before.',
    access: 'enqueue',
    params: z.strictObject({ name: eventName }),
    body: sentEvent,
    bodyOptional: true,
    answers: { 201: receiptSchema, 200: receiptSchema },
    problems: ['IDEMPOTENCY_CONFLICT', 'CONFLICT', 'TENANT_SUSPENDED', 'PAYLOAD_TOO_LARGE'],
    handle: async ({ tenant, db, params, body, actor }) => {
      const { replayed, ...receipt } = await receiveEvent(db, tenant.schema, { ...params, ...body }, actor);
      signals.eventReceived(tenant);
      return reply(replayed ? 200 : 201, receiptToApi(receipt));
    },
  });
  return group;
}

function receiptToApi(receipt: Receipt): z.input<typeof receiptSchema> {
  return toApi(receiptSchema, receipt);
}
