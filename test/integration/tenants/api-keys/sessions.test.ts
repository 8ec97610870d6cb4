// Sessions of the dashboard live by the database's clock.
import { expect, onTestFinished, test, vi } from 'vitest';
import { createLogger } from '../../../../server/kernel/logger.ts';
import { createApiKey } from '../../../../server/tenants/api-keys/key-store.ts';
import { Sessions } from '../../../../server/tenants/api-keys/sessions.ts';
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

test('a session that was read shortly before its end is read again when the end has come', async () => {
  const { sessions, token, id, endIn } = await openSession();
  vi.useFakeTimers({ toFake: ['performance'] });
  onTestFinished(() => void vi.useRealTimers());
  await endIn(1);
  expect(await sessions.verify(token)).toMatchObject({ id });
  await endIn(-1);
  vi.advanceTimersByTime(1_001);
  expect(await sessions.verify(token)).toBeUndefined();
});
