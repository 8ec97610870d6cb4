import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { connect } from 'node:net';
import { Counter, Registry } from 'prom-client';
import { afterEach, describe, expect, it, onTestFinished } from 'vitest';
import { Database } from '../../../server/database/database.ts';
import { createApp } from '../../../server/http/app.ts';
import type { ReadinessState } from '../../../server/http/resources/health.ts';
import { handled, RouteGroup } from '../../../server/http/route.ts';
import { HttpServer } from '../../../server/http/server.ts';
import { createLogger } from '../../../server/kernel/logger.ts';
import { eventually } from '../../support/eventually.ts';
import { adminKey, startApp, useApp } from '../../support/http/app.ts';
import { beginRequest } from '../../support/http/unfinished-request.ts';
import { directUrl, useDatabase } from '../../support/postgres/database.ts';

const context = useDatabase();

/** A role of its own: what is set for it and whose connections end concerns no other test of the file. */
async function connectAs(role: string): Promise<{ db: Database; endConnections(): Promise<void> }> {
  await context.db.query(`create role ${role} login superuser password '${role}'`);
  // A pooler may know one role only.
  const url = new URL(directUrl(context));
  url.username = role;
  url.password = role;
  const db = new Database({ url: url.href, poolMax: 2, logger: createLogger('silent') });
  const endConnections = async () => {
    const of = 'from pg_stat_activity where usename = $1';
    const ended = await context.db.query<{ pid: number }>(`select pid, pg_terminate_backend(pid) ${of}`, [role]);
    const pids = ended.map(({ pid }) => pid);
    // Only these: the app may have opened others by now.
    await eventually(async () => {
      expect(await context.db.query(`select ${of} and pid = any($2)`, [role, pids])).toEqual([]);
    });
  };
  return { db, endConnections };
}

let state: ReadinessState = { migrated: true, draining: false };
const metricsRegistry = new Registry();
new Counter({ name: 'test_total', help: 'A test', registers: [metricsRegistry] }).inc(3);
const app = useApp(context, () => ({ readiness: () => state, metricsRegistry }));
afterEach(() => {
  state = { migrated: true, draining: false };
});

describe('/readyz', () => {
  it('is 200 when all is well', async () => {
    const answer = await app.request('GET', '/readyz');
    expect(answer.status).toBe(200);
    expect(answer.body).toEqual({
      ready: true,
      checks: { database: { ok: true }, migrations: { ok: true }, draining: { ok: true } },
    });
  });

  it.each<[string, ReadinessState, string]>([
    ['migrations are missing', { migrated: false, draining: false }, 'migrations'],
    ['the daemon drains', { migrated: true, draining: true, drain: { running: 2 } }, 'draining'],
    ['a check of the daemon fails', { migrated: true, draining: false, checks: { worker: { ok: false } } }, 'worker'],
  ])('is 503 when %s, and /livez still 200', async (_name, given, check) => {
    state = given;
    const answer = await app.request('GET', '/readyz');
    expect(answer.status).toBe(503);
    expect(answer.body.checks[check].ok).toBe(false);
    if (given.drain) expect(answer.body.drain).toEqual(given.drain);
    expect((await app.request('GET', '/livez')).status).toBe(200);
  });

  it('is 503 while the database is read-only, and 200 when it accepts writes again', async () => {
    const role = `readyz_${randomBytes(6).toString('hex')}`;
    const { db, endConnections } = await connectAs(role);
    const alone = await startApp({ db });
    try {
      await context.db.query(`alter role ${role} set default_transaction_read_only = on`);
      // For new connections; those of the pool are ended.
      await endConnections();
      await eventually(async () => {
        const { status, body } = await alone.app.request('GET', '/readyz');
        expect([status, body.checks.database.detail]).toEqual([503, 'the database is a standby or read-only']);
      });
      await context.db.query(`alter role ${role} set default_transaction_read_only = off`);
      await endConnections();
      await eventually(async () => expect((await alone.app.request('GET', '/readyz')).status).toBe(200));
    } finally {
      await alone.stop();
      await db.close();
      await context.db.query(`drop role ${role}`);
    }
  });

  it.each([
    ['53100', 'could not extend file: No space left on device', 'the database has no space left'],
    ['58030', 'could not write to file: Input/output error', 'the database cannot write to its disk'],
    ['58P01', 'could not open file', 'the database cannot write to its disk'],
    ['42501', 'could not open file: Read-only file system', 'the database cannot write to its disk'],
  ])('is 503 while inserts fail with %s (%s), and leaves no row behind', async (state, message, detail) => {
    const db = new Database({ url: context.url, poolMax: 2, logger: createLogger('silent') });
    const alone = await startApp({ db });
    const before = await context.db.query('select id from leasehold.daemons');
    const fails = `begin raise exception '${message}' using errcode = '${state}'; end`;
    try {
      await context.db.query(`create function fails() returns trigger language plpgsql as $$ ${fails} $$`);
      await context.db.query(
        'create trigger fails before insert on leasehold.daemons for each row execute function fails()',
      );
      await eventually(async () => {
        const { status, body } = await alone.app.request('GET', '/readyz');
        expect([status, body.checks.database.detail]).toEqual([503, detail]);
      });
      await context.db.query('drop function fails cascade');
      await eventually(async () => expect((await alone.app.request('GET', '/readyz')).status).toBe(200));
      expect(await context.db.query('select id from leasehold.daemons')).toEqual(before);
    } finally {
      await context.db.query('drop function if exists fails cascade');
      await alone.stop();
      await db.close();
    }
  });

  it('is 503 without a database, like the API, and reveals nothing about the database', async () => {
    const db = new Database({
      url: 'postgres://someone:hush@127.0.0.1:9/nowhere',
      poolMax: 2,
      logger: createLogger('silent'),
    });
    const alone = await startApp({ db });
    try {
      const ready = await alone.app.request('GET', '/readyz');
      expect(ready.status).toBe(503);
      expect(ready.body.checks.database.ok).toBe(false);
      const list = await alone.app.request('GET', '/api/admin/tenants', { key: adminKey });
      expect(list.status).toBe(503);
      expect(list.body.code).toBe('DATABASE_UNAVAILABLE');
      expect(list.headers.get('retry-after')).toBe('2');
      const key = `lh_${'0'.repeat(16)}_${'0'.repeat(64)}`;
      expect((await alone.app.request('GET', '/api/keys', { key })).status).toBe(503);
      expect(JSON.stringify([ready.body, list.body])).not.toMatch(/hush|someone|ECONN|127\.0/);
      expect((await alone.app.request('GET', '/livez')).status).toBe(200);
    } finally {
      await alone.stop();
      await db.close();
    }
  });
});

it.each([
  ['40001', 'could not serialize access due to concurrent update'],
  ['40P01', 'deadlock detected'],
  ['53100', 'could not extend file: No space left on device'],
  ['53200', 'out of memory'],
  ['58030', 'could not read block 7: Input/output error'],
  ['25006', 'cannot execute INSERT in a read-only transaction'],
])('an error of the database that passes (%s, %s) is 503 with Retry-After, and is not shown', async (code, message) => {
  const group = new RouteGroup('Failing');
  group.route({
    method: 'get',
    path: '/failing',
    summary: 'Failing',
    access: 'public',
    answers: { 200: null },
    handle: () => Promise.reject(Object.assign(new Error(message), { code })),
  });
  const failing = await startApp({ db: context.db }, () => ({ routes: [group] }));
  try {
    const answer = await failing.app.request('GET', '/failing');
    expect([answer.status, answer.headers.get('retry-after')]).toEqual([503, '2']);
    expect(answer.body).toMatchObject({ code: 'DATABASE_UNAVAILABLE', detail: expect.stringContaining('soon') });
    expect(JSON.stringify(answer.body)).not.toContain(message);
  } finally {
    await failing.stop();
  }
});

it('/metrics shows what is registered', async () => {
  const answer = await app.request('GET', '/metrics');
  expect(answer.headers.get('content-type')).toContain('text/plain');
  expect(answer.body).toContain('test_total 3');
});

describe('/metrics', () => {
  it('is written once for all who ask at the same time, and always after they asked', async () => {
    const registry = new Registry();
    const counter = new Counter({ name: 'test_asked', help: 'A test', registers: [registry] });
    let written = 0;
    const metrics = registry.metrics.bind(registry);
    registry.metrics = () => {
      written += 1;
      return metrics();
    };
    const { app: own, stop } = await startApp(context, () => ({ metricsRegistry: registry }));
    onTestFinished(stop);
    const read = async () => (await own.request('GET', '/metrics')).body as string;
    const texts = await Promise.all(Array.from({ length: 50 }, read));
    expect(texts.every((text) => text.includes('test_asked 0'))).toBe(true);
    expect(written).toBeLessThan(50);
    for (let n = 1; n <= 3; n++) {
      counter.inc();
      expect(await read()).toContain(`test_asked ${n}`);
    }
  });
});

describe('/openapi.json', () => {
  it('describes every route, its access and its problems', async () => {
    const { status, body } = await app.request('GET', '/openapi.json');
    expect(status).toBe(200);
    expect(body.openapi).toBe('3.1.0');
    expect(Object.keys(body.paths)).toEqual(
      expect.arrayContaining(['/livez', '/api/keys', '/api/admin/tenants/{slug}/keys/{id}']),
    );
    const create = body.paths['/api/admin/tenants'].post;
    expect(create['x-access']).toBe('operator');
    expect(Object.keys(create.responses).sort()).toEqual(['201', '400', '401', '403', '409', '413', '415']);
    expect(create.requestBody.content['application/json'].schema.additionalProperties).toBe(false);
    expect(Object.keys(body.components.schemas)).toEqual(
      expect.arrayContaining(['Tenant', 'TenantSettings', 'Problem']),
    );
  });

  it('refuses two definitions of one route', async () => {
    const twin = new RouteGroup('Twin');
    twin.route({
      method: 'get',
      path: '/livez',
      summary: 'Again',
      access: 'public',
      answers: { 200: null },
      handle: () => null,
    });
    expect(() => createApp({ ...app.deps, routes: [twin] })).toThrow('two routes for get /livez');
  });
});

describe('the server', () => {
  it('reports clearly that its port is taken', async () => {
    const port = Number(new URL(app.url).port);
    const second = new HttpServer(() => createApp(app.deps), { host: '127.0.0.1', port }, createLogger('silent'));
    await expect(second.start()).rejects.toThrow(`port ${port} on 127.0.0.1 is in use`);
    await second.stop();
  });

  it('disconnects a client that sends its headers too slowly', async () => {
    const options = { host: '127.0.0.1', port: 0, headersTimeoutMs: 200 };
    const server = new HttpServer(() => createApp(app.deps), options, createLogger('silent'));
    await server.start();
    const { port } = new URL(server.url);
    const answer = await new Promise<string>((resolve, reject) => {
      let text = '';
      const socket = connect(Number(port), '127.0.0.1', () => socket.write('GET /livez HTTP/1.1\r\nHost: x\r\n'));
      socket.on('data', (chunk) => (text += chunk.toString()));
      socket.on('close', () => resolve(text));
      socket.on('error', reject);
    });
    expect(answer).toContain('408');
    await server.stop();
  });

  it('disconnects a client that sends its body byte by byte, and answers others meanwhile', async () => {
    const options = { host: '127.0.0.1', port: 0, headersTimeoutMs: 200, requestTimeoutMs: 1_000 };
    const server = new HttpServer(() => createApp(app.deps), options, createLogger('silent'));
    await server.start();
    const path = '/api/admin/keys';
    const headers = { authorization: `Bearer ${adminKey}`, 'content-type': 'application/json' };
    // Large enough for the limit of memory for bodies to count it.
    const announced = { ...headers, 'content-length': '900000' };
    const socket = beginRequest(server.url, { method: 'POST', path, headers: announced, start: '{' });
    const trickle = setInterval(() => socket.write(' '), 20);
    let answer = '';
    socket.on('data', (chunk) => (answer += chunk.toString()));
    // The server may close it before a byte that is under way.
    socket.on('error', () => {});
    const cut = once(socket, 'close');
    for (let n = 0; n < 5; n++) {
      const request = { method: 'POST', headers, body: JSON.stringify({ name: `beside a slow body ${n}` }) };
      expect((await fetch(server.url + path, request)).status).toBe(201);
    }
    await cut;
    clearInterval(trickle);
    expect(answer).toMatch(/^(HTTP\/1\.1 408 .*)?$/s);
    await server.stop();
  });

  it('lets a request in flight finish when it stops, and cuts a stream that never ends', async () => {
    let release = () => {};
    let enter = () => {};
    const entered = new Promise<void>((resolve) => {
      enter = resolve;
    });
    const group = new RouteGroup('Slow');
    group.route({
      method: 'get',
      path: '/slow',
      summary: 'Slow',
      access: 'public',
      answers: { 200: null },
      handle: () =>
        new Promise((resolve) => {
          release = () => resolve({ done: true });
          enter();
        }),
    });
    group.route({
      method: 'get',
      path: '/stream',
      summary: 'Endless',
      access: 'public',
      answers: { 200: null },
      handle: ({ response }) => {
        response.write('begin');
        return handled;
      },
    });
    const own = await startApp(context, () => ({ routes: [group] }));
    const stream = await fetch(`${own.app.url}/stream`);
    const slow = own.app.request('GET', '/slow');
    await entered;
    const stopped = own.stop();
    release();
    expect((await slow).body).toEqual({ done: true });
    await expect(stream.text()).rejects.toThrow();
    await stopped;
    await expect(own.app.request('GET', '/livez')).rejects.toThrow();
  });
});
