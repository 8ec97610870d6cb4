// Makes a key. Its text is in the answer and nowhere else.
import type { Queryable } from '../../database/database.ts';
import { controlSchema } from '../../database/identifiers.ts';
import { type ApiKeyRow, apiKeyColumns, generateKey, type NewApiKey, type Scope, toApiKey } from './key.ts';

export interface CreateApiKeyInput {
  /** Null makes an operator's key. */
  tenantId: string | null;
  name: string;
  scopes: readonly Scope[];
  /** ISO text; none means that the key does not expire. */
  expiresAt?: string | null | undefined;
}

export async function createApiKey(db: Queryable, input: CreateApiKeyInput): Promise<NewApiKey> {
  const { id, text, hash } = generateKey();
  const scopes = input.tenantId === null ? ['admin'] : [...new Set(input.scopes)];
  const [row] = await db.query<ApiKeyRow>(
    `insert into ${controlSchema}.api_keys (id, tenant_id, name, hash, scopes, expires_at)
     values ($1, $2, $3, $4, $5, $6) returning ${apiKeyColumns}`,
    [id, input.tenantId, input.name, hash, scopes, input.expiresAt ?? null],
  );
  return { ...toApiKey(row as ApiKeyRow), text };
}
