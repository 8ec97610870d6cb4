// What a hostile tenant can send: strange values in every field of the API's document, bodies that are huge or never
// end, addresses inside the network, and far more than its share. Nothing answers 5xx, nothing shows another tenant's
// data, no secret reaches the log. The fields come from the document that the daemon serves.
import { connect, createServer, type Server } from 'node:net';
import { pino } from 'pino';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { scopes } from '../../../server/tenants/api-keys/key.ts';
import { createApiKey } from '../../../server/tenants/api-keys/key-store.ts';
import { defineJob } from '../../../server/worker/handlers/define-job.ts';
import { fastSettings, useDaemon } from '../../support/daemon/daemon.ts';
import { eventually } from '../../support/eventually.ts';
import { hostileTexts, hostileValues } from '../../support/http/hostile-values.ts';
import { type FilledTenant, fillTenant } from '../../support/http/one-of-everything.ts';
import {
  type ApiDocument,
  type Body,
  fieldsOf,
  fillPath,
  type Operation,
  operationsOf,
  readDocument,
  withField,
} from '../../support/http/operations.ts';
import { answerToUnfinished, beginRequest } from '../../support/http/unfinished-request.ts';
import { addTenant, endOtherConnections, useTenant } from '../../support/postgres/database.ts';

const log: string[] = [];
/** Who the jobs of `abuse.work` belonged to, in the order in which they started. */
const starts: string[] = [];
const context = useTenant();
const running = useDaemon(context, {
  // Jobs that the hostile values create stay few at a time.
  env: { WORKER_CONCURRENCY: '4', TENANT_CONCURRENCY: '4' },
  handlers: [
    defineJob({
      type: 'abuse.work',
      run: async ({ payload, sleep }) => {
        starts.push(String(payload));
        await sleep(20);
      },
    }),
  ],
  logger: pino({ level: 'info' }, { write: (line) => void log.push(line) }),
});
const adminKey = fastSettings.ADMIN_API_KEY as string;
let document: ApiDocument;
let operations: Operation[];
let victim: FilledTenant;
let attacker: FilledTenant;
/** Its settings and status change; nothing depends on it. */
let throwaway: string;

beforeAll(async () => {
  const { url } = running.daemon;
  document = await readDocument(url);
  operations = operationsOf(document);
  victim = await fillTenant({ db: context.db, url, adminKey }, context.tenant);
  attacker = await fillTenant({ db: context.db, url, adminKey }, (await addTenant(context.db, 'attacker')).tenant);
  throwaway = (await addTenant(context.db, 'throwaway')).tenant.slug;
});
afterAll(() => {
  const all = log.join('');
  for (const secret of [victim.key, attacker.key, adminKey]) expect(all).not.toContain(secret);
});

const keyFor = ({ access }: Operation) => (access === 'operator' ? adminKey : attacker.key);
const idFor =
  ({ path }: Operation) =>
  (name: string) =>
    name === 'slug' ? throwaway : attacker.idIn(path, name);

const headersFor = (operation: Operation) => ({
  authorization: `Bearer ${keyFor(operation)}`,
  origin: running.daemon.url,
});

async function send(method: string, path: string, key: string, body?: unknown) {
  const response = await fetch(running.daemon.url + path, {
    method,
    headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
    ...(body !== undefined && { body: JSON.stringify(body) }),
  });
  return { status: response.status, body: (await response.json()) as Body };
}

async function request(operation: Operation, path: string, body?: string): Promise<{ status: number; text: string }> {
  const response = await fetch(running.daemon.url + path, {
    method: operation.method,
    headers: { ...headersFor(operation), ...(body !== undefined && { 'content-type': 'application/json' }) },
    ...(body !== undefined && { body }),
  });
  if (response.headers.get('content-type')?.startsWith('text/event-stream')) {
    await response.body?.cancel();
    return { status: response.status, text: '' };
  }
  return { status: response.status, text: await response.text() };
}

/** Runs all of them, a few at a time: a daemon serves clients at once. */
async function inParallel(tasks: readonly (() => Promise<void>)[]): Promise<void> {
  const queue = [...tasks];
  const runner = async () => {
    for (let task = queue.pop(); task !== undefined; task = queue.pop()) await task();
  };
  await Promise.all(Array.from({ length: 8 }, runner));
}

/**
 * The values for one field: all of them for the first operations that have a field of this name, for the others a third,
 * another one each time. What many operations share (`author`, `job_id`) is checked by the same code.
 */
function valuesFor<V>(seen: Map<string, number>, name: string, values: readonly V[]): readonly V[] {
  const count = seen.get(name) ?? 0;
  seen.set(name, count + 1);
  return count < 3 ? values : values.filter((_, n) => (n + count) % 3 === 0);
}

/** Every body of the document with a hostile value in one of its fields. */
function hostileBodies(): { operation: Operation; field: string; body: string }[] {
  const seen = new Map<string, number>();
  return operations.flatMap((operation) => {
    const { body } = operation;
    if (body === undefined) return [];
    const fields = fieldsOf(document, body.schema);
    // A job in a batch is not described in the body of a batch.
    const job = document.paths['/api/jobs']?.post?.requestBody?.content['application/json'].schema ?? {};
    if (operation.id === 'batchJobs') fields.push(...fieldsOf(document, job).map((path) => ['jobs', '0', ...path]));
    // Waiting for work is no harm, but takes time.
    return fields
      .filter((path) => path.join() !== 'wait_sec')
      .flatMap((path) =>
        valuesFor(seen, path.join('.'), hostileValues).map((value) => ({
          operation,
          field: path.join('.'),
          body: JSON.stringify(withField(body.example, path, value)),
        })),
      );
  });
}

describe('a hostile value', () => {
  // In parts, because each test has a time limit.
  it.each([0, 1, 2, 3])(
    'in a field of a body is refused or stored, never an error of the server or a way to other data (part %i)',
    async (part) => {
      const failures: string[] = [];
      const requests = hostileBodies().filter((_, n) => n % 4 === part);
      await inParallel(
        requests.map(({ operation, field, body }) => async () => {
          const answer = await request(operation, fillPath(operation.path, idFor(operation)), body);
          if (answer.status >= 500 || answer.text.includes(victim.marker))
            failures.push(`${operation.id} ${field} ${body.slice(0, 100)}: ${answer.status} ${answer.text}`);
        }),
      );
      expect(failures).toEqual([]);
      expect(requests.length).toBeGreaterThan(375);
    },
  );

  it('in a path or a query has no effect either', async () => {
    const failures: string[] = [];
    const seen = new Map<string, number>();
    const tasks = operations.flatMap((operation) =>
      operation.parameters.flatMap((parameter) =>
        valuesFor(seen, parameter.name, hostileTexts).map((value) => async () => {
          const ids = idFor(operation);
          const text = value.isWellFormed() ? encodeURIComponent(value) : '%ed%a0%80';
          const isPath = parameter.in === 'path';
          // An empty segment is another path.
          if (isPath && value.trim() === '') return;
          const filled = isPath ? operation.path.replace(`{${parameter.name}}`, text) : operation.path;
          const path = fillPath(filled, ids) + (isPath ? '' : `?${parameter.name}=${text}`);
          const example = operation.body && JSON.stringify(operation.body.example);
          const answer = await request(operation, path, example);
          if (answer.status >= 500 || answer.text.includes(victim.marker))
            failures.push(`${operation.method} ${path.slice(0, 200)}: ${answer.status} ${answer.text}`);
        }),
      ),
    );
    await inParallel(tasks);
    expect(failures).toEqual([]);
    expect(tasks.length).toBeGreaterThan(700);
  });
});

describe('a body', () => {
  const unfinished = (operation: Operation, headers: Record<string, string>, start: string) => ({
    method: operation.method,
    path: fillPath(operation.path, idFor(operation)),
    headers: { ...headersFor(operation), 'content-type': 'application/json', ...headers },
    start,
  });
  const operationOf = (id: string) => operations.find((operation) => operation.id === id) as Operation;

  it('that announces a gigabyte is refused by every route before it is sent', async () => {
    for (const operation of operations.filter(({ body }) => body !== undefined)) {
      const request = unfinished(operation, { 'content-length': String(2 ** 30) }, '{');
      expect(await answerToUnfinished(running.daemon.url, request), operation.id).toMatch(/^HTTP\/1\.1 413 /);
    }
  });

  it('of unknown length is refused as soon as it is too long, without waiting for its end', async () => {
    const megabyte = 2 ** 20;
    const chunk = `${megabyte.toString(16)}\r\n${' '.repeat(megabyte)}\r\n`;
    const request = unfinished(operationOf('createKey'), { 'transfer-encoding': 'chunked' }, chunk + chunk);
    expect(await answerToUnfinished(running.daemon.url, request)).toMatch(/^HTTP\/1\.1 413 /);
  });

  it('that never ends takes no turn of the tenant, and other tenants are served', async () => {
    const request = unfinished(operationOf('createJob'), { 'content-length': '1000' }, '{"type":');
    const sockets = Array.from({ length: 100 }, () => beginRequest(running.daemon.url, request));
    for (const socket of sockets) socket.on('error', () => {});
    try {
      for (const { key } of [victim, attacker]) {
        expect((await send('POST', '/api/jobs', key, { type: 'demo.echo' })).status).toBe(201);
      }
    } finally {
      for (const socket of sockets) socket.destroy();
    }
  });
});

describe('an address inside the network', () => {
  let canary: Server;
  let port = 0;
  let connections = 0;
  beforeAll(async () => {
    canary = createServer((socket) => {
      connections += 1;
      socket.destroy();
    });
    await new Promise<void>((resolve) => canary.listen(0, '127.0.0.1', resolve));
    port = (canary.address() as { port: number }).port;
  });
  afterAll(() => new Promise((resolve) => canary.close(resolve)));

  it('is never connected to: neither by webhooks nor by the sample that calls an address', async () => {
    const hosts = ['127.0.0.1', 'localhost', '2130706433', '0x7f.1', '127.1', '0', '[::ffff:127.0.0.1]', '[::1]'];
    const urls = [
      ...hosts.map((host) => `http://${host}:${port}/`),
      `http://127.0.0.1:${port}/latest/meta-data`,
      `https://localhost:${port}/`,
      'http://169.254.169.254/latest/meta-data',
      'http://[fd00:ec2::254]/',
    ];
    const enqueue = async (body: Body) => (await send('POST', '/api/jobs', attacker.key, body)).body.id;
    const read = async (path: string) => (await send('GET', path, attacker.key)).body;
    const jobs = await Promise.all(
      urls.map(async (url) => ({
        url,
        hooked: await enqueue({ type: 'demo.echo', webhook_url: url, priority: 'URGENT' }),
        called: await enqueue({ type: 'demo.http', payload: { url }, max_attempts: 1, priority: 'URGENT' }),
      })),
    );
    for (const { url, hooked, called } of jobs) {
      await eventually(async () => {
        const { deliveries } = (await read(`/api/jobs/${hooked}/deliveries`)) as { deliveries: Body[] };
        expect(deliveries.length, url).toBeGreaterThan(0);
        for (const { attempts, state } of deliveries)
          expect([Number(attempts) > 0, state !== 'delivered']).toEqual([true, true]);
        expect((await read(`/api/jobs/${called}`)).status, url).toBe('ERROR');
      });
    }
    expect(connections).toBe(0);
    // It would have noticed.
    const probe = connect(port, '127.0.0.1');
    await new Promise((resolve) => probe.on('close', resolve));
    expect(connections).toBe(1);
  });
});

describe('a tenant with fifty times as many jobs', () => {
  it('takes its share of the slots and no more', async () => {
    const post = async (key: string, path: string, body: unknown) =>
      expect((await send('POST', path, key, body)).status).toBe(201);
    const jobs = Array.from({ length: 500 }, () => ({ type: 'abuse.work', payload: 'noisy', priority: 'URGENT' }));
    await post(attacker.key, '/api/jobs/batch', { jobs });
    await eventually(() => expect(starts).toContain('noisy'));
    const from = starts.length;
    const quiet = Array.from({ length: 10 }, () => ({ type: 'abuse.work', payload: 'quiet' }));
    await post(victim.key, '/api/jobs/batch', { jobs: quiet });
    await eventually(() => expect(starts.filter((who) => who === 'quiet')).toHaveLength(10));
    const noisyMeanwhile = starts.slice(from, starts.lastIndexOf('quiet')).filter((who) => who === 'noisy').length;
    // In the order of arrival all of the 500 would have come first; with equal shares about as many as of the other.
    expect(noisyMeanwhile).toBeLessThan(150);
  });
});

describe('the log', () => {
  it('has no key, signing secret, database password or payload, even after errors', async () => {
    const marker = 'canary-in-a-payload';
    const { body: made } = await send('POST', '/api/keys', attacker.key, { name: 'canary', scopes: ['read'] });
    const { body: shown } = await send('GET', '/api/webhooks/secret', attacker.key);
    const { text: revoked } = await createApiKey(context.db, {
      tenantId: attacker.tenant.id,
      name: 'canary',
      scopes,
      expiresAt: '2001-01-01T00:00:00Z',
    });
    expect((await send('GET', '/api/jobs', revoked)).status).toBe(401);
    const wrong = 'lh_0190b2a45c1e7d3a_canary-of-a-mistyped-key-0123456789';
    await send('GET', `/api/jobs?key=${wrong}`, wrong);
    await send('POST', '/api/session', attacker.key, { key: wrong });
    const payload = { password: marker, times: 9, recoverable: false };
    const failed = { type: 'demo.fail', payload, webhook_url: 'http://127.0.0.1/' };
    const { body: failing } = await send('POST', '/api/jobs', attacker.key, failed);
    await send('POST', '/api/jobs', attacker.key, { type: 'demo.echo', payload: { marker }, priority: marker });
    await eventually(async () =>
      expect((await send('GET', `/api/jobs/${failing.id}`, attacker.key)).body.status).toBe('ERROR'),
    );
    // Every connection breaks: the lines about it name the server, and must not name its password.
    await endOtherConnections(context.db);
    await eventually(async () => expect((await fetch(`${running.daemon.url}/readyz`)).status).toBe(200));
    expect(log.length).toBeGreaterThan(10);
    const all = log.join('');
    const password = new URL(context.url).password;
    expect(password).not.toBe('');
    const keyText = String((made.key as Body).key);
    expect(keyText.length).toBeGreaterThan(20);
    for (const secret of [keyText, ...(shown.secrets as string[]), revoked, wrong, marker, `:${password}@`]) {
      expect(all).not.toContain(secret);
    }
    // The part of a key that identifies it may be there; the secret after it may not.
    expect(all).not.toContain(keyText.split('_').at(-1));
  });

  it('has nothing of a row that Postgres refuses, and neither has the answer', async () => {
    const marker = 'canary-in-a-refused-row';
    const jobs = `"${attacker.tenant.schemaName}".jobs`;
    // Postgres reports the whole row in the detail of its error.
    await context.db.query(`alter table ${jobs} add constraint no_canary check (payload::text not like '%${marker}%')`);
    try {
      const before = log.length;
      const refused = await send('POST', '/api/jobs', attacker.key, { type: 'demo.echo', payload: { marker } });
      expect(refused.status).toBe(500);
      expect(JSON.stringify(refused.body)).not.toContain(marker);
      const lines = log.slice(before).join('');
      expect(lines).toContain('no_canary');
      expect(lines).not.toContain(marker);
    } finally {
      await context.db.query(`alter table ${jobs} drop constraint no_canary`);
    }
  });
});
