// The API as a part of another program's server: below a prefix, behind its own sign-in, read-only, after its own parsers.
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import express, { type RequestHandler } from 'express';
import { afterAll, beforeAll, expect, onTestFinished, test } from 'vitest';
import { createLeasehold, type HostCaller, type Leasehold } from '../../../server/embed/index.ts';
import { defineJob } from '../../../server/worker/handlers/define-job.ts';
import { addTenant, useTenant } from '../../support/postgres/database.ts';

const context = useTenant();
const noop = defineJob({ type: 'noop', run: () => 'done' });
let leasehold: Leasehold;

beforeAll(async () => {
  leasehold = await createLeasehold({ databaseUrl: context.url, jobs: [noop], logger: false });
  await leasehold.start();
});
afterAll(() => leasehold.stop({ graceSeconds: 0 }));

async function serve(handler: RequestHandler): Promise<(path: string, init?: RequestInit) => Promise<Response>> {
  const server = createServer(handler as never).listen(0, '127.0.0.1');
  await new Promise((resolve) => server.once('listening', resolve));
  onTestFinished(() => {
    server.closeAllConnections();
    return new Promise<void>((resolve) => server.close(() => resolve()));
  });
  const { port } = server.address() as AddressInfo;
  return (path, init) => fetch(`http://127.0.0.1:${port}${path}`, init);
}

const signedIn =
  (caller: Partial<HostCaller> = {}) =>
  () => ({ tenant: 'acme', actor: 'user:ada', ...caller });
const post = (body: unknown): RequestInit => ({
  method: 'POST',
  headers: { 'Content-Type': 'application/json' },
  body: JSON.stringify(body),
});

test('the router works below a prefix, with the sign-in of the host and after its parsers', async () => {
  const app = express();
  app.use(express.json());
  app.use('/ops/leasehold', leasehold.router({ authorize: signedIn() }));
  app.use((request, response) => void response.send(`host ${request.path}`));
  const ask = await serve(app);
  const made = await ask('/ops/leasehold/api/jobs', post({ type: 'noop', payload: { a: 1 } }));
  expect(made.status).toBe(201);
  const { id, ...job } = (await made.json()) as { id: string };
  expect(job).toMatchObject({ type: 'noop', payload: { a: 1 } });
  expect(made.headers.get('Location')).toBe(`/ops/leasehold/api/jobs/${id}`);
  const history = await ask(`/ops/leasehold/api/jobs/${id}/events`);
  expect(((await history.json()) as { events: { actor: string }[] }).events[0]?.actor).toBe('user:ada');
  const batch = await ask('/ops/leasehold/api/jobs/batch', post({ jobs: [{ type: 'noop' }, { type: '' }] }));
  expect(await batch.json()).toMatchObject({ created: 1, failed: 1 });
  const session = await ask('/ops/leasehold/api/session');
  expect(await session.json()).toMatchObject({
    session: { key: { name: 'user:ada' }, tenant: 'acme', operator: false },
  });
  expect((await ask('/ops/leasehold/api/session', post({ key: 'x' }))).status).toBe(403);
  expect((await ask('/ops/leasehold/nowhere')).status).toBe(404);
  expect(await (await ask('/elsewhere')).text()).toBe('host /elsewhere');
});

test('the host decides about the tenant, the scopes and who is refused', async () => {
  await addTenant(context.db, 'other');
  const callers: Record<string, HostCaller | undefined> = {
    ada: { tenant: 'acme', actor: 'user:ada', scopes: ['read'] },
    bea: { tenant: 'other', actor: 'user:bea' },
    cy: { tenant: 'missing', actor: 'user:cy' },
    operator: { actor: 'user:root' },
  };
  const authorize = async (request: { headers: Record<string, unknown> }) => callers[String(request.headers['x-user'])];
  const ask = await serve(leasehold.router({ authorize }));
  const as = (user: string, init: RequestInit = {}) => ({ ...init, headers: { ...init.headers, 'x-user': user } });
  const statusOf = async (path: string, init: RequestInit) => (await ask(path, init)).status;
  expect(await statusOf('/api/jobs', as('nobody'))).toBe(401);
  expect(await statusOf('/api/jobs', as('ada'))).toBe(200);
  expect(await statusOf('/api/jobs', as('ada', post({ type: 'noop' })))).toBe(403);
  expect(await statusOf('/api/jobs', as('cy'))).toBe(404);
  expect(await statusOf('/api/jobs', as('operator'))).toBe(403);
  // An operator selects a tenant; nobody else can.
  const selecting = (user: string, tenant: string, init: RequestInit = {}) =>
    as(user, { ...init, headers: { ...init.headers, 'x-leasehold-tenant': tenant } });
  const selected = await ask('/api/jobs', selecting('operator', 'other', post({ type: 'noop', payload: 'selected' })));
  expect(selected.status).toBe(201);
  const { id } = (await selected.json()) as { id: string };
  expect(await statusOf(`/api/jobs/${id}`, as('bea'))).toBe(200);
  expect(await statusOf(`/api/jobs/${id}`, selecting('operator', 'acme'))).toBe(404);
  expect(await statusOf(`/api/jobs/${id}`, selecting('ada', 'other'))).toBe(404);
  expect(await statusOf('/api/jobs', selecting('operator', 'missing'))).toBe(404);
  expect(await statusOf('/api/scheduler/jobs/claim', selecting('operator', 'other', post({ worker_id: 'w' })))).toBe(
    403,
  );
  expect(await statusOf('/api/admin/tenants', selecting('operator', 'other'))).toBe(403);
  const session = await (await ask('/api/session', selecting('operator', 'other'))).json();
  expect(session).toMatchObject({ session: { operator: true, tenant: null } });
  expect(await statusOf('/api/admin/tenants', as('operator'))).toBe(200);
  expect(await statusOf('/api/admin/tenants', as('bea'))).toBe(403);
  const made = (await (await ask('/api/jobs', as('bea', post({ type: 'noop' })))).json()) as { id: string };
  expect(await statusOf(`/api/jobs/${made.id}`, as('bea'))).toBe(200);
  expect(await statusOf(`/api/jobs/${made.id}`, as('ada'))).toBe(404);
  // An API key does not open what the host guards.
  const { key } = await leasehold.tenants.create('keyed');
  expect(await statusOf('/api/jobs', { headers: { Authorization: `Bearer ${key}` } })).toBe(401);
});

test('without a sign-in of the host, the router accepts API keys; read-only, it changes nothing', async () => {
  const { key } = await leasehold.tenants.create('readers');
  const app = express();
  app.use('/all', leasehold.router());
  app.use('/read', leasehold.router({ readOnly: true }));
  const ask = await serve(app);
  const init = post({ type: 'noop' });
  const withKey = (given: RequestInit = {}) => ({
    ...given,
    headers: { ...given.headers, Authorization: `Bearer ${key}` },
  });
  expect((await ask('/all/api/jobs')).status).toBe(401);
  expect((await ask('/all/api/jobs', withKey(init))).status).toBe(201);
  expect((await ask('/read/api/jobs', withKey())).status).toBe(200);
  const refused = await ask('/read/api/jobs', withKey(init));
  expect([refused.status, await refused.json()]).toMatchObject([403, { detail: 'This API is mounted read-only.' }]);
  expect((await ask('/read/livez')).status).toBe(200);
});

test('a request that the router does not answer keeps the prototypes of the host', async () => {
  const app = express();
  const names: unknown[] = [];
  app.use((request, response, next) => {
    names.push(Object.getPrototypeOf(request), Object.getPrototypeOf(response));
    next();
  });
  app.use('/x', leasehold.router({ authorize: () => undefined }));
  const ask = await serve(app);
  expect((await ask('/x/api/jobs')).status).toBe(401);
  expect(names).toHaveLength(2);
});
