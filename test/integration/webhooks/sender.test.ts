import { expect, test } from 'vitest';
import { WebhookSender } from '../../../server/webhooks/sender.ts';
import { answer, flood, hang, useReceiver } from '../../support/http/receiver.ts';

const receiver = useReceiver();

async function send(url: string, options: Partial<ConstructorParameters<typeof WebhookSender>[0]> = {}) {
  const sender = new WebhookSender({ allowPrivate: true, timeoutMs: 60_000, ...options });
  try {
    return await sender.send(url, {}, '{"a":1}');
  } finally {
    await sender.close();
  }
}

test('a 2xx is accepted, any other status is not, and a redirect is not followed', async () => {
  expect(await send(`${receiver.url}/ok`)).toEqual({ kind: 'accepted', status: 204 });
  receiver.on('/broken', answer(500));
  expect(await send(`${receiver.url}/broken`)).toMatchObject({ kind: 'refused', status: 500 });
  receiver.on('/gone', answer(410));
  expect(await send(`${receiver.url}/gone`)).toEqual({ kind: 'gone', status: 410 });
  receiver.on('/moved', answer(307, { location: `${receiver.url}/secret` }));
  expect(await send(`${receiver.url}/moved`)).toMatchObject({ kind: 'refused', status: 307 });
  expect(receiver.received.some((r) => r.path === '/secret')).toBe(false);
});

test('a receiver that never answers costs only the timeout', async () => {
  receiver.on('/hang', hang);
  expect(await send(`${receiver.url}/hang`, { timeoutMs: 200 })).toMatchObject({
    kind: 'unreachable',
    error: 'no answer within 200 ms',
  });
});

test('a body of gigabytes after a 200 is neither read nor awaited', async () => {
  receiver.on('/flood', flood);
  expect(await send(`${receiver.url}/flood`)).toEqual({ kind: 'accepted', status: 200 });
});

test('endless headers are a failure', async () => {
  receiver.on('/headers', (_request, response) => response.socket?.end(`HTTP/1.1 200 OK\r\nx: ${'y'.repeat(100_000)}`));
  expect(await send(`${receiver.url}/headers`)).toMatchObject({ kind: 'unreachable' });
});

test('a refused connection is reported as such', async () => {
  expect(await send('http://127.0.0.1:1/')).toMatchObject({ kind: 'unreachable' });
});

test('a name is resolved once, by the connection itself, so check and use cannot differ', async () => {
  let asked = 0;
  const lookup = (_name: string, _options: unknown, callback: (error: null, found: object[]) => void) => {
    asked++;
    // Had anybody asked before, to check, they would have got another answer.
    callback(null, [{ address: asked % 2 === 1 ? '127.0.0.1' : '8.8.8.8', family: 4 }]);
  };
  const url = `http://rebind.example:${receiver.port}/inside`;
  const options = { allowPrivate: false, lookup: lookup as never };
  expect(await send(url, options)).toMatchObject({
    kind: 'unreachable',
    error: expect.stringContaining('public host'),
  });
  expect(asked).toBe(1);
  asked = 0;
  expect(await send(url, { ...options, allowPrivate: true })).toEqual({ kind: 'accepted', status: 204 });
  expect(asked).toBe(1);
  expect(receiver.received.filter((r) => r.path === '/inside')).toHaveLength(1);
});

test('names that do not exist and names of private addresses get the same error', async () => {
  const failing =
    (code: string) => (_name: string, _options: unknown, callback: (error: Error, found: object[]) => void) =>
      callback(Object.assign(new Error(`getaddrinfo ${code} inner.example`), { code, syscall: 'getaddrinfo' }), []);
  const inside = (_name: string, _options: unknown, callback: (error: null, found: object[]) => void) =>
    callback(null, [{ address: '10.0.0.7', family: 4 }]);
  const results = [];
  for (const lookup of [failing('ENOTFOUND'), failing('EAI_AGAIN'), inside]) {
    results.push(await send('http://inner.example/', { allowPrivate: false, lookup: lookup as never }));
  }
  for (const result of results) expect(result).toEqual(results[0]);
  expect(JSON.stringify(results)).not.toMatch(/inner|ENOTFOUND|EAI/);
});
