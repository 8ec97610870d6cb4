import { once } from 'node:events';
import { createServer } from 'node:http';
import { type AddressInfo, connect } from 'node:net';
import express, { type NextFunction, type Request, type Response } from 'express';
import { expect, onTestFinished, test } from 'vitest';
import { createAuthenticate } from '../../../../server/http/request/authenticate.ts';
import { Problem } from '../../../../server/kernel/errors.ts';
import { eventually } from '../../../support/eventually.ts';

test('a client that is gone when its key turns out to be unknown is refused like any other, not an error of the server', async () => {
  let asked: Request | undefined;
  const verify = async () => {
    // Its connection is closed while the key is looked up.
    await eventually(() => expect(asked?.socket.destroyed).toBe(true));
    return undefined;
  };
  const registry = { byId: () => undefined, bySlug: () => undefined, refresh: async () => {} };
  const authenticate = createAuthenticate({ keys: { verify }, registry, sessions: { verify: async () => undefined } });
  const errors: unknown[] = [];
  const app = express();
  app.use((request, response, next) => {
    asked = request;
    authenticate(request, response, next);
  });
  app.use((error: unknown, _request: Request, _response: Response, _next: NextFunction) => void errors.push(error));
  const server = createServer(app).listen(0, '127.0.0.1');
  onTestFinished(() => void server.close());
  await once(server, 'listening');
  const client = connect((server.address() as AddressInfo).port, '127.0.0.1');
  client.write('GET / HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer lh_unknown\r\n\r\n');
  await eventually(() => expect(asked).toBeDefined());
  client.destroy();
  await eventually(() => expect(errors).toHaveLength(1));
  expect(errors[0]).toBeInstanceOf(Problem);
  expect(errors[0]).toMatchObject({ code: 'UNAUTHORIZED' });
});
