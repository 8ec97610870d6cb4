// The operator's first key: ADMIN_API_KEY if it is set, otherwise one that is made at the first start.
import type { Database } from '../../database/database.ts';
import { controlSchema } from '../../database/identifiers.ts';
import { createApiKey } from './create.ts';
import type { NewApiKey } from './key.ts';

/** The new key, to be printed once; undefined if there is one already or ADMIN_API_KEY serves. */
export async function ensureAdminKey(db: Database, config: { adminApiKey: string }): Promise<NewApiKey | undefined> {
  if (config.adminApiKey !== '') return undefined;
  return db.transaction(async (tx) => {
    // Daemons that start together must not make one each.
    await tx.query("select pg_advisory_xact_lock(hashtextextended('leasehold:admin-key', 0))");
    const [found] = await tx.query<{ any: boolean }>(
      `select exists (select from ${controlSchema}.api_keys where tenant_id is null) as any`,
    );
    if (found?.any) return undefined;
    return createApiKey(tx, { tenantId: null, name: 'first operator key', scopes: ['admin'] });
  });
}
