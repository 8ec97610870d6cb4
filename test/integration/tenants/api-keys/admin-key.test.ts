import { expect, it } from 'vitest';
import { createLogger } from '../../../../server/kernel/logger.ts';
import { ensureAdminKey } from '../../../../server/tenants/api-keys/key-store.ts';
import { KeyVerifier } from '../../../../server/tenants/api-keys/verifier.ts';
import { useDatabase } from '../../../support/postgres/database.ts';

const context = useDatabase();

it('is not created if ADMIN_API_KEY is set', async () => {
  expect(await ensureAdminKey(context.db, { adminApiKey: 'x'.repeat(32) })).toBeUndefined();
});

it('is created once, however many daemons start at once, and opens the operator routes', async () => {
  const made = await Promise.all(Array.from({ length: 8 }, () => ensureAdminKey(context.db, { adminApiKey: '' })));
  const keys = made.filter((key) => key !== undefined);
  expect(keys).toHaveLength(1);
  const verifier = new KeyVerifier(context.db, { adminApiKey: '' }, createLogger('silent'));
  expect(await verifier.verify(keys[0]?.text ?? '')).toMatchObject({ tenantId: null, scopes: ['admin'] });
  expect(await ensureAdminKey(context.db, { adminApiKey: '' })).toBeUndefined();
});
