import { pino } from 'pino';
import { expect, it } from 'vitest';
import { adminKey, useApp } from '../../support/http/app.ts';
import { useDatabase } from '../../support/postgres/database.ts';

const lines: string[] = [];
const context = useDatabase();
const app = useApp(context, () => ({
  logger: pino({ level: 'trace' }, { write: (line: string) => lines.push(line) }),
}));

it('logs the author of each change, and never a key', async () => {
  const made = await app.request('POST', '/api/admin/tenants', { key: adminKey, body: { slug: 'watched' } });
  const key = made.body.key.key;
  await app.request('GET', `/api/keys?token=${key}`, { key });
  await app.request('GET', '/api/keys', { headers: { 'X-API-Key': key, cookie: `k=${key}` } });
  await app.request('POST', '/api/keys', { key, body: `{"name": "${key}` });
  await app.request('POST', `/api/keys/${made.body.key.id}/rotate`, { key });
  const entries = lines.map((line) => JSON.parse(line));
  expect(entries.filter((entry) => entry.audit).map(({ audit, actor, tenant }) => ({ audit, actor, tenant }))).toEqual([
    { audit: 'tenant created', actor: 'key:ADMIN_API_KEY', tenant: 'watched' },
    { audit: 'key rotated', actor: `key:${made.body.key.id}`, tenant: undefined },
  ]);
  expect(entries.every((entry) => entry.audit === undefined || typeof entry.requestId === 'string')).toBe(true);
  const secret = key.split('_')[2];
  expect(lines.join('')).not.toContain(secret);
  expect(lines.join('')).not.toContain(adminKey);
});
