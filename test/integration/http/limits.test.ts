// What one request may cost: bytes, fields, values, memory, and the time in which others have to wait for it.
import { setImmediate } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import { ByteBudget } from '../../../server/http/request/body.ts';
import { eventually } from '../../support/eventually.ts';
import { startApp } from '../../support/http/app.ts';
import { useControl } from '../../support/http/control.ts';
import { addTenant } from '../../support/postgres/database.ts';

const control = useControl();
const megabyte = 1_048_576;
const count = async () =>
  Number((await control.db.query<{ n: string }>(`select count(*) as n from ${control.schema}.jobs`))[0]?.n);
/** As JSON exactly this many bytes. */
const text = (bytes: number) => 'x'.repeat(bytes - 2);

it('the jobs of a batch name 10,000 others, not more', async () => {
  const batch = (edges: number) => {
    const keys = Array.from({ length: 11 }, (_, n) => `edges-${edges}-${n}`);
    const first = keys.map((key) => ({ type: 'demo.echo', client_request_id: key, run_at: '2090-01-01T00:00:00Z' }));
    const after = Array.from({ length: 1000 }, (_, n) => keys[n % 11]);
    const last = Array.from({ length: 11 }, (_, n) => {
      return { type: 'demo.echo', after: after.slice(0, Math.max(0, edges - 1000 * n)) };
    });
    return { jobs: [...first, ...last] };
  };
  expect((await control.post('/api/jobs/batch', batch(10_000))).body).toMatchObject({ created: 22 });
  const before = await count();
  const refused = await control.post('/api/jobs/batch', batch(10_001));
  expect(refused.body).toMatchObject({ status: 400, code: 'INVALID_FIELD', field: 'jobs' });
  expect(await count()).toBe(before);
});

describe('a payload', () => {
  it('of a megabyte is accepted in a batch, and one byte more is refused with its field and the limit', async () => {
    const jobs = [megabyte, megabyte + 1, 10].map((bytes) => ({ type: 'demo.echo', payload: text(bytes) }));
    const answer = await control.post('/api/jobs/batch', { jobs });
    expect(answer.status).toBe(200);
    expect(answer.body).toMatchObject({ created: 2, failed: 1 });
    expect(answer.body.results[1]).toMatchObject({
      status: 413,
      error: { code: 'PAYLOAD_TOO_LARGE', field: 'payload', limit: megabyte },
    });
    const before = await count();
    const atomic = await control.post('/api/jobs/batch', { jobs, atomic: true });
    expect(atomic.body).toMatchObject({ status: 400, field: 'jobs[1].payload' });
    expect(await count()).toBe(before);
  });

  it('that grows when it is stored is measured in its stored form', async () => {
    // 5 bytes each as sent, 22 as stored.
    const body = `{"type":"demo.echo","payload":[${Array(49_900).fill('1e20').join(',')}]}`;
    const answer = await control.post('/api/jobs', body);
    expect(answer.body).toMatchObject({ status: 413, code: 'PAYLOAD_TOO_LARGE', field: 'payload' });
  });

  it.each([
    ['values', `[${Array(50_001).fill('[]').join(',')}]`, 'more than 50000 values'],
    ['fields', `{${Array.from({ length: 20_001 }, (_, n) => `"${n}":0`).join(',')}}`, 'more than 20000 fields'],
    ['levels', `${'['.repeat(101)}${']'.repeat(101)}`, 'deeper than 100 levels'],
  ])('with too many %s is refused, alone and in a batch', async (_what, payload, message) => {
    const alone = await control.post('/api/jobs', `{"type":"demo.echo","payload":${payload}}`);
    expect(alone.body).toMatchObject({ status: 400, code: 'INVALID_FIELD' });
    expect(alone.body.field).toMatch(/^payload/);
    expect(alone.body.detail).toContain(message);
    const jobs = `[{"type":"demo.echo","payload":1},{"type":"demo.echo","payload":${payload}}]`;
    const batch = await control.post('/api/jobs/batch', `{"jobs":${jobs}}`);
    expect(batch.body).toMatchObject({ created: 1, failed: 1, results: [{ status: 201 }, { status: 400 }] });
    expect(batch.body.results[1].error.detail).toContain(message);
  });

  it('is limited in a result that a person supplies, and notes beside it are', async () => {
    const constraints = { note: text(40_000) };
    const refused = await control.post('/api/jobs', { type: 'demo.echo', constraints });
    expect(refused.body).toMatchObject({ status: 413, field: 'constraints', limit: 32_768 });
  });
});

describe('a batch', () => {
  it('is answered without its payloads, even if it is repeated', async () => {
    const jobs = [1, 2].map((n) => ({ type: 'demo.echo', payload: { n }, client_request_id: `limits-${n}` }));
    for (const status of [201, 200]) {
      const answer = await control.post('/api/jobs/batch', { jobs });
      expect(answer.body.results.map((item: { status: number }) => item.status)).toEqual([status, status]);
      for (const { job } of answer.body.results) expect(job).not.toHaveProperty('payload');
    }
    const one = await control.post('/api/jobs', jobs[0]);
    expect([one.status, one.body.payload]).toEqual([200, { n: 1 }]);
  });

  it.each([
    '{"jobs":[{"type":"demo.echo"}',
    '{"jobs":[{"type":"demo.echo"]}',
    '{"jobs":[{"type":"demo.echo"} {"type":"demo.echo"}]}',
    '{"jobs":[{"type":"demo.echo"},]}',
    '{"jobs":[{"type":"demo.echo",}]}',
    '{"jobs":[{"type":"demo.echo"}]}}',
    '{"jobs":[[[[{]]]]}',
    '{"jobs":[{"a":"',
  ])('that is not JSON is reported as such: %s', async (body) => {
    const before = await count();
    expect((await control.post('/api/jobs/batch', body)).body).toMatchObject({ status: 400, code: 'INVALID_JSON' });
    expect(await count()).toBe(before);
  });

  it.each([
    ['strings with brackets and escapes', '{"jobs":[{"type":"demo.echo","payload":"]}\\\\\\"{["}]}', 201],
    ['spaces and another order', ' { "atomic" : true , "jobs" : [ { "type":"demo.echo" } ] } ', 201],
    ['a scalar for a job', '{"jobs":[7]}', 200],
    ['a list for a job', '{"jobs":[[1]]}', 200],
    ['an object for the list', '{"jobs":{"a":{"type":"demo.echo"}}}', 400],
    ['a list at the top', '[[{"type":"demo.echo"}]]', 400],
    ['the list twice: the last counts', '{"jobs":[{"type":"nope"}],"jobs":[{"type":"demo.echo"}]}', 201],
    ['__proto__', '{"jobs":[{"type":"demo.echo"}],"__proto__":{"x":[1]}}', 400],
  ])('with %s is parsed as by JSON.parse', async (_name, body, status) => {
    expect((await control.post('/api/jobs/batch', body)).status).toBe(status);
  });

  it('of eight megabytes does not delay requests of other tenants', async () => {
    const neighbour = await addTenant(control.db, 'neighbour');
    await control.app.deps.registry.refresh();
    const key = await control.app.keyFor(neighbour.tenant.id);
    const words = Object.fromEntries(Array.from({ length: 9000 }, (_, n) => [`${(n * 7919) % 9000}k`, `v${n}`]));
    const one = JSON.stringify({ ...words, filling: text(megabyte - 200_000) });
    const jobs = Array.from(
      { length: 8 },
      (_, n) => `{"type":"demo.echo","client_request_id":"hostile-${n}","payload":${one}}`,
    );
    let isAnswered = false;
    const hostile = control.post('/api/jobs/batch', `{"jobs":[${jobs.join(',')}]}`).finally(() => {
      isAnswered = true;
    });
    let between = 0;
    while (!isAnswered) {
      const answer = await control.app.request('POST', '/api/jobs', { key, body: { type: 'demo.echo' } });
      expect(answer.status).toBe(201);
      if (!isAnswered) between++;
      await setImmediate();
    }
    expect((await hostile).body).toMatchObject({ created: 8 });
    expect(between).toBeGreaterThan(3);
  });
});

describe('memory', () => {
  it('for large requests is bounded, half of it for one tenant', async () => {
    const { app, stop } = await startApp(control, (deps) => ({
      config: { ...deps.config, requestMemoryBytes: 2 * megabyte },
    }));
    try {
      const key = await app.keyFor(control.tenant.id, ['admin']);
      // A body that does not come: its bytes stay reserved until the request ends.
      const gone = new AbortController();
      const slow = new ReadableStream({ start: (stream) => stream.enqueue(Buffer.from('{"name":')) });
      const headers = { authorization: `Bearer ${key}`, 'content-type': 'application/json' };
      const init = { method: 'POST', headers, body: slow, duplex: 'half', signal: gone.signal } as RequestInit;
      const first = fetch(`${app.url}/api/keys`, init).catch(() => undefined);
      const body = { name: text(megabyte - 1000), scopes: ['read'] };
      const refused = await eventually(async () => {
        const answer = await app.request('POST', '/api/keys', { key, body });
        expect(answer.status).toBe(429);
        return answer;
      });
      expect(refused.body.code).toBe('TOO_MANY_REQUESTS');
      expect(refused.headers.get('retry-after')).toBe('2');
      const small = await app.request('POST', '/api/keys', { key, body: { name: 'small', scopes: ['read'] } });
      expect(small.status).toBe(201);
      gone.abort();
      await first;
    } finally {
      await stop();
    }
  });

  it('is released, and requests beyond the total are refused', () => {
    const budget = new ByteBudget(4 * megabyte);
    const closes: (() => void)[] = [];
    const response = { once: (_: string, close: () => void) => closes.push(close) } as never;
    for (const tenant of ['a', 'a', 'b', 'b']) budget.reserve(response, tenant, megabyte);
    expect(() => budget.reserve(response, 'c', megabyte)).toThrow('busy with large requests');
    expect(() => budget.reserve(response, 'c', 1000)).not.toThrow();
    for (const close of closes) close();
    expect(budget.usedBytes).toBe(0);
    budget.reserve(response, 'a', megabyte);
    budget.reserve(response, 'a', megabyte);
    expect(() => budget.reserve(response, 'a', megabyte)).toThrow('of this tenant');
  });
});
