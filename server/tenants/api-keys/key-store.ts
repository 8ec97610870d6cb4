// The rows of API keys: create, list, revoke, rotate. An owner is a tenant's id, or null for the operator; every
// statement matches it, so that no caller reaches a key of another tenant.
import { and, desc, eq, sql } from 'drizzle-orm';
import type { Database, Queryable } from '../../database/database.ts';
import { controlSchema } from '../../database/identifiers.ts';
import { keysChanged, sendNotification } from '../../database/notifications/notifications.ts';
import { build, columnList, defineRead } from '../../database/reads/drizzle.ts';
import { runQuery, statement } from '../../database/sql.ts';
import { apiKeys } from '../../database/tables/control.ts';
import { problem } from '../../kernel/errors.ts';
import { type ApiKey, generateKey, keySelection, type NewApiKey, type Scope } from './key.ts';

export interface CreateApiKeyInput {
  /** Null for an operator's key. */
  tenantId: string | null;
  name: string;
  scopes: readonly Scope[];
  /** ISO text. Without it the key does not expire. */
  expiresAt?: string | null | undefined;
}

export interface KeyPage {
  limit: number;
  /** Only keys older than this one. */
  before?: Pick<ApiKey, 'createdAt' | 'id'> | undefined;
}

const keyColumns = columnList(apiKeys, keySelection);

interface PageRequest {
  tenantId: string | null;
  createdAt: string | null;
  id: string | null;
  limit: number;
}

const page = defineRead<PageRequest>()(({ tenantId, createdAt, id, limit }) =>
  build
    .select(keySelection)
    .from(apiKeys)
    .where(
      and(
        sql`${apiKeys.tenantId} is not distinct from ${tenantId}::uuid`,
        sql`(${createdAt}::timestamptz is null or (${apiKeys.createdAt}, ${apiKeys.id}) < (${createdAt}::timestamptz, ${id}::text))`,
      ),
    )
    .orderBy(desc(apiKeys.createdAt), desc(apiKeys.id))
    .limit(limit),
);

const byOwnerAndId = defineRead<{ tenantId: string | null; id: string }>()(({ tenantId, id }) =>
  build
    .select(keySelection)
    .from(apiKeys)
    .where(and(eq(apiKeys.id, id), sql`${apiKeys.tenantId} is not distinct from ${tenantId}::uuid`)),
);

const insertStatement = statement(`
  insert into ${controlSchema}.api_keys (id, tenant_id, name, hash, scopes, expires_at)
  values (:id, :tenantId, :name, :hash, :scopes, :expiresAt)
  returning ${keyColumns}`);

/** The answer has the text of the key, which is stored nowhere. */
export async function createApiKey(db: Queryable, input: CreateApiKeyInput): Promise<NewApiKey> {
  const { id, text, hash } = generateKey();
  const scopes = input.tenantId === null ? ['admin'] : [...new Set(input.scopes)];
  const [key] = await insertStatement.query<ApiKey>(db, controlSchema, {
    id,
    tenantId: input.tenantId,
    name: input.name,
    hash,
    scopes,
    expiresAt: input.expiresAt ?? null,
  });
  return { ...(key as ApiKey), text };
}

/** Creates the operator's first key, which is printed once. Returns undefined if one exists or ADMIN_API_KEY is set. */
export async function ensureAdminKey(db: Database, config: { adminApiKey: string }): Promise<NewApiKey | undefined> {
  if (config.adminApiKey !== '') return undefined;
  return db.transaction(async (tx) => {
    // Daemons that start together must not create one each.
    await tx.query("select pg_advisory_xact_lock(hashtextextended('leasehold:admin-key', 0))");
    const [found] = await tx.query<{ any: boolean }>(
      `select exists (select from ${controlSchema}.api_keys where tenant_id is null) as any`,
    );
    if (found?.any) return undefined;
    return createApiKey(tx, { tenantId: null, name: 'first operator key', scopes: ['admin'] });
  });
}

/** Lists keys, newest first, including revoked and expired ones. */
export async function listApiKeys(db: Queryable, tenantId: string | null, { limit, before }: KeyPage) {
  const { createdAt = null, id = null } = before ?? {};
  return (await page(db, controlSchema, { tenantId, createdAt, id, limit })) as ApiKey[];
}

/**
 * Revoking twice is not an error and keeps the first time. Daemons that miss the notification notice when their cache
 * expires.
 */
export async function revokeApiKey(db: Queryable, tenantId: string | null, id: string): Promise<ApiKey> {
  await runQuery(
    db,
    `update ${controlSchema}.api_keys set revoked_at = now()
      where id = :id and tenant_id is not distinct from :tenantId::uuid and revoked_at is null`,
    { id, tenantId },
  );
  const [key] = await byOwnerAndId(db, controlSchema, { tenantId, id });
  if (!key) throw noKey(id);
  await announceKeys(db);
  return key as ApiKey;
}

const lockStatement = statement(`
  select ${keyColumns},
         revoked_at is not null or coalesce(expires_at <= now(), false) as ended,
         least(expires_at, now() + :overlapSeconds * interval '1 second') as "endsAt"
    from ${controlSchema}.api_keys
   where id = :id
     and tenant_id is not distinct from :tenantId::uuid
     for update`);

/**
 * Replaces a key by a new one with the same name, scopes and expiry. The old key ends at once, or after an overlap in
 * which both work, so that clients can switch without a gap.
 */
export async function rotateApiKey(
  db: Database,
  tenantId: string | null,
  id: string,
  overlapSeconds = 0,
): Promise<{ key: NewApiKey; previous: ApiKey }> {
  const rotated = await db.transaction(async (tx) => {
    const [old] = await lockStatement.query<ApiKey & { ended: boolean; endsAt: string }>(tx, controlSchema, {
      id,
      tenantId,
      overlapSeconds,
    });
    if (!old) throw noKey(id);
    if (old.ended) throw problem('CONFLICT', 'The key is revoked or expired; create a new one instead.');
    const key = await createApiKey(tx, { tenantId, name: old.name, scopes: old.scopes, expiresAt: old.expiresAt });
    const ending = overlapSeconds > 0 ? 'expires_at' : 'revoked_at';
    const [previous] = await runQuery<ApiKey>(
      tx,
      `update ${controlSchema}.api_keys set ${ending} = :endsAt where id = :id returning ${keyColumns}`,
      { id, endsAt: old.endsAt },
    );
    return { key, previous: previous as ApiKey };
  });
  await announceKeys(db);
  return rotated;
}

/** Notifies every daemon that a key no longer works. A hint: the verifier caches keys for seconds only. */
async function announceKeys(db: Queryable): Promise<void> {
  await sendNotification(db, `-:${keysChanged}`).catch(() => {});
}

function noKey(id: string) {
  return problem('NOT_FOUND', `There is no key ${JSON.stringify(id.slice(0, 100))}.`);
}
