// What the log holds of requests, and how much strangers can write into it.
import { pino } from 'pino';
import { expect, it } from 'vitest';
import { eventually } from '../../../support/eventually.ts';
import { startApp } from '../../../support/http/app.ts';
import { useTenant } from '../../../support/postgres/database.ts';

const context = useTenant();

it('has a bounded number of short lines about callers without a key, and the number of omitted ones', async () => {
  const lines: Record<string, unknown>[] = [];
  const logger = pino({ level: 'info' }, { write: (line) => void lines.push(JSON.parse(line)) });
  const { app, stop } = await startApp(context, () => ({ logger }));
  try {
    const long = `/api/${'x'.repeat(8000)}`;
    const headers = { 'user-agent': 'u'.repeat(2000), 'x-request-id': 'i'.repeat(2000) };
    const send = (n: number) => app.request('GET', n % 2 ? long : '/api/keys', { key: 'wrong', headers });
    // Many at once: more than a second's share of lines, on a slow machine too.
    for (let n = 0; n < 300; n += 50) await Promise.all(Array.from({ length: 50 }, (_, k) => send(n + k)));
    // The line that counts the others comes with the first request of a later second.
    const counted = () => lines.filter((line) => typeof line.requests === 'number');
    await eventually(async () => {
      await app.request('GET', '/api/keys', { key: 'wrong' });
      expect(counted()).not.toEqual([]);
    });
    const own = lines.filter((line) => line.requests === undefined);
    expect(own.length).toBeLessThan(300);
    for (const line of lines) expect(JSON.stringify(line).length).toBeLessThan(1500);
    expect(JSON.stringify(lines)).not.toContain('uuuu');
  } finally {
    await stop();
  }
});

it('has every refused request of a caller with a valid key', async () => {
  const lines: { res?: { status: number } }[] = [];
  const logger = pino({ level: 'info' }, { write: (line) => void lines.push(JSON.parse(line)) });
  const { app, stop } = await startApp(context, () => ({ logger }));
  try {
    const key = await app.keyFor(context.tenant.id);
    for (let n = 0; n < 40; n++) await app.request('DELETE', '/api/keys/nope', { key });
    // A line is written when its response is closed, which the client may notice first.
    await eventually(() => expect(lines.filter((line) => line.res?.status === 404)).toHaveLength(40));
  } finally {
    await stop();
  }
});

it('has method, path, status and id of a request, and no query string', async () => {
  const lines: Record<string, unknown>[] = [];
  const logger = pino({ level: 'debug' }, { write: (line) => void lines.push(JSON.parse(line)) });
  const { app, stop } = await startApp(context, () => ({ logger }));
  try {
    await app.request('GET', '/livez?secret=1', { headers: { 'x-request-id': 'mine' } });
    const expected = { requestId: 'mine', req: { method: 'GET', path: '/livez' }, msg: 'request completed' };
    await eventually(() => expect(lines).toContainEqual(expect.objectContaining(expected)));
    expect(lines.find((line) => line.requestId === 'mine')).toMatchObject({ res: { status: 200 }, level: 20 });
    expect(JSON.stringify(lines)).not.toContain('secret');
  } finally {
    await stop();
  }
});

it('has no token of a link to a question', async () => {
  const lines: string[] = [];
  const logger = pino({ level: 'debug' }, { write: (line) => void lines.push(line) });
  const { app, stop } = await startApp(context, () => ({ logger }));
  try {
    const token = 'T0ken'.repeat(14);
    for (const path of [`/q/${token}`, `/mounted/q/${token}?a=b`]) await app.request('GET', path);
    await eventually(async () => expect(lines.filter((line) => line.includes('/q/[token]'))).toHaveLength(2));
    expect(lines.join('')).not.toContain(token);
  } finally {
    await stop();
  }
});
