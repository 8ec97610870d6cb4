// Reads keys of one owner: a tenant's id, or null for the operator's.
import type { Queryable } from '../../database/database.ts';
import { controlSchema } from '../../database/identifiers.ts';
import { problem } from '../../kernel/errors.ts';
import { type ApiKey, type ApiKeyRow, apiKeyColumns, toApiKey } from './key.ts';

export interface KeyPage {
  limit: number;
  /** Only keys older than this one. */
  before?: Pick<ApiKey, 'createdAt' | 'id'> | undefined;
}

/** Newest first, revoked and expired ones too. */
export async function listApiKeys(db: Queryable, tenantId: string | null, page: KeyPage): Promise<ApiKey[]> {
  const rows = await db.query<ApiKeyRow>(
    `select ${apiKeyColumns} from ${controlSchema}.api_keys
      where tenant_id is not distinct from $1::uuid
        and ($2::timestamptz is null or (created_at, id) < ($2::timestamptz, $3::text))
      order by created_at desc, id desc limit $4`,
    [tenantId, page.before?.createdAt ?? null, page.before?.id ?? null, page.limit],
  );
  return rows.map(toApiKey);
}

export function noKey(id: string) {
  return problem('NOT_FOUND', `There is no key ${JSON.stringify(id.slice(0, 100))}.`);
}
