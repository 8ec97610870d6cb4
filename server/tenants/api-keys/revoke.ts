// Ends a key for good. Every daemon is notified; one that misses it notices within the verifier's TTL.
import type { Queryable } from '../../database/database.ts';
import { controlSchema } from '../../database/identifiers.ts';
import { announceKeys } from '../announce.ts';
import { type ApiKey, type ApiKeyRow, apiKeyColumns, toApiKey } from './key.ts';
import { noKey } from './list.ts';

/** Revoking twice is no error and keeps the first time. The owner is matched: no key of another tenant. */
export async function revokeApiKey(db: Queryable, tenantId: string | null, id: string): Promise<ApiKey> {
  await db.query(
    `update ${controlSchema}.api_keys set revoked_at = now()
      where id = $1 and tenant_id is not distinct from $2::uuid and revoked_at is null`,
    [id, tenantId],
  );
  const [row] = await db.query<ApiKeyRow>(
    `select ${apiKeyColumns} from ${controlSchema}.api_keys
      where id = $1 and tenant_id is not distinct from $2::uuid`,
    [id, tenantId],
  );
  if (!row) throw noKey(id);
  await announceKeys(db);
  return toApiKey(row);
}
