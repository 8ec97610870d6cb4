// What an API key is: `lh_<id>_<secret>`, 256 random bits, of which only the SHA-256 is stored.
import { createHash, randomBytes, timingSafeEqual } from 'node:crypto';

export const scopes = ['read', 'enqueue', 'control', 'worker', 'admin'] as const;
export type Scope = (typeof scopes)[number];

export interface ApiKey {
  id: string;
  /** Null: an operator's key, for /api/admin. */
  tenantId: string | null;
  name: string;
  scopes: readonly Scope[];
  createdAt: string;
  expiresAt: string | null;
  revokedAt: string | null;
  lastUsedAt: string | null;
}

/** A key at the only moment when its text is known. */
export interface NewApiKey extends ApiKey {
  text: string;
}

export interface ApiKeyRow {
  id: string;
  tenant_id: string | null;
  name: string;
  scopes: Scope[];
  created_at: string;
  expires_at: string | null;
  revoked_at: string | null;
  last_used_at: string | null;
}

export const apiKeyColumns = 'id, tenant_id, name, scopes, created_at, expires_at, revoked_at, last_used_at';

export function toApiKey(row: ApiKeyRow): ApiKey {
  return {
    id: row.id,
    tenantId: row.tenant_id,
    name: row.name,
    scopes: row.scopes,
    createdAt: row.created_at,
    expiresAt: row.expires_at,
    revokedAt: row.revoked_at,
    lastUsedAt: row.last_used_at,
  };
}

export function generateKey(): { id: string; text: string; hash: Buffer } {
  const id = randomBytes(8).toString('hex');
  const text = `lh_${id}_${randomBytes(32).toString('hex')}`;
  return { id, text, hash: hashKey(text) };
}

/** The id in a text that has the form of a key. */
export function keyIdOf(text: string): string | undefined {
  return /^lh_([0-9a-f]{16})_[0-9a-f]{64}$/.exec(text)?.[1];
}

// A fast hash is right here: 256 random bits cannot be guessed, however cheap each try.
export function hashKey(text: string): Buffer {
  return createHash('sha256').update(text).digest();
}

export function sameHash(a: Buffer, b: Buffer): boolean {
  return a.length === b.length && timingSafeEqual(a, b);
}
