// Sessions of the dashboard live by the database's clock.
import { randomBytes } from 'node:crypto';
import { expect, onTestFinished, test, vi } from 'vitest';
import type { Queryable } from '../../../../server/database/database.ts';
import { createLogger } from '../../../../server/kernel/logger.ts';
import { createApiKey } from '../../../../server/tenants/api-keys/key-store.ts';
import { createSignInLink, Sessions } from '../../../../server/tenants/api-keys/sessions.ts';
import { KeyVerifier } from '../../../../server/tenants/api-keys/verifier.ts';
import { useTenant } from '../../../support/postgres/database.ts';

const context = useTenant();

async function openSession() {
  const { db, tenant } = context;
  const { text, id } = await createApiKey(db, { tenantId: tenant.id, name: 'dashboard', scopes: ['read'] });
  const sessions = new Sessions(db, new KeyVerifier(db, { adminApiKey: '' }, createLogger('silent')));
  const token = (await sessions.open(text))?.token ?? '';
  const endIn = (seconds: number) =>
    db.query(`update leasehold.sessions set expires_at = now() + $2 * interval '1 second' where key_id = $1`, [
      id,
      seconds,
    ]);
  return { sessions, token, id, endIn };
}

test.each([13, -13])('a session is valid for a daemon whose clock is %i hours off', async (hours) => {
  const { sessions, token, id } = await openSession();
  vi.useFakeTimers({ toFake: ['Date'], now: Date.now() + hours * 3_600_000 });
  onTestFinished(() => void vi.useRealTimers());
  expect(await sessions.verify(token)).toMatchObject({ id });
});

test('a session that has expired is refused, whatever the clock of the daemon says', async () => {
  const { sessions, token, endIn } = await openSession();
  await endIn(-1);
  vi.useFakeTimers({ toFake: ['Date'], now: Date.now() - 3_600_000 });
  onTestFinished(() => void vi.useRealTimers());
  expect(await sessions.verify(token)).toBeUndefined();
});

test('a session that was read shortly before its end is refused when the end has come', async () => {
  const { sessions, token, id, endIn } = await openSession();
  vi.useFakeTimers({ toFake: ['performance'] });
  onTestFinished(() => void vi.useRealTimers());
  await endIn(1);
  expect(await sessions.verify(token)).toMatchObject({ id });
  await endIn(-1);
  vi.advanceTimersByTime(1_001);
  expect(await sessions.verify(token)).toBeUndefined();
});

test('a thousand made-up tokens cost a few statements on one connection, however they are used', async () => {
  const { db } = context;
  let [sent, underWay, most] = [0, 0, 0];
  const counting: Queryable = {
    async query(text, values) {
      sent += 1;
      underWay += 1;
      most = Math.max(most, underWay);
      return db.query(text, values as unknown[]).finally(() => {
        underWay -= 1;
      }) as never;
    },
  };
  const sessions = new Sessions(counting, new KeyVerifier(counting, { adminApiKey: '' }, createLogger('silent')));
  const each = [
    (token: string) => sessions.verify(token),
    (token: string) => sessions.openByLink(token),
    (token: string) => sessions.close(token),
  ];
  const made = Array.from({ length: 999 }, (_, n) => each[n % 3]?.(randomBytes(32).toString('base64url')));
  expect(new Set(await Promise.all(made))).toEqual(new Set([undefined]));
  expect(most).toBe(1);
  expect(sent).toBeLessThanOrEqual(3);
});

test('a link opens one session, and a session that was closed is refused', async () => {
  const { db, tenant } = context;
  const { text, id } = await createApiKey(db, { tenantId: tenant.id, name: 'dashboard', scopes: ['read'] });
  const sessions = new Sessions(db, new KeyVerifier(db, { adminApiKey: '' }, createLogger('silent')));
  const link = await createSignInLink(db, text);
  expect(await sessions.verify(link)).toBeUndefined();
  const token = (await sessions.openByLink(link)) ?? '';
  expect(await sessions.openByLink(link)).toBeUndefined();
  expect(await sessions.openByLink(token)).toBeUndefined();
  expect(await sessions.verify(token)).toMatchObject({ id });
  await sessions.close(token);
  expect(await sessions.verify(token)).toBeUndefined();
});
