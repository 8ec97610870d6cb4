import { describe, expect, it } from 'vitest';
import { updateTenantSettings } from '../../../../../server/tenants/tenant-store.ts';
import { useControl } from '../../../../support/http/control.ts';
import { addTenant } from '../../../../support/postgres/database.ts';

const control = useControl();
let number = 0;
const newKey = () => `key-${++number}`;
const count = async () =>
  Number((await control.db.query<{ n: string }>(`select count(*) as n from ${control.schema}.jobs`))[0]?.n);

describe('enqueueing one job', () => {
  it('answers 201 with the job and its location', async () => {
    const made = await control.post('/api/jobs', { type: 'demo.echo', payload: { a: [1, null, 'ä'] } });
    expect(made.status).toBe(201);
    expect(made.headers.get('location')).toBe(`/api/jobs/${made.body.id}`);
    expect(made.body).toMatchObject({
      type: 'demo.echo',
      status: 'QUEUED',
      queue: 'default',
      target_id: null,
      priority: 'NORMAL',
      payload: { a: [1, null, 'ä'] },
      result: null,
      error: null,
      attempts: 0,
      max_attempts: 1,
      phases: [],
      usage: { tokens: 0, token_limit: null },
      lease_owner: null,
      lease_expires_at: null,
      cancel_requested: false,
      cancel_intent: null,
      started_at: null,
      finished_at: null,
    });
    const read = await control.get(`/api/jobs/${made.body.id}`);
    expect(read.status).toBe(200);
    expect(read.body).toEqual(made.body);
  });

  it('keeps every field, and microseconds', async () => {
    const asked = {
      type: 'demo.echo',
      payload: 'text',
      priority: 'URGENT',
      queue: 'mail',
      run_at: '2199-01-01T02:00:00.123456+02:00',
      max_attempts: 5,
      retry: { kind: 'linear', delay_seconds: 2, max_delay_seconds: 60, jitter: 0.5, codes: ['BUSY'] },
      timeout_seconds: 12.5,
      expires_in_seconds: 3600,
      token_limit: 1000,
      cost_units: 3,
      constraints: { gpu_required: true },
      on_error: 'continue',
      on_drain: 'requeue',
      webhook_url: 'https://example.com/hook',
      client_request_id: newKey(),
      author: 'ann',
    };
    const made = await control.post('/api/targets/machine%2F1/jobs/', asked, {
      traceparent: '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01',
    });
    expect(made.status).toBe(201);
    const { expires_in_seconds: _, token_limit: __, ...same } = asked;
    expect(made.body).toMatchObject({
      ...same,
      run_at: '2199-01-01T00:00:00.123456Z',
      status: 'PENDING',
      target_id: 'machine/1',
      usage: { tokens: 0, token_limit: 1000 },
      traceparent: '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01',
    });
    expect(made.body.expires_at).toMatch(/\.\d{6}Z$/);
    const read = await control.get(`/api/targets/machine%2F1/jobs/${made.body.id}`);
    expect(read.body).toEqual(made.body);
  });

  it('treats a run_at in the far past as now', async () => {
    const made = await control.post('/api/jobs', { type: 'demo.echo', run_at: '0001-06-01T00:00:00Z' });
    expect(made.status).toBe(201);
    expect(made.body.status).toBe('QUEUED');
  });

  it('applies the defaults of the definition to fields that the request omits', async () => {
    const plain = await control.post('/api/jobs', { type: 'demo.strict', payload: { amount: 1, extra: 2 } });
    expect(plain.body).toMatchObject({
      max_attempts: 4,
      timeout_seconds: 30,
      on_error: 'continue',
      payload: { amount: 1 },
      retry: { kind: 'fixed', delay_seconds: 7, codes: ['BUSY'] },
    });
    const own = await control.post('/api/jobs', {
      type: 'demo.strict',
      payload: { amount: 1 },
      max_attempts: 2,
      on_error: 'block',
      retry: { delay_seconds: 1 },
    });
    expect(own.body).toMatchObject({
      max_attempts: 2,
      on_error: 'block',
      retry: { kind: 'fixed', delay_seconds: 1, codes: ['BUSY'] },
    });
  });

  it('shows the phases of a job that has not started', async () => {
    const made = await control.post('/api/jobs', { type: 'demo.phased' });
    expect(made.body.phases.map((p: { name: string; status: string }) => [p.name, p.status])).toEqual([
      ['load', 'pending'],
      ['store', 'pending'],
    ]);
  });

  it("refuses a payload that the type's schema refuses, naming the field", async () => {
    const answer = await control.post('/api/jobs', { type: 'demo.strict', payload: { amount: 'much' } });
    expect(answer.status).toBe(400);
    expect(answer.body).toMatchObject({ code: 'INVALID_FIELD', field: 'payload.amount' });
  });

  it('lists the known types if the type is unknown, and accepts it for remote workers if the tenant allows', async () => {
    const answer = await control.post('/api/jobs', { type: 'remote.render' });
    expect(answer.status).toBe(400);
    expect(answer.body).toMatchObject({
      code: 'UNKNOWN_JOB_TYPE',
      known_types: ['demo.echo', 'demo.phased', 'demo.strict'],
    });
    expect(answer.body.detail).toContain('demo.echo');
    for (const allowed of [['remote.render'], ['*']]) {
      await updateTenantSettings(control.db, 'acme', { remote_job_types: allowed });
      await control.app.deps.registry.refresh();
      const made = await control.post('/api/jobs', { type: 'remote.render' });
      expect(made.status).toBe(201);
      expect(made.body.remote).toBe(true);
      expect((await control.post('/api/jobs', { type: 'demo.echo' })).body.remote).toBe(false);
    }
    await updateTenantSettings(control.db, 'acme', { remote_job_types: null });
    await control.app.deps.registry.refresh();
  });

  it('accepts a type that only another live daemon runs', async () => {
    await control.db.query(
      `insert into leasehold.daemons (id, incarnation, host, pid, version, job_types)
       values ('other', gen_random_uuid(), 'h', 1, '0', '{other.work}')`,
    );
    const made = await control.post('/api/jobs', { type: 'other.work' });
    expect(made.status).toBe(201);
    expect(made.body.remote).toBe(false);
    await control.db.query("delete from leasehold.daemons where id = 'other'");
    expect((await control.post('/api/jobs', { type: 'other.work' })).status).toBe(400);
  });

  it.each([
    ['type', {}],
    ['type', { type: '' }],
    ['type', { type: 'a\nb' }],
    ['prority', { type: 'demo.echo', prority: 'LOW' }],
    ['priority', { type: 'demo.echo', priority: 'low' }],
    ['run_at', { type: 'demo.echo', run_at: '2026-01-01T00:00:00' }],
    ['run_at', { type: 'demo.echo', run_at: 'tomorrow' }],
    ['run_at', { type: 'demo.echo', run_at: '0001-01-01T00:00:00+10:00' }],
    ['max_attempts', { type: 'demo.echo', max_attempts: 0 }],
    ['max_attempts', { type: 'demo.echo', max_attempts: 101 }],
    ['max_attempts', { type: 'demo.echo', max_attempts: 1.5 }],
    ['retry.kind', { type: 'demo.echo', retry: { kind: 'cubic' } }],
    ['retry.jitter', { type: 'demo.echo', retry: { jitter: 2 } }],
    ['timeout_seconds', { type: 'demo.echo', timeout_seconds: -1 }],
    ['expires_in_seconds', { type: 'demo.echo', expires_in_seconds: 1e300 }],
    ['token_limit', { type: 'demo.echo', token_limit: 2 ** 60 }],
    ['cost_units', { type: 'demo.echo', cost_units: 0 }],
    ['constraints', { type: 'demo.echo', constraints: [1] }],
    ['webhook_url', { type: 'demo.echo', webhook_url: 'ftp://example.com' }],
    ['webhook_url', { type: 'demo.echo', webhook_url: 'javascript:alert(1)' }],
    ['webhook_url', { type: 'demo.echo', webhook_url: `https://example.com/${'語'.repeat(1950)}` }],
    ['webhook_url', { type: 'demo.echo', webhook_url: 'https://ann:secret@example.com/' }],
    ['client_request_id', { type: 'demo.echo', client_request_id: '' }],
    ['client_request_id', { type: 'demo.echo', client_request_id: 'x'.repeat(201) }],
    ['target_id', { type: 'demo.echo', target_id: 'a\u0007b' }],
    ['target_id', { type: 'demo.echo', target_id: '..' }],
    ['target_id', { type: 'demo.echo', target_id: 'x'.repeat(201) }],
    ['payload.a', { type: 'demo.echo', payload: { a: '\u0000' } }],
    ['queue', { type: 'demo.echo', queue: ' x' }],
  ])('names the field %s when it is not valid: %j', async (field, body) => {
    const before = await count();
    const answer = await control.post('/api/jobs', body);
    expect(answer.status).toBe(400);
    expect(answer.body).toMatchObject({ code: 'INVALID_FIELD', field });
    expect(await count()).toBe(before);
  });

  it.each(["'; drop table jobs; --", '"quoted"', 'ünïcode/ö?#&', '%00x', '__proto__'])(
    'treats the hostile target id %j as a name',
    async (target) => {
      const path = `/api/targets/${encodeURIComponent(target)}/jobs`;
      const made = await control.post(path, { type: 'demo.echo' });
      expect(made.status).toBe(201);
      expect(made.body.target_id).toBe(target);
      expect((await control.get(path)).body.jobs.map((j: { id: string }) => j.id)).toEqual([made.body.id]);
      expect((await control.get(`/api/targets/${encodeURIComponent(target)}`)).body.head.id).toBe(made.body.id);
    },
  );

  it('needs the scope enqueue', async () => {
    const key = await control.app.keyFor(control.tenant.id, ['read', 'control']);
    const answer = await control.app.request('POST', '/api/jobs', { key, body: { type: 'demo.echo' } });
    expect(answer.status).toBe(403);
  });
});

describe('idempotency', () => {
  it('answers a replay with 200 and the first job, by header, field or both', async () => {
    const key = newKey();
    const body = { type: 'demo.echo', payload: { a: 1, b: 2 } };
    const first = await control.post('/api/jobs', body, { 'idempotency-key': key });
    expect(first.status).toBe(201);
    const reordered = { payload: { b: 2, a: 1 }, type: 'demo.echo', client_request_id: key };
    for (const again of [
      await control.post('/api/jobs', body, { 'idempotency-key': key }),
      await control.post('/api/jobs', reordered),
      await control.post('/api/jobs', reordered, { 'idempotency-key': key }),
    ]) {
      expect(again.status).toBe(200);
      expect(again.body).toEqual(first.body);
      expect(again.headers.get('location')).toBe(`/api/jobs/${first.body.id}`);
    }
  });

  it('refuses the key for another request, and for another target', async () => {
    const key = newKey();
    const first = await control.post('/api/jobs', { type: 'demo.echo', client_request_id: key });
    for (const [path, payload] of [
      ['/api/jobs', { other: true }],
      ['/api/targets/t/jobs', {}],
    ] as const) {
      const answer = await control.post(path, { type: 'demo.echo', payload, client_request_id: key });
      expect(answer.status).toBe(409);
      expect(answer.body).toMatchObject({ code: 'IDEMPOTENCY_CONFLICT', job_id: first.body.id });
    }
  });

  it('refuses two keys that differ', async () => {
    const body = { type: 'demo.echo', client_request_id: newKey() };
    const answer = await control.post('/api/jobs', body, { 'idempotency-key': newKey() });
    expect(answer.status).toBe(400);
    expect(answer.body.field).toBe('client_request_id');
  });

  it('creates one job from twenty concurrent requests', async () => {
    const key = newKey();
    const answers = await Promise.all(
      Array.from({ length: 20 }, () =>
        control.post('/api/targets/race/jobs', { type: 'demo.echo' }, { 'idempotency-key': key }),
      ),
    );
    expect(answers.map((a) => a.status).sort()).toEqual([...Array(19).fill(200), 201]);
    expect(new Set(answers.map((a) => a.body.id)).size).toBe(1);
  });

  it('is separate for each tenant', async () => {
    const key = newKey();
    const other = await addTenant(control.db, 'other');
    await control.app.deps.registry.refresh();
    const otherKey = await control.app.keyFor(other.tenant.id);
    const mine = await control.post('/api/jobs', { type: 'demo.echo', client_request_id: key });
    const theirs = await control.app.request('POST', '/api/jobs', {
      key: otherKey,
      body: { type: 'demo.echo', client_request_id: key },
    });
    expect(theirs.status).toBe(201);
    expect(theirs.body.id).not.toBe(mine.body.id);
    const peek = await control.app.request('GET', `/api/jobs/${mine.body.id}`, { key: otherKey });
    const unknown = await control.get('/api/jobs/00000000-0000-7000-8000-000000000000');
    const malformed = await control.get('/api/jobs/not-an-id');
    const strip = ({ status, body }: typeof peek) => ({
      status,
      code: body.code,
      detail: body.detail,
      keys: Object.keys(body),
    });
    expect(strip(peek)).toEqual(strip(unknown));
    expect(strip(malformed)).toEqual(strip(unknown));
    expect(unknown.status).toBe(404);
    for (const verb of ['cancel', 'pause', 'resume', 'resolve', 'skip', 'interrupt']) {
      const answer = await control.app.request('POST', `/api/jobs/${mine.body.id}/${verb}`, { key: otherKey });
      expect(strip(answer)).toEqual(strip(unknown));
    }
    expect((await control.get(`/api/targets/elsewhere/jobs/${mine.body.id}`)).status).toBe(404);
  });
});

describe('a batch', () => {
  it('has a result for each item', async () => {
    const key = newKey();
    await control.post('/api/jobs', { type: 'demo.echo', payload: 1, client_request_id: key });
    const answer = await control.post('/api/jobs/batch', {
      jobs: [
        { type: 'demo.echo', target_id: 'b1' },
        { type: 'demo.echo', priority: 'WRONG' },
        { type: 'nobody.knows' },
        { type: 'demo.echo', payload: 1, client_request_id: key },
        { type: 'demo.echo', payload: 2, client_request_id: key },
        'text',
        { type: 'demo.echo', target_id: 'b1' },
      ],
    });
    expect(answer.status).toBe(200);
    expect(answer.body).toMatchObject({ created: 2, replayed: 1, failed: 4 });
    expect(answer.body.results.map((r: { status: number }) => r.status)).toEqual([201, 400, 400, 200, 409, 400, 201]);
    expect(answer.body.results[1].error).toMatchObject({ code: 'INVALID_FIELD', field: 'priority' });
    expect(answer.body.results[2].error.code).toBe('UNKNOWN_JOB_TYPE');
    expect(answer.body.results[0].job.target_id).toBe('b1');
  });

  it('with atomic creates all jobs or none', async () => {
    const key = newKey();
    await control.post('/api/jobs', { type: 'demo.echo', payload: 1, client_request_id: key });
    const before = await count();
    const invalid = await control.post('/api/jobs/batch', {
      atomic: true,
      jobs: [{ type: 'demo.echo' }, { type: 'demo.echo', cost_units: -1 }, { type: 'demo.echo', nope: 1 }],
    });
    expect(invalid.status).toBe(400);
    expect(invalid.body.errors.map((e: { field: string }) => e.field)).toEqual(['jobs[1].cost_units', 'jobs[2].nope']);
    const conflict = await control.post('/api/jobs/batch', {
      atomic: true,
      jobs: [
        { type: 'demo.echo', target_id: 'b2' },
        { type: 'demo.echo', payload: 2, client_request_id: key },
      ],
    });
    expect(conflict.status).toBe(409);
    expect(conflict.body).toMatchObject({ code: 'IDEMPOTENCY_CONFLICT', field: 'jobs[1]' });
    expect(await count()).toBe(before);
    const good = await control.post('/api/jobs/batch', {
      atomic: true,
      jobs: [{ type: 'demo.echo', target_id: 'b2' }, { type: 'demo.echo' }],
    });
    expect(good.status).toBe(201);
    expect(await count()).toBe(before + 2);
  });

  it('sent twice with one key is one batch', async () => {
    const send = () =>
      control.post(
        '/api/jobs/batch',
        { jobs: Array.from({ length: 5 }, (_, n) => ({ type: 'demo.echo', payload: n, target_id: 'b3' })) },
        { 'idempotency-key': 'batch-1' },
      );
    const answers = await Promise.all([send(), send()]);
    const ids = answers.map((a) => a.body.results.map((r: { job: { id: string } }) => r.job.id));
    expect(ids[0]).toEqual(ids[1]);
    expect(answers.map((a) => a.body.created).sort()).toEqual([0, 5]);
  });

  it('is bounded', async () => {
    const many = (n: number) => ({ jobs: Array.from({ length: n }, () => ({ type: 'demo.echo' })) });
    expect((await control.post('/api/jobs/batch', many(1001))).body).toMatchObject({
      code: 'INVALID_FIELD',
      field: 'jobs',
    });
    expect((await control.post('/api/jobs/batch', many(0))).status).toBe(400);
    const full = await control.post('/api/jobs/batch', many(1000));
    expect(full.status).toBe(201);
    expect(full.body.created).toBe(1000);
  });
});

describe('a tenant with max_queued', () => {
  it('is refused more jobs, single or in a batch, but replays are answered', async () => {
    const made = await addTenant(control.db, 'small');
    await updateTenantSettings(control.db, 'small', { max_queued: 3 });
    await control.app.deps.registry.refresh();
    const key = await control.app.keyFor(made.tenant.id);
    const post = (path: string, body: unknown) => control.app.request('POST', path, { key, body });
    const first = { type: 'demo.echo', client_request_id: 'first' };
    expect((await post('/api/jobs', first)).status).toBe(201);
    const four = await post('/api/jobs/batch', { jobs: Array(4).fill({ type: 'demo.echo' }) });
    expect(four.status).toBe(429);
    expect(four.body).toMatchObject({ code: 'QUEUE_FULL', max_queued: 3 });
    expect((await post('/api/targets/t/jobs', { type: 'demo.echo' })).status).toBe(201);
    expect((await post('/api/jobs', { type: 'demo.echo', run_at: '2199-01-01T00:00:00Z' })).status).toBe(201);
    expect((await post('/api/jobs', { type: 'demo.echo' })).status).toBe(429);
    expect((await post('/api/jobs', first)).status).toBe(200);
  });
});
