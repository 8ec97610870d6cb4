// Requests of one tenant that all wait for the same lock, beside another tenant.
import { randomBytes } from 'node:crypto';
import { expect, test } from 'vitest';
import { scopes } from '../../../../server/tenants/api-keys/key.ts';
import { createApiKey } from '../../../../server/tenants/api-keys/key-store.ts';
import { startDaemon } from '../../../support/daemon/daemon.ts';
import { openTransaction } from '../../../support/events.ts';
import { eventually } from '../../../support/eventually.ts';
import { addJob } from '../../../support/jobs.ts';
import { addTenant, lockWaiters, useTenant } from '../../../support/postgres/database.ts';

const context = useTenant();

const unique = JSON.stringify({ type: 'demo.echo', run_at: '2090-01-01T00:00:00Z', unique: { key: 'k' } });

test.each([
  ['the row of a target', `targets where id = 't'`, '/api/targets/t/pause', undefined],
  ['a unique key', `unique_keys where key = 'k'`, '/api/jobs', unique],
  ['a unique key of a batch', `unique_keys where key = 'k'`, '/api/jobs/batch', `{"jobs": [${unique}]}`],
])(
  'twenty-five requests that wait for %s leave connections for others, and release theirs with the lock',
  async (_what, rows, path, body) => {
    const { db } = context;
    const { tenant, schema } = await addTenant(db, `noisy${randomBytes(4).toString('hex')}`);
    const other = await addTenant(db, `other${randomBytes(4).toString('hex')}`);
    await addJob({ db, schema }, { type: 'nobody runs this', targetId: 't' });
    const daemon = await startDaemon(context, { env: { DATABASE_POOL_MAX: '10' } });
    const keyOf = async (tenantId: string) => (await createApiKey(db, { tenantId, name: 'k', scopes })).text;
    const [mine, theirs] = [await keyOf(tenant.id), await keyOf(other.tenant.id)];
    const send = async (method: string, path: string, key: string, body?: string) => {
      const headers = {
        authorization: `Bearer ${key}`,
        ...(body !== undefined && { 'content-type': 'application/json' }),
      };
      return (await fetch(`${daemon.url}${path}`, { method, headers, ...(body !== undefined && { body }) })).status;
    };
    expect([200, 201]).toContain(await send('POST', path, mine, body));

    const lock = await openTransaction(context);
    expect(await lock.tx.query(`select 1 from ${schema}.${rows} for update`)).toHaveLength(1);
    const sendAll = () => Array.from({ length: 25 }, () => send('POST', path, mine, body));
    const blocked = sendAll();
    const waiting = async () => {
      const rows = await db.query(lockWaiters(schema));
      return rows.length;
    };
    await eventually(async () => expect(await waiting()).toBeGreaterThanOrEqual(4));
    for (let i = 0; i < 10; i++) {
      expect(await send('GET', '/api/jobs', theirs)).toBe(200);
      expect(await waiting()).toBeLessThanOrEqual(4);
    }
    expect(await Promise.all(Array.from({ length: 10 }, () => send('GET', '/api/jobs', theirs)))).toEqual(
      Array(10).fill(200),
    );
    expect(await waiting()).toBeLessThanOrEqual(4);
    await lock.rollback();
    // A request may wait 5 s for a lock and 10 s for its turn; on a busy machine some have been refused by now.
    for (const status of await Promise.all(blocked)) expect([200, 429, 503]).toContain(status);
    await eventually(async () => expect(await waiting()).toBe(0));
    expect(new Set(await Promise.all(sendAll()))).toEqual(new Set([200]));
  },
);
