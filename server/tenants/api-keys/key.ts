// API keys: `lh_<id>_<secret>` with 256 random bits, of which only the SHA-256 is stored.
import { createHash, hash, randomBytes, timingSafeEqual } from 'node:crypto';
import { columnsOf, type RowOf } from '../../database/reads/drizzle.ts';
import { apiKeys } from '../../database/tables/control.ts';

export const scopes = ['read', 'enqueue', 'control', 'worker', 'admin'] as const;
export type Scope = (typeof scopes)[number];

const { hash: _, ...shownColumns } = columnsOf(apiKeys);

/** The columns that reads of keys select: all except the hash. */
export const keySelection = shownColumns;

/** A key with a null `tenantId` is an operator's key, for /api/admin. */
export interface ApiKey extends Omit<RowOf<typeof apiKeys>, 'hash' | 'scopes'> {
  scopes: readonly Scope[];
}

/** A key at the only moment at which its text is known. */
export interface NewApiKey extends ApiKey {
  text: string;
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

// A fast hash is sufficient, because 256 random bits cannot be guessed, however cheap each try is.
export function hashKey(text: string): Buffer {
  return hash('sha256', text, 'buffer');
}

export function sameHash(a: Buffer, b: Buffer): boolean {
  return a.length === b.length && timingSafeEqual(a, b);
}

/** The part of a key that a session stores: it ties the session to the key's text, and opens nothing by itself. */
export function sessionCheck(keyHash: Buffer): Buffer {
  return createHash('sha256').update('leasehold session\n').update(keyHash).digest();
}
