// Reads keys of one owner: a tenant's id, or null for the operator's.
import type { Queryable } from '../../database/database.ts';
import { controlSchema } from '../../database/identifiers.ts';
import { problem } from '../../kernel/errors.ts';
import { type ApiKey, type ApiKeyRow, apiKeyColumns, toApiKey } from './key.ts';

// Keys are made by hand; a page more than this would be a mistake rather than a list.
const mostKeys = 1000;

/** Newest first, revoked and expired ones too. */
export async function listApiKeys(db: Queryable, tenantId: string | null): Promise<ApiKey[]> {
  const rows = await db.query<ApiKeyRow>(
    `select ${apiKeyColumns} from ${controlSchema}.api_keys
      where tenant_id is not distinct from $1::uuid order by created_at desc, id limit ${mostKeys}`,
    [tenantId],
  );
  return rows.map(toApiKey);
}

export function noKey(id: string) {
  return problem('NOT_FOUND', `There is no key ${JSON.stringify(id.slice(0, 100))}.`);
}
