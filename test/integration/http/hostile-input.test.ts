import { connect } from 'node:net';
import { beforeAll, describe, expect, it, onTestFinished } from 'vitest';
import { z } from 'zod';
import { RouteGroup } from '../../../server/http/route.ts';
import { startApp, useApp } from '../../support/http/app.ts';
import { useTenant } from '../../support/postgres/database.ts';

const context = useTenant();
const app = useApp(context, () => ({ routes: [echoRoutes()] }));
let key: string;
beforeAll(async () => {
  key = await app.keyFor(context.tenant.id);
});

const post = (body: string, headers: Record<string, string> = {}) =>
  app.request('POST', '/api/echo', { key, body, headers });

function echoRoutes(): RouteGroup {
  const group = new RouteGroup('Test');
  group.route({
    method: 'post',
    path: '/api/echo',
    summary: 'Echo',
    access: 'enqueue',
    body: z.strictObject({ payload: z.unknown(), name: z.string().optional() }),
    answers: { 200: z.unknown() },
    handle: async ({ body }) => {
      // As a job's payload would be: through jsonb and back.
      const [row] = await context.db.query('select $1::jsonb as payload', [JSON.stringify(body.payload ?? null)]);
      return row;
    },
  });
  group.route({
    method: 'get',
    path: '/api/echo/{id}',
    summary: 'Fail',
    access: 'read',
    params: z.strictObject({ id: z.string() }),
    answers: { 200: z.unknown() },
    handle: async ({ params }) => {
      if (params.id === 'broken') throw new Error('secret internals');
      if (params.id === 'sql') await context.db.query('select secret_column from leasehold.tenants');
      return { id: params.id };
    },
  });
  return group;
}

describe('a body', () => {
  it('that is valid is stored unchanged', async () => {
    const payload = { text: '𝄞 ünï', list: [1, 2.5, null, true], deep: { constructor: 1, prototype: 2 } };
    const answer = await post(JSON.stringify({ payload }));
    expect(answer.status).toBe(200);
    expect(answer.body.payload).toEqual(payload);
  });

  it.each([
    ['NUL', '{"payload":{"a":[0,"x\\u0000y"]}}', 'payload.a[1]'],
    ['NUL in a name', '{"payload":{"a\\u0000b":1}}', 'payload.a\\u0000b'],
    ['a lone high surrogate', '{"payload":{"s":"\\ud800"}}', 'payload.s'],
    ['a lone low surrogate', '{"payload":"\\udc00x"}', 'payload'],
    ['a lone surrogate in a name', '{"payload":{"\\ud800":1}}', 'payload.\ufffd'],
    ['__proto__', '{"payload":{"__proto__":{"admin":true}}}', 'payload.__proto__'],
    ['__proto__ at the top', '{"payload":1,"__proto__":{"name":"x"}}', '__proto__'],
    ['a number beyond all numbers', '{"payload":{"n":1e400}}', 'payload.n'],
    ['an unknown field', '{"payload":1,"priorty":"HIGH"}', 'priorty'],
    ['a field of the wrong type', '{"payload":1,"name":7}', 'name'],
  ])('with %s is refused, and the field is named', async (_name, body, field) => {
    const answer = await post(body);
    expect(answer.status).toBe(400);
    expect(answer.headers.get('content-type')).toContain('application/problem+json');
    expect(answer.body).toMatchObject({ status: 400, code: 'INVALID_FIELD', field });
    expect(answer.body.detail).toContain(field);
  });

  it.each(['[', '{"a":'])('nested 10,000 and 150,000 times with %s is refused', async (opening) => {
    for (const depth of [10_000, 150_000]) {
      const closing = opening === '[' ? ']' : '}';
      const answer = await post(`{"payload":${opening.repeat(depth)}1${closing.repeat(depth)}}`);
      expect(answer.status).toBe(400);
      expect(answer.body.code).toBe('INVALID_FIELD');
      expect(answer.body.detail).toContain('deeper than 100');
    }
  });

  it('of exactly the limit passes, one byte more does not', async () => {
    const body = (bytes: number) => `{"payload":"${'x'.repeat(bytes - '{"payload":""}'.length)}"}`;
    expect((await post(body(1_048_576))).status).toBe(200);
    const over = await post(body(1_048_577));
    expect(over.status).toBe(413);
    expect(over.body.code).toBe('PAYLOAD_TOO_LARGE');
  });

  it.each(['{', '{"payload":}', 'nonsense', '{"payload":1}x', "{'payload':1}"])(
    'that is not JSON (%s) is reported as such',
    async (body) => {
      const answer = await post(body);
      expect(answer.status).toBe(400);
      expect(answer.body.code).toBe('INVALID_JSON');
    },
  );

  it.each(['[]', '"text"', 'null', '7'])('that is JSON but not an object (%s) is refused', async (body) => {
    expect((await post(body)).body.code).toBe('INVALID_FIELD');
  });

  it('that is missing is reported as required', async () => {
    const answer = await app.request('POST', '/api/echo', { key });
    expect(answer.status).toBe(400);
    expect(answer.body.code).toBe('INVALID_JSON');
  });

  it('of another type or encoding gets 415', async () => {
    expect((await post('payload=1', { 'content-type': 'application/x-www-form-urlencoded' })).status).toBe(415);
    expect((await post('{}', { 'content-type': 'text/plain' })).status).toBe(415);
    expect((await post('{"payload":1}', { 'content-encoding': 'rot13' })).status).toBe(415);
    expect((await post('{"payload":1}', { 'content-type': 'application/json; charset=utf-8' })).status).toBe(200);
  });

  it('with invalid UTF-8 is refused instead of repaired', async () => {
    const bytes = Buffer.concat([Buffer.from('{"payload":"'), Buffer.from([0xff, 0xfe]), Buffer.from('"}')]);
    const response = await fetch(`${app.url}/api/echo`, {
      method: 'POST',
      headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
      body: bytes,
    });
    expect(response.status).toBe(400);
    expect(await response.json()).toMatchObject({ code: 'INVALID_JSON' });
  });

  it('of a caller without a key is not read', async () => {
    const answer = await app.request('POST', '/api/echo', { body: '{', key: 'wrong' });
    expect(answer.status).toBe(401);
  });
});

describe('an address', () => {
  it('without a route gets 404, and with the wrong method 405', async () => {
    expect((await app.request('GET', '/api/nothing', { key })).body).toMatchObject({ status: 404, code: 'NOT_FOUND' });
    const wrong = await app.request('PUT', '/api/echo', { key });
    expect(wrong.body).toMatchObject({ status: 405, code: 'METHOD_NOT_ALLOWED' });
    expect(wrong.headers.get('allow')).toContain('POST');
  });

  it('may end in a slash', async () => {
    expect((await app.request('GET', '/api/keys/', { key })).status).toBe(200);
    expect((await app.request('GET', '/livez/')).status).toBe(200);
    expect((await app.request('POST', '/api/echo/', { key, body: { payload: 1 } })).status).toBe(200);
  });

  it.each(['/api/echo/%00', '/api/echo/a%00b', '/api/echo/%', '/api/echo/%ff', '/api/echo/%ed%a0%80'])(
    '%s is refused',
    async (path) => {
      const answer = await app.request('GET', path, { key });
      expect(answer.status).toBe(400);
      expect(answer.body.detail).not.toContain('/work/');
    },
  );

  it('with unknown query fields is refused', async () => {
    expect((await app.request('GET', '/api/echo/x?verbose=1', { key })).body.field).toBe('query.verbose');
  });
});

describe('an answer', () => {
  it('never reveals internals', async () => {
    for (const id of ['broken', 'sql']) {
      const answer = await app.request('GET', `/api/echo/${id}`, { key });
      expect(answer.status).toBe(500);
      expect(answer.body.code).toBe('INTERNAL');
      expect(JSON.stringify(answer.body)).not.toMatch(/secret|select|column|at \w+ \(/);
    }
  });

  it('has a request id: the given one if it is harmless, otherwise a new one', async () => {
    const given = await app.request('GET', '/livez', { headers: { 'X-Request-Id': 'abc-123' } });
    expect(given.headers.get('x-request-id')).toBe('abc-123');
    const odd = await app.request('GET', '/nothing', { headers: { 'X-Request-Id': 'a b<script>' } });
    expect(odd.headers.get('x-request-id')).toMatch(/^[0-9a-f-]{36}$/);
    expect(odd.body.request_id).toBe(odd.headers.get('x-request-id'));
    expect(
      (await app.request('GET', '/livez', { headers: { 'X-Request-Id': 'x'.repeat(500) } })).headers.get(
        'x-request-id',
      ),
    ).toHaveLength(36);
  });

  it('may not be stored by any cache', async () => {
    for (const [path, by] of [
      ['/api/keys', key],
      ['/api/echo/broken', key],
      ['/api/keys', 'wrong'],
      ['/api/nothing', key],
    ]) {
      const answer = await app.request('GET', path as string, { key: by });
      expect(answer.headers.get('cache-control')).toBe('no-store');
    }
  });

  it('has the security headers for browsers', async () => {
    const answer = await app.request('GET', '/livez');
    expect(answer.headers.get('x-content-type-options')).toBe('nosniff');
    expect(answer.headers.get('content-security-policy')).toContain("default-src 'self'");
    expect(answer.headers.get('x-powered-by')).toBeNull();
  });
});

describe('the server', () => {
  it('survives invalid bytes and header floods', async () => {
    for (const text of [
      'GARBAGE\r\n\r\n',
      `GET /livez HTTP/1.1\r\nHost: x\r\nX: ${'y'.repeat(100_000)}\r\n\r\n`,
      '\u0000\u0001',
    ]) {
      await raw(text);
    }
    expect((await app.request('GET', '/livez')).status).toBe(200);
  });

  it('limits only callers without a valid key that keep failing', async () => {
    // The limit counts per daemon: a server of its own leaves the other tests their share.
    const { app, stop } = await startApp(context);
    onTestFinished(stop);
    const answers = await Promise.all(
      Array.from({ length: 300 }, () => app.request('GET', '/api/keys', { key: 'wrong' })),
    );
    expect(new Set(answers.map((a) => a.status))).toEqual(new Set([401, 429]));
    expect(answers.find((a) => a.status === 429)?.body.code).toBe('TOO_MANY_REQUESTS');
    expect((await app.request('GET', '/api/keys', { key })).status).toBe(200);
  });
});

async function raw(text: string): Promise<void> {
  const { hostname, port } = new URL(app.url);
  await new Promise<void>((resolve) => {
    const socket = connect(Number(port), hostname, () => socket.end(text));
    socket.on('error', () => resolve());
    socket.on('close', () => resolve());
    socket.resume();
  });
}
