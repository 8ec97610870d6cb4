// Times, cursors and cron expressions that Postgres or a library would choke on, in every route that takes them.
import { beforeAll, describe, expect, it } from 'vitest';
import { z } from 'zod';
import { controlRoutes } from '../../../server/daemon/create-api.ts';
import { demoHandlers } from '../../../server/demo/handlers.ts';
import { encodeCursor, pageQuery } from '../../../server/http/request/paging.ts';
import { eventRoutes } from '../../../server/http/resources/events.ts';
import { jobLogRoutes } from '../../../server/http/resources/jobs/job-logs.ts';
import { scheduleRoutes } from '../../../server/http/resources/schedules.ts';
import { statsRoutes } from '../../../server/http/resources/stats.ts';
import { webhookRoutes } from '../../../server/http/resources/webhooks.ts';
import { RouteGroup } from '../../../server/http/route.ts';
import { CommitSignals } from '../../../server/jobs/commit-signals.ts';
import { enqueue } from '../../../server/jobs/enqueue/enqueue.ts';
import { QueueLimit } from '../../../server/jobs/enqueue/enqueue-limits.ts';
import { timeField } from '../../../server/kernel/fields.ts';
import { createApiKey } from '../../../server/tenants/api-keys/key-store.ts';
import { HandlerRegistry } from '../../../server/worker/handlers/handler-registry.ts';
import { adminKey, useApp } from '../../support/http/app.ts';
import { addJob } from '../../support/jobs.ts';
import { useTenant } from '../../support/postgres/database.ts';

const context = useTenant();
const app = useApp(
  context,
  ({ db, config, registry }, queueLimit = new QueueLimit(db), signals = new CommitSignals()) => ({
    routes: [
      ...controlRoutes({
        config,
        jobTypes: new HandlerRegistry(demoHandlers),
        enqueuer: { enqueue: ({ schema }, jobs, actor) => enqueue(db, schema, jobs, actor) },
        queueLimit,
        signals,
      }),
      eventRoutes(),
      jobLogRoutes(),
      scheduleRoutes({ db, queueLimit, signals, jobTypes: new HandlerRegistry(demoHandlers) }),
      statsRoutes(),
      webhookRoutes({ db, registry, wake: () => {} }),
    ],
  }),
);
let key: string;
beforeAll(async () => {
  key = await app.keyFor(context.tenant.id);
});

const badTimes = [
  '0000-01-01T00:00:00Z',
  '2026-01-01T00:00:00+16:00',
  '2026-01-01T00:00:00-23:59',
  '9999-12-31T23:59:59-23:59',
  '0001-01-01T00:00:00+00:01',
  '+010000-01-01T00:00:00Z',
  'infinity',
  'now',
];

describe('a time that Postgres refuses', () => {
  it.each(badTimes)('%s is 400 in every query', async (time) => {
    const paths = ['/api/events?since=', '/api/events?until=', '/api/jobs?created_after=', '/api/jobs?created_before='];
    for (const path of paths) {
      const answer = await app.request('GET', path + encodeURIComponent(time), { key });
      expect([path, answer.status, answer.body.code]).toEqual([path, 400, 'INVALID_FIELD']);
    }
  });

  it.each(badTimes)('%s is 400 in every body', async (time) => {
    const slug = context.tenant.slug;
    const bodies: [string, string, object, string][] = [
      ['POST', '/api/keys', { name: 'k', scopes: ['read'], expires_at: time }, key],
      ['POST', `/api/admin/tenants/${slug}/keys`, { name: 'k', scopes: ['read'], expires_at: time }, adminKey],
      ['POST', '/api/admin/keys', { name: 'k', expires_at: time }, adminKey],
      ['POST', '/api/jobs', { type: 'demo.echo', run_at: time }, key],
      ['POST', '/api/targets/t/pause', { until: time }, key],
      ['POST', '/api/operations', { action: 'cancel', filter: { created_after: time }, dry_run: true }, key],
    ];
    for (const [method, path, body, by] of bodies) {
      const answer = await app.request(method, path, { key: by, body });
      expect([path, answer.status, answer.body.code]).toEqual([path, 400, 'INVALID_FIELD']);
    }
  });

  it('is accepted if it is only far away', async () => {
    for (const time of ['0001-01-01T00:00:00Z', '9999-12-31T23:59:59.999999Z', '2026-01-01T00:00:00+15:59']) {
      expect((await app.request('GET', `/api/events?since=${encodeURIComponent(time)}`, { key })).status).toBe(200);
      expect((await app.request('GET', `/api/events?until=${encodeURIComponent(time)}`, { key })).status).toBe(200);
    }
  });
});

describe('a cursor', () => {
  it('that its owner tampered with is 400 in every list', async () => {
    const job = await addJob(context);
    const id = context.tenant.id;
    const lists: [string, string, number, string?][] = [
      ['/api/jobs', `jobs:${id}`, 1],
      [`/api/jobs/${job.id}/logs`, `logs:${id}:${job.id}`, 1],
      [`/api/jobs/${job.id}/events`, `events:${id}:${job.id}`, 1],
      ['/api/events', `events:${id}`, 1],
      ['/api/webhooks/deliveries', `deliveries:${id}`, 1],
      ['/api/operations', `operations:${id}`, 1],
      ['/api/schedules', `schedules:${id}`, 1],
      ['/api/targets', `targets:${id}`, 1],
      ['/api/stats/queues', `queues:${id}`, 1],
      ['/api/keys', `keys:${id}`, 2],
      ['/api/admin/tenants', 'tenants', 1, adminKey],
      ['/api/admin/keys', 'keys:operator', 2, adminKey],
    ];
    for (const [path, list, parts, by = key] of lists) {
      const positions = ['\u0000', '\ud800'].map((part) => Array(parts).fill(part));
      if (parts === 2) positions.push(['0000-01-01T00:00:00.000000Z', 'a'], ['2026-02-30T00:00:00.000000Z', 'a']);
      for (const position of positions) {
        const cursor = encodeCursor(list, position);
        const answer = await app.request('GET', `${path}?cursor=${cursor}`, { key: by });
        expect([path, answer.status, answer.body.code]).toEqual([path, 400, 'INVALID_CURSOR']);
      }
    }
  });
});

describe('a route', () => {
  const define = (query: z.ZodObject | undefined, body?: z.ZodType) => () =>
    new RouteGroup('Test').route({
      method: 'post',
      path: '/x',
      summary: 'x',
      access: 'read',
      query,
      body,
      answers: {},
      handle: () => ({}),
    });

  it('cannot be defined with a raw time or a raw cursor', () => {
    const raw = z.iso.datetime({ offset: true });
    expect(define(z.strictObject({ since: raw.optional() }))).toThrow('timeField');
    expect(define(undefined, z.strictObject({ list: z.array(z.union([z.null(), raw])) }))).toThrow('timeField');
    expect(define(undefined, z.strictObject({ at: z.string().pipe(raw) }))).toThrow('timeField');
    expect(define(z.strictObject({ cursor: z.string().optional() }))).toThrow('cursorField');
    expect(define(z.strictObject({ ...pageQuery(), since: timeField().optional().describe('x') }))).not.toThrow();
  });
});

describe('a cron expression', () => {
  it.each(['+010000-01-01T00:00:00Z', '2030-01-01T00:00:00', '2030-01-01T00:00:00Z', '* * * *', '* * * * * * *'])(
    '%s is refused',
    async (cron) => {
      const preview = await app.request('POST', '/api/schedules/preview', { key, body: { cron } });
      expect([preview.status, preview.body.field]).toEqual([400, 'cron']);
      const body = { name: 'x', cron, job: { type: 'demo.echo' } };
      expect((await app.request('POST', '/api/schedules', { key, body })).status).toBe(400);
    },
  );
});

describe('the list of keys', () => {
  it('shows every key, page by page', async () => {
    const made = new Set<string>();
    for (let n = 0; n < 7; n++) {
      made.add((await createApiKey(context.db, { tenantId: context.tenant.id, name: `k${n}`, scopes: ['read'] })).id);
    }
    const seen: string[] = [];
    let cursor: string | null = '';
    while (cursor !== null) {
      const page = await app.request('GET', `/api/keys?limit=3${cursor && `&cursor=${cursor}`}`, { key });
      expect(page.status).toBe(200);
      expect(page.body.keys.length).toBeLessThanOrEqual(3);
      seen.push(...page.body.keys.map((one: { id: string }) => one.id));
      cursor = page.body.next_cursor;
    }
    expect(new Set(seen).size).toBe(seen.length);
    for (const id of made) expect(seen).toContain(id);
  });
});
