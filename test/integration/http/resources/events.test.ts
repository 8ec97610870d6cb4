import { randomUUID } from 'node:crypto';
import { beforeAll, describe, expect, it } from 'vitest';
import { eventRoutes } from '../../../../server/http/resources/events.ts';
import type { Job } from '../../../../server/jobs/model/job.ts';
import { useApp } from '../../../support/http/app.ts';
import { addJob, claim, finish } from '../../../support/jobs.ts';
import { addTenant, useTenant } from '../../../support/postgres/database.ts';

const context = useTenant();
const app = useApp(context, () => ({ routes: [eventRoutes()] }));

let key: string;
let job: Job;
let other: Job;

beforeAll(async () => {
  key = await app.keyFor(context.tenant.id);
  job = await addJob(context, { targetId: 'robot' });
  other = await addJob(context);
  const { jobs } = await claim(context);
  for (const one of jobs) await finish(context, one);
});

const get = (path: string) => app.request('GET', path, { key });
const types = (body: { events: { type: string }[] }) => body.events.map((event) => event.type);

async function allPages(path: string) {
  const events: { id: string; type: string; job_id: string; at: string }[] = [];
  let cursor: string | null = null;
  do {
    const page = await get(`${path}${cursor ? `&cursor=${cursor}` : ''}`);
    expect(page.status).toBe(200);
    events.push(...page.body.events);
    cursor = page.body.next_cursor;
  } while (cursor);
  return events;
}

it('reveals no transaction ids, which count the activity of all tenants', async () => {
  const [row] = await context.db.query<{ xid: string }>(
    `select max(xid::text::bigint)::text as xid from ${context.schema}.events`,
  );
  const page = await get('/api/events?limit=1');
  expect(page.body.events[0].id).not.toContain(':');
  const [, sealed] = JSON.parse(Buffer.from(page.body.next_cursor, 'base64url').toString());
  expect(sealed).not.toContain(row?.xid);
  expect(Buffer.from(sealed, 'base64url').toString('latin1')).not.toContain(row?.xid);
});

describe('the history of a job', () => {
  it('lists its events, oldest first', async () => {
    const { status, body } = await get(`/api/jobs/${job.id}/events`);
    expect(status).toBe(200);
    expect(types(body)).toEqual(['job.enqueued', 'job.started', 'job.completed']);
    expect(body.events[1]).toMatchObject({
      id: expect.stringMatching(/^\d+$/),
      at: expect.stringMatching(/^\d{4}-.*Z$/),
      job_id: job.id,
      target_id: 'robot',
      from: 'QUEUED',
      to: 'RUNNING',
      attempt: 1,
      lease_id: expect.any(String),
      actor: 'worker:w1',
      data: null,
    });
  });

  it('comes in pages', async () => {
    const events = await allPages(`/api/jobs/${job.id}/events?limit=1`);
    expect(events.map((event) => event.type)).toEqual(['job.enqueued', 'job.started', 'job.completed']);
  });

  it('is found under its target, and under no other', async () => {
    expect(types((await get(`/api/targets/robot/jobs/${job.id}/events`)).body)).toHaveLength(3);
    expect((await get(`/api/targets/elsewhere/jobs/${job.id}/events`)).status).toBe(404);
    expect((await get(`/api/targets/robot/jobs/${other.id}/events`)).status).toBe(404);
  });

  it('is not found for an unknown job, nor by another tenant', async () => {
    expect((await get(`/api/jobs/${randomUUID()}/events`)).status).toBe(404);
    const { tenant } = await addTenant(context.db, 'stranger');
    const strangersKey = await app.keyFor(tenant.id);
    await app.deps.registry.refresh();
    expect((await app.request('GET', `/api/jobs/${job.id}/events`, { key: strangersKey })).status).toBe(404);
    expect((await app.request('GET', '/api/events', { key: strangersKey })).body.events).toEqual([]);
  });
});

describe('the log', () => {
  it('lists all events, newest first, in pages', async () => {
    const all = (await get('/api/events')).body.events;
    expect(all).toHaveLength(6);
    expect(types({ events: all }).at(-1)).toBe('job.enqueued');
    expect(await allPages('/api/events?limit=2')).toEqual(all);
  });

  it('filters by type, job, target, actor and time', async () => {
    expect(types((await get('/api/events?type=job.started,job.completed')).body)).toHaveLength(4);
    expect((await allPages(`/api/events?limit=1&job_id=${job.id}`)).map((e) => e.type)).toEqual([
      'job.completed',
      'job.started',
      'job.enqueued',
    ]);
    expect(types((await get('/api/events?target_id=robot&type=job.enqueued')).body)).toEqual(['job.enqueued']);
    expect(types((await get('/api/events?actor=worker:w1')).body)).toHaveLength(4);
    const all = (await get('/api/events')).body.events;
    const { at } = all[2];
    const since = (await get(`/api/events?since=${at}`)).body.events;
    const until = (await get(`/api/events?until=${at}`)).body.events;
    expect(since.length).toBeGreaterThan(0);
    expect([...since, ...until]).toEqual(all);
    expect((await get('/api/events?until=2020-01-01T00:00:00Z')).body.events).toEqual([]);
    expect((await get('/api/events?since=2100-01-01T00:00:00Z')).body.events).toEqual([]);
  });

  it('refuses unknown filters', async () => {
    expect((await get('/api/events?since=yesterday')).status).toBe(400);
    expect((await get('/api/events?colour=red')).status).toBe(400);
    expect((await get('/api/events?cursor=abc')).body.code).toBe('INVALID_CURSOR');
    const { body } = await get(`/api/jobs/${job.id}/events?limit=1`);
    expect((await get(`/api/events?cursor=${body.next_cursor}`)).body.code).toBe('INVALID_CURSOR');
  });

  it('needs the scope to read', async () => {
    const worker = await app.keyFor(context.tenant.id, ['worker']);
    expect((await app.request('GET', '/api/events', { key: worker })).status).toBe(403);
  });
});
