// Requests of one tenant that all wait for the same lock, beside another tenant.
import { expect, test } from 'vitest';
import { scopes } from '../../../../server/tenants/api-keys/key.ts';
import { createApiKey } from '../../../../server/tenants/api-keys/key-store.ts';
import { startDaemon } from '../../../support/daemon/daemon.ts';
import { openTransaction } from '../../../support/events.ts';
import { eventually } from '../../../support/eventually.ts';
import { addJob } from '../../../support/jobs.ts';
import { addTenant, lockWaiters, useTenant } from '../../../support/postgres/database.ts';

const context = useTenant();

test('twenty-five requests that wait for a lock leave connections for others, and release theirs with the lock', async () => {
  const { db, schema } = context;
  const other = await addTenant(db, 'other');
  await addJob(context, { type: 'nobody runs this', targetId: 't' });
  const daemon = await startDaemon(context, { env: { DATABASE_POOL_MAX: '10' } });
  const keyOf = async (tenantId: string) => (await createApiKey(db, { tenantId, name: 'k', scopes })).text;
  const [mine, theirs] = [await keyOf(context.tenant.id), await keyOf(other.tenant.id)];
  const send = async (method: string, path: string, key: string) =>
    (await fetch(`${daemon.url}${path}`, { method, headers: { authorization: `Bearer ${key}` } })).status;
  expect(await send('GET', '/api/jobs', mine)).toBe(200);

  const lock = await openTransaction(context);
  await lock.tx.query(`select 1 from ${schema}.targets where id = 't' for update`);
  const pauseAll = () => Array.from({ length: 25 }, () => send('POST', '/api/targets/t/pause', mine));
  const blocked = pauseAll();
  const waiting = async () => {
    const rows = await db.query(lockWaiters(schema));
    return rows.length;
  };
  await eventually(async () => expect(await waiting()).toBe(4));
  for (let i = 0; i < 10; i++) expect(await send('GET', '/api/jobs', theirs)).toBe(200);
  expect(await Promise.all(Array.from({ length: 10 }, () => send('GET', '/api/jobs', theirs)))).toEqual(
    Array(10).fill(200),
  );
  expect(await waiting()).toBeLessThanOrEqual(4);
  await lock.rollback();
  // A request may wait 5 s for a lock and 10 s for its turn; on a busy machine some have been refused by now.
  for (const status of await Promise.all(blocked)) expect([200, 429, 503]).toContain(status);
  await eventually(async () => expect(await waiting()).toBe(0));
  expect(new Set(await Promise.all(pauseAll()))).toEqual(new Set([200]));
});
