// Replaces a key by a new one with the same name, scopes and expiry. The old one ends at once, or
// after an overlap in which both work, so that clients can change over without a gap.
import type { Database } from '../../database/database.ts';
import { controlSchema } from '../../database/identifiers.ts';
import { problem } from '../../kernel/errors.ts';
import { announceKeys } from '../announce.ts';
import { createApiKey } from './create.ts';
import { type ApiKey, type ApiKeyRow, apiKeyColumns, type NewApiKey, toApiKey } from './key.ts';
import { noKey } from './list.ts';

export async function rotateApiKey(
  db: Database,
  tenantId: string | null,
  id: string,
  overlapSeconds = 0,
): Promise<{ key: NewApiKey; previous: ApiKey }> {
  const rotated = await db.transaction(async (tx) => {
    const [old] = await tx.query<ApiKeyRow & { ended: boolean; ends_at: string }>(
      `select ${apiKeyColumns},
              revoked_at is not null or coalesce(expires_at <= now(), false) as ended,
              least(expires_at, now() + $3 * interval '1 second') as ends_at
         from ${controlSchema}.api_keys
        where id = $1 and tenant_id is not distinct from $2::uuid for update`,
      [id, tenantId, overlapSeconds],
    );
    if (!old) throw noKey(id);
    if (old.ended) throw problem('CONFLICT', 'The key is revoked or expired; create a new one instead.');
    const key = await createApiKey(tx, { tenantId, name: old.name, scopes: old.scopes, expiresAt: old.expires_at });
    const [previous] = await tx.query<ApiKeyRow>(
      overlapSeconds > 0
        ? `update ${controlSchema}.api_keys set expires_at = $2 where id = $1 returning ${apiKeyColumns}`
        : `update ${controlSchema}.api_keys set revoked_at = $2 where id = $1 returning ${apiKeyColumns}`,
      [id, old.ends_at],
    );
    return { key, previous: toApiKey(previous as ApiKeyRow) };
  });
  await announceKeys(db);
  return rotated;
}
