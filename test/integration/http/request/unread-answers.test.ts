// Clients that ask and never read: what they leave unread is bounded by tenant, and they are disconnected.
import { once } from 'node:events';
import { createServer } from 'node:http';
import { type AddressInfo, connect, type Socket } from 'node:net';
import { expect, onTestFinished, test } from 'vitest';
import { z } from 'zod';
import { UnreadAnswers } from '../../../../server/http/request/unread-answers.ts';
import { RouteGroup } from '../../../../server/http/route.ts';
import { eventually } from '../../../support/eventually.ts';
import { useApp } from '../../../support/http/app.ts';
import { addTenant, useTenant } from '../../../support/postgres/database.ts';

const megabyte = 1_048_576;
const large = 'x'.repeat(4 * megabyte);

const context = useTenant();
const app = useApp(context, ({ config }) => {
  const group = new RouteGroup('Test');
  const answers = { 200: z.strictObject({ text: z.string() }) };
  const handle = () => ({ text: large });
  group.route({ method: 'get', path: '/api/large', summary: 'Large', access: 'read', answers, handle });
  return { routes: [group], config: { ...config, requestMemoryBytes: 16 * megabyte } };
});

/** Sends requests at once and reads nothing of their answers. */
function ask(url: string, key: string, requests: number): Socket {
  const { hostname, port } = new URL(url);
  const socket = connect(Number(port), hostname).pause();
  socket.on('error', () => {});
  socket.write(`GET /api/large HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${key}\r\n\r\n`.repeat(requests));
  onTestFinished(() => void socket.destroy());
  return socket;
}

test('a tenant with too many unread answers gets no more until they are read; others do', async () => {
  const { tenant } = await addTenant(context.db, 'reader');
  await app.deps.registry.refresh();
  const [key, otherKey] = [await app.keyFor(context.tenant.id, ['read']), await app.keyFor(tenant.id, ['read'])];
  const statusFor = async (one: string) => (await app.request('GET', '/api/large', { key: one })).status;
  // More than the systems of both sides take on their own.
  const client = ask(app.url, key, 24);
  await eventually(async () => {
    const refused = await app.request('GET', '/api/large', { key });
    expect(refused.body).toMatchObject({ status: 429, code: 'TOO_MANY_REQUESTS', scope: 'tenant' });
    expect(refused.headers.get('retry-after')).toBe('2');
  });
  expect(await statusFor(otherKey)).toBe(200);
  client.resume();
  await eventually(async () => expect(await statusFor(key)).toBe(200));
});

test('a client that takes nothing of its answer is disconnected, and its bytes are released', async () => {
  const unread = new UnreadAnswers({ limitBytes: megabyte, stallMs: 100 });
  const server = createServer((_request, response) => {
    response.end(large.repeat(20));
    unread.wrote(response, 'acme');
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  onTestFinished(() => void server.close());
  const client = ask(`http://127.0.0.1:${(server.address() as AddressInfo).port}`, 'any', 1);
  await once(server, 'request');
  expect(() => unread.admit('acme')).toThrow('wait to be read');
  expect(() => unread.admit('other')).not.toThrow();
  await eventually(() => expect(unread.bytesOf('acme')).toBe(0));
  // What its system had taken before ends too early.
  client.resume();
  await once(client, 'close');
  expect(client.bytesRead).toBeLessThan(large.length * 20);
});
