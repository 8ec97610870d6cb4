// The scheduler API's contract, example by example.
import { randomUUID } from 'node:crypto';
import { expect, test } from 'vitest';
import { useScheduler, workerId } from '../../support/http/scheduler.ts';

const api = useScheduler();
const iso = expect.stringMatching(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$/);
const uuid = expect.stringMatching(/^[0-9a-f-]{36}$/);
const unknown = '0197c2d0-0000-7000-8000-000000000000';
let number = 0;
const newQueue = () => `visuals-${++number}`;

test('submit answers 201 with the job as requested', async () => {
  const answer = await api.post('/jobs/submit', {
    addon_id: 'visuals',
    job_type: 'load30',
    priority: 'NORMAL',
    cost_units: 30,
    constraints: { cpu_heavy: true },
    payload: { model: 'sdxl', prompt: '...' },
    client_request_id: 'optional-idempotency-key',
  });
  expect(answer.status).toBe(201);
  expect(answer.body.job).toEqual(
    expect.objectContaining({
      job_id: uuid,
      addon_id: 'visuals',
      job_type: 'load30',
      priority: 'NORMAL',
      cost_units: 30,
      constraints: { cpu_heavy: true },
      payload: { model: 'sdxl', prompt: '...' },
      state: 'QUEUED',
      created_at: iso,
      updated_at: iso,
      claimed_by: null,
      claim_expires_at: null,
      lease_id: null,
      attempts: 0,
      next_retry_at: null,
    }),
  );
  await api.claim();
});

test.each([
  ['cost_units of 0', { cost_units: 0 }],
  ['negative cost_units', { cost_units: -1 }],
  ['a broken cost', { cost_units: 1.5 }],
  ['an unknown priority', { priority: 'SOON' }],
  ['a missing job type', { job_type: undefined }],
  ['a misspelt field', { cost_unit: 3 }],
  ['constraints that are no object', { constraints: ['gpu'] }],
])('submit refuses %s with 400', async (_, given) => {
  const answer = await api.post('/jobs/submit', { addon_id: 'visuals', job_type: 'load30', ...given });
  expect(answer.status).toBe(400);
  expect(answer.body).toMatchObject({ detail: expect.any(String), code: expect.any(String) });
});

test('the same client_request_id creates one job; with another payload it is a conflict', async () => {
  const queue = newQueue();
  const body = { addon_id: queue, job_type: 'load30', payload: { a: 1, b: 2 }, client_request_id: randomUUID() };
  const first = await api.post('/jobs/submit', body);
  const second = await api.post('/jobs/submit', { ...body, payload: { b: 2, a: 1 } });
  expect([first.status, second.status]).toEqual([201, 200]);
  expect(second.body).toEqual(first.body);
  const other = await api.post('/jobs/submit', { ...body, payload: { a: 2 } });
  expect(other.status).toBe(409);
  expect(other.body.code).toBe('IDEMPOTENCY_CONFLICT');
  expect((await api.get(`/jobs?addon_id=${queue}`)).body.jobs).toHaveLength(1);
});

test('claim sets the owner and 60 seconds, and answers 204 when there is nothing', async () => {
  const addon_id = newQueue();
  const { job_id } = await api.submit({ addon_id, cost_units: 30 });
  const request = {
    addon_id,
    worker_id: workerId,
    limit: 1,
    accept_job_types: ['load30', 'render_image'],
    max_cost_units: 40,
    constraints_capabilities: { gpu_available: false },
  };
  const answer = await api.post('/jobs/claim', request);
  expect(answer.status).toBe(200);
  expect(answer.body.job).toMatchObject({
    job_id,
    state: 'CLAIMED',
    claimed_by: workerId,
    claim_expires_at: iso,
    lease_id: null,
    attempts: 0,
  });
  const seconds = (Date.parse(answer.body.job.claim_expires_at) - Date.parse(answer.body.job.updated_at)) / 1000;
  expect(seconds).toBe(60);
  const none = await api.post('/jobs/claim', request);
  expect(none.status).toBe(204);
  expect(none.body).toBe('');
});

test('claim takes only jobs whose requirements the worker meets', async () => {
  const addon_id = newQueue();
  await api.submit({ addon_id, job_type: 'render', cost_units: 30, constraints: { gpu_required: true } });
  expect(await api.claim({ addon_id, accept_job_types: ['load30'] })).toBeUndefined();
  expect(await api.claim({ addon_id, max_cost_units: 29 })).toBeUndefined();
  expect(await api.claim({ addon_id })).toBeUndefined();
  expect(await api.claim({ addon_id, constraints_capabilities: { gpu_available: false } })).toBeUndefined();
  expect(await api.claim({ addon_id: 'audio' })).toBeUndefined();
  const able = {
    addon_id,
    accept_job_types: ['render'],
    max_cost_units: 30,
    constraints_capabilities: { gpu_available: true },
  };
  expect(await api.claim(able)).toMatchObject({ state: 'CLAIMED' });
});

test('claim is ordered by priority, then age, and one target runs one job at a time', async () => {
  const addon_id = newQueue();
  const low = await api.submit({ addon_id, priority: 'LOW' });
  const first = await api.submit({ addon_id, priority: 'HIGH', target_id: `t-${addon_id}` });
  await api.submit({ addon_id, priority: 'HIGH', target_id: `t-${addon_id}` });
  const { jobs } = await api.claim({ addon_id, limit: 10 });
  expect(jobs.map((job: { job_id: string }) => job.job_id)).toEqual([first.job_id, low.job_id]);
});

test('an expired claim is requeued', async () => {
  const addon_id = newQueue();
  await api.submit({ addon_id });
  const job = await api.claim({ addon_id });
  const { schema, db } = api.tenant;
  await db.query(`update ${schema}.leases set expires_at = now() - interval '1 hour' where $1 = any(job_ids)`, [
    job.job_id,
  ]);
  const late = await api.post('/lease/request', { job_id: job.job_id });
  expect(late.status).toBe(409);
  await api.sweep();
  const again = await api.claim({ addon_id, worker_id: 'visuals-worker-02' });
  expect(again).toMatchObject({ job_id: job.job_id, claimed_by: 'visuals-worker-02', attempts: 0 });
  const forged = await api.post('/lease/request', { job_id: job.job_id, worker_id: workerId });
  expect(forged.status).toBe(409);
});

test('a job is read with its result, null until it has ended; an unknown one is 404', async () => {
  const { job_id } = await api.submit({ addon_id: newQueue() });
  const answer = await api.get(`/jobs/${job_id}`);
  expect(answer).toMatchObject({ status: 200, body: { job: { job_id, state: 'QUEUED' }, result: null } });
  for (const id of [unknown, 'nonsense', '%00']) {
    expect([400, 404]).toContain((await api.get(`/jobs/${id}`)).status);
  }
});

test('states only move forward', async () => {
  const addon_id = newQueue();
  const { job_id } = await api.submit({ addon_id });
  const report = (state: string, more: object = {}) => api.post(`/jobs/${job_id}/status`, { state, ...more });
  expect((await report('PREPARING')).status).toBe(409);
  await api.claim({ addon_id });
  const preparing = await report('PREPARING', { note: 'warming model cache', progress: 0.15 });
  expect(preparing).toMatchObject({ status: 200, body: { job: { state: 'PREPARING', note: 'warming model cache' } } });
  expect((await report('PREPARING', { note: 'still' })).status).toBe(200);
  expect((await report('LEASE_PENDING')).body.job.state).toBe('LEASE_PENDING');
  expect((await report('PREPARING')).status).toBe(409);
  expect((await report('DONE')).status).toBe(409);
  expect((await report('LEASE_PENDING', { worker_id: 'somebody-else' })).status).toBe(409);
  const lease = (await api.post('/lease/request', { job_id })).body.lease;
  await api.post(`/lease/${lease.lease_id}/release`, { job_id, worker_id: workerId, status: 'SUCCEEDED' });
  const late = await report('PREPARING');
  expect(late).toMatchObject({ status: 409, body: { code: 'INVALID_TRANSITION' } });
});

test('a claim can be released, and the next worker gets the job', async () => {
  const addon_id = newQueue();
  const { job_id } = await api.submit({ addon_id, target_id: `t-${addon_id}` });
  await api.claim({ addon_id });
  const back = await api.post(`/jobs/${job_id}/status`, { state: 'QUEUED', worker_id: workerId });
  expect(back).toMatchObject({ status: 200, body: { job: { state: 'QUEUED', claimed_by: null } } });
  expect(await api.claim({ addon_id, worker_id: 'w2' })).toMatchObject({ job_id, attempts: 0 });
});

test.each(['QUEUED', 'CLAIMED', 'PREPARING', 'LEASE_PENDING'])('cancel ends a %s job at once', async (state) => {
  const addon_id = newQueue();
  const { job_id } = await api.submit({ addon_id });
  if (state !== 'QUEUED') await api.claim({ addon_id });
  if (state === 'PREPARING' || state === 'LEASE_PENDING') await api.post(`/jobs/${job_id}/status`, { state });
  const answer = await api.post(`/jobs/${job_id}/cancel`, { reason: 'user aborted' });
  expect(answer).toMatchObject({ status: 200, body: { job: { job_id, state: 'CANCELED' } } });
  expect((await api.post('/lease/request', { job_id })).status).toBe(409);
  expect((await api.post(`/jobs/${job_id}/cancel`, { reason: 'again' })).status).toBe(200);
  const read = await api.get(`/jobs/${job_id}`);
  expect(read.body.result).toMatchObject({ job_id, status: 'CANCELED', attempts: 0, finished_at: iso });
});

test('cancel of a running job asks its worker, and ends when the lease is released', async () => {
  const { job, lease } = await api.run();
  const asked = await api.post(`/jobs/${job.job_id}/cancel`, { reason: 'user aborted' });
  expect(asked.body.job).toMatchObject({ state: 'RUNNING', cancel_requested: true, cancel_intent: 'cancel' });
  const own = { job_id: job.job_id, worker_id: workerId };
  const beat = await api.post(`/lease/${lease.lease_id}/heartbeat`, own);
  expect(beat.body.job).toMatchObject({ cancel_requested: true, cancel_intent: 'cancel' });
  const released = await api.post(`/lease/${lease.lease_id}/release`, { ...own, status: 'CANCELED' });
  expect(released.body).toMatchObject({
    lease: { state: 'RELEASED', release_status: 'CANCELED' },
    job: { state: 'CANCELED' },
    result: { status: 'CANCELED' },
  });
  expect((await api.post(`/jobs/${job.job_id}/cancel`, {})).status).toBe(200);
});

test('jobs are listed newest first by state, queue and time, page by page', async () => {
  const addon_id = newQueue();
  const ids: string[] = [];
  for (let i = 0; i < 5; i++) ids.unshift((await api.submit({ addon_id })).job_id);
  const seen: string[] = [];
  let cursor = '';
  do {
    const { body } = await api.get(`/jobs?addon_id=${addon_id}&state=QUEUED&limit=2${cursor}`);
    seen.push(...body.jobs.map((job: { job_id: string }) => job.job_id));
    cursor = body.next_cursor === null ? '' : `&cursor=${body.next_cursor}`;
  } while (cursor !== '');
  expect(seen).toEqual(ids);
  expect((await api.get(`/jobs?addon_id=${addon_id}&state=DONE`)).body).toEqual({ jobs: [], next_cursor: null });
  const [third] = (await api.get(`/jobs/${ids[2]}`)).body.job.created_at ? [ids[2]] : [];
  const { created_at } = (await api.get(`/jobs/${third}`)).body.job;
  const after = await api.get(`/jobs?addon_id=${addon_id}&created_after=${created_at}`);
  expect(after.body.jobs.map((job: { job_id: string }) => job.job_id)).toEqual(ids.slice(0, 2));
  const before = await api.get(`/jobs?addon_id=${addon_id}&created_before=${created_at}`);
  expect(before.body.jobs.map((job: { job_id: string }) => job.job_id)).toEqual(ids.slice(3));
  for (const query of ['state=NEVER', 'cursor=abc', 'limit=0', 'created_after=yesterday']) {
    expect((await api.get(`/jobs?${query}`)).status).toBe(400);
  }
});

test('events show the history of a job under the names of this API', async () => {
  const addon_id = newQueue();
  const { job_id } = await api.submit({ addon_id });
  await api.claim({ addon_id });
  await api.post(`/jobs/${job_id}/status`, { state: 'PREPARING', progress: 0.1 });
  const { lease } = (await api.post('/lease/request', { job_id })).body;
  const own = { job_id, worker_id: workerId };
  await api.post(`/lease/${lease.lease_id}/heartbeat`, { ...own, progress: 0.65, message: 'rendering step 23/35' });
  await api.post(`/lease/${lease.lease_id}/release`, { ...own, status: 'SUCCEEDED' });
  const { body } = await api.get(`/jobs/${job_id}/events`);
  expect(body.events).toMatchObject([
    { ts: iso, type: 'JOB_SUBMITTED', data: { priority: 'NORMAL' } },
    { ts: iso, type: 'JOB_CLAIMED', data: { worker_id: workerId } },
    { type: 'JOB_PREPARING', data: { progress: 10 } },
    { type: 'LEASE_GRANTED', data: { worker_id: workerId, lease_id: lease.lease_id, cost_units: 1 } },
    { type: 'JOB_PROGRESS', data: { progress: 65, message: 'rendering step 23/35' } },
    { type: 'JOB_DONE', data: { worker_id: workerId, lease_id: lease.lease_id } },
  ]);
  const page = await api.get(`/jobs/${job_id}/events?limit=2`);
  expect(page.body.events).toEqual(body.events.slice(0, 2));
  const rest = await api.get(`/jobs/${job_id}/events?cursor=${page.body.next_cursor}`);
  expect(rest.body).toEqual({ events: body.events.slice(2), next_cursor: null });
});

test('a lease is requested, kept alive and released', async () => {
  const addon_id = newQueue();
  const { job_id } = await api.submit({ addon_id, cost_units: 30, constraints: { cpu_heavy: true } });
  await api.claim({ addon_id });
  const request = { job_id, addon_id, job_type: 'load30', cost_units: 30, priority: 'NORMAL', ttl_sec: 30 };
  const granted = await api.post('/lease/request', { ...request, constraints: { cpu_heavy: true } });
  expect(granted).toMatchObject({ status: 200, body: { approved: true } });
  const { lease } = granted.body;
  expect(lease).toMatchObject({
    lease_id: uuid,
    job_id,
    addon_id,
    cost_units: 30,
    ttl_sec: 30,
    state: 'ACTIVE',
    granted_at: iso,
    last_heartbeat_at: iso,
    expires_at: iso,
  });
  expect(Date.parse(lease.expires_at) - Date.parse(lease.granted_at)).toBe(30_000);
  const running = await api.get(`/jobs/${job_id}`);
  expect(running.body.job).toMatchObject({ state: 'RUNNING', lease_id: lease.lease_id, attempts: 1 });

  const own = { job_id, worker_id: workerId };
  const beat = await api.post(`/lease/${lease.lease_id}/heartbeat`, {
    ...own,
    progress: 0.65,
    message: 'rendering step 23/35',
  });
  expect(beat).toMatchObject({
    status: 200,
    body: {
      lease: { lease_id: lease.lease_id, state: 'ACTIVE' },
      job: { job_id, state: 'RUNNING', note: 'rendering step 23/35', cancel_requested: false, cancel_intent: null },
    },
  });
  expect(beat.body.job.progress).toBeCloseTo(0.65);
  expect(beat.body.lease.last_heartbeat_at > lease.last_heartbeat_at).toBe(true);
  expect(beat.body.lease.expires_at > lease.expires_at).toBe(true);

  const release = {
    ...own,
    status: 'SUCCEEDED',
    result_data: { path: '/runtime/published/current.jpg' },
    error: null,
    metrics: { runtime_ms: 41234, peak_mem_mb: 2870 },
  };
  const released = await api.post(`/lease/${lease.lease_id}/release`, release);
  expect(released).toMatchObject({
    status: 200,
    body: {
      lease: { state: 'RELEASED', released_at: iso, release_status: 'SUCCEEDED', metrics: { runtime_ms: 41234 } },
      job: { state: 'DONE', lease_id: lease.lease_id, claimed_by: workerId },
      result: {
        job_id,
        status: 'SUCCEEDED',
        result_data: { path: '/runtime/published/current.jpg' },
        error: null,
        started_at: iso,
        finished_at: iso,
        attempts: 1,
      },
    },
  });
  expect((await api.post(`/lease/${lease.lease_id}/release`, release)).body).toEqual(released.body);
  const changed = await api.post(`/lease/${lease.lease_id}/release`, { ...release, status: 'FAILED' });
  expect(changed.status).toBe(409);
  const beatAfter = await api.post(`/lease/${lease.lease_id}/heartbeat`, own);
  expect(beatAfter).toMatchObject({ status: 409, body: { code: 'LEASE_LOST' } });
  const read = await api.get(`/lease/${lease.lease_id}`);
  expect(read).toMatchObject({ status: 200, body: { lease: { state: 'RELEASED', lease_id: lease.lease_id } } });
  expect((await api.get(`/jobs/${job_id}`)).body.result).toEqual(released.body.result);
});

test('a denial has the used, requested and available units, and leaves the job LEASE_PENDING', async () => {
  const addon_id = newQueue();
  await api.capacity({ queue_capacity_units: { [addon_id]: 70 } });
  await api.run({ addon_id, cost_units: 60 });
  const { job_id } = await api.submit({ addon_id, cost_units: 30 });
  await api.claim({ addon_id });
  const denied = await api.post('/lease/request', { job_id, cost_units: 30 });
  expect(denied).toMatchObject({
    status: 200,
    body: {
      approved: false,
      retry_after_sec: expect.any(Number),
      reason: 'Capacity exceeded: used=60, requested=30, capacity=70',
    },
  });
  const { job } = (await api.get(`/jobs/${job_id}`)).body;
  expect(job).toMatchObject({ state: 'LEASE_PENDING', next_retry_at: iso, claimed_by: workerId });
});

test.each([0, -1, 3601, 'soon'])('a ttl of %s is refused', async (ttl_sec) => {
  expect((await api.post('/lease/request', { job_id: unknown, ttl_sec })).status).toBe(400);
});

test('unknown leases are 404', async () => {
  const own = { job_id: unknown, worker_id: workerId };
  expect((await api.post(`/lease/${unknown}/heartbeat`, own)).status).toBe(404);
  expect((await api.post(`/lease/${unknown}/release`, { ...own, status: 'FAILED' })).status).toBe(404);
  expect((await api.post('/lease/request', { job_id: unknown })).status).toBe(404);
  expect((await api.get(`/lease/${unknown}`)).status).toBe(404);
  expect((await api.get('/lease/nonsense')).status).toBe(404);
});

test('the snapshot has capacity, jobs and leases', async () => {
  await api.capacity({ capacity_units: 70, queue_capacity_units: null });
  const { body } = await api.get('/stats/snapshot');
  expect(body).toEqual({
    capacity: { total: 70, used: expect.any(Number), reserved: expect.any(Number) },
    jobs: { queued: expect.any(Number), running: expect.any(Number), failed_last_24h: expect.any(Number) },
    leases: { active: expect.any(Number), expired_last_24h: expect.any(Number) },
  });
  await api.capacity({ capacity_units: null });
  expect((await api.get('/stats/snapshot')).body.capacity.total).toBeNull();
});

test('each route requires its scope', async () => {
  const reader = await api.app.keyFor(api.tenant.tenant.id, ['read']);
  const worker = await api.app.keyFor(api.tenant.tenant.id, ['worker']);
  const as = (key: string, method: string, path: string, body?: unknown) =>
    api.app.request(method, `/api/scheduler${path}`, { key, body }).then((answer) => answer.status);
  expect(await as(reader, 'POST', '/jobs/submit', { addon_id: 'a', job_type: 'b' })).toBe(403);
  expect(await as(reader, 'POST', '/jobs/claim', { addon_id: 'a', worker_id: 'b' })).toBe(403);
  expect(await as(worker, 'POST', '/jobs/submit', { addon_id: 'a', job_type: 'b' })).toBe(403);
  expect(await as(worker, 'POST', `/jobs/${unknown}/cancel`, {})).toBe(403);
  expect(await as(worker, 'GET', '/jobs')).toBe(403);
  expect(await as(worker, 'POST', '/jobs/claim', { addon_id: 'none', worker_id: 'b' })).toBe(204);
  expect(await as(reader, 'GET', '/jobs')).toBe(200);
  expect((await api.app.request('GET', '/api/scheduler/jobs')).status).toBe(401);
});

test('submit respects the maximum of waiting jobs', async () => {
  await api.capacity({ max_queued: 0 });
  await api.app.deps.registry.refresh();
  const full = await api.post('/jobs/submit', { addon_id: 'full', job_type: 'load30' });
  expect(full).toMatchObject({ status: 429, body: { code: 'QUEUE_FULL' } });
  await api.capacity({ max_queued: null });
  await api.app.deps.registry.refresh();
  await api.submit({ addon_id: 'full' });
});
