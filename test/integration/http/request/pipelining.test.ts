// Requests that are sent before the answers to earlier ones, on a connection that ends before they are answered.
import { connect } from 'node:net';
import { expect, test } from 'vitest';
import { z } from 'zod';
import { handled, RouteGroup } from '../../../../server/http/route.ts';
import { eventually } from '../../../support/eventually.ts';
import { useApp } from '../../../support/http/app.ts';
import { useTenant } from '../../../support/postgres/database.ts';

const context = useTenant();
const begun = new Set<string>();
const closed = new Set<string>();
const app = useApp(context, () => {
  const group = new RouteGroup('Test');
  group.route({
    method: 'get',
    path: '/api/held/{name}',
    summary: 'Is answered for one name only',
    access: 'read',
    params: z.strictObject({ name: z.string() }),
    answers: { 200: z.string() },
    handle: ({ params, response }) => {
      begun.add(params.name);
      response.once('close', () => closed.add(params.name));
      if (params.name === 'answered') response.end();
      return handled;
    },
  });
  return { routes: [group] };
});

test('what they hold is released when the connection ends', async () => {
  const key = await app.keyFor(context.tenant.id, ['read']);
  const { hostname, port } = new URL(app.url);
  const socket = connect(Number(port), hostname);
  const names = ['first', 'second', 'answered', 'last'];
  for (const name of names)
    socket.write(`GET /api/held/${name} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${key}\r\n\r\n`);
  await eventually(() => expect([...begun].sort()).toEqual([...names].sort()));
  expect(closed.size).toBe(0);
  socket.destroy();
  await eventually(() => expect([...closed].sort()).toEqual([...names].sort()));
});
