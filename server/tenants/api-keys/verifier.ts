// Decides whether a key's text is valid, from a cache that lives two seconds: fast enough for every
// request, short enough that a revocation takes effect within seconds on every daemon. Unknown,
// revoked and expired keys get the same answer for the same work.
import { randomBytes } from 'node:crypto';
import type { Queryable } from '../../database/database.ts';
import { controlSchema } from '../../database/identifiers.ts';
import { Interval } from '../../kernel/interval.ts';
import type { Logger } from '../../kernel/logger.ts';
import type { Service } from '../../kernel/service.ts';
import { type ApiKey, type ApiKeyRow, apiKeyColumns, hashKey, keyIdOf, sameHash, toApiKey } from './key.ts';

const cacheMs = 2000;
// Bounds the memory that a flood of made-up ids can take.
const mostCached = 10_000;
// `last_used_at` is for people; a minute is precise enough and keeps this table out of the hot path.
const lastUsedMs = 60_000;

interface Entry {
  found: Promise<{ key: ApiKey; hash: Buffer } | undefined>;
  readAt: number;
}

export class KeyVerifier implements Service {
  readonly name = 'key-verifier';
  #db: Queryable;
  #adminHash: Buffer | undefined;
  #cache = new Map<string, Entry>();
  #used = new Set<string>();
  #interval: Interval;
  // Compared against when there is nothing to compare with.
  #dummyHash = randomBytes(32);

  constructor(db: Queryable, config: { adminApiKey: string }, logger: Logger) {
    this.#db = db;
    this.#adminHash = config.adminApiKey === '' ? undefined : hashKey(config.adminApiKey);
    this.#interval = new Interval('key-last-used', lastUsedMs, () => this.#writeLastUsed(), logger);
  }

  async start(): Promise<void> {
    await this.#interval.start();
  }

  async stop(): Promise<void> {
    await this.#interval.stop();
  }

  /** The key that this text opens with, or undefined. Rejects only when the database is away. */
  async verify(text: string): Promise<ApiKey | undefined> {
    const hash = hashKey(text);
    if (this.#adminHash && sameHash(hash, this.#adminHash)) return configuredKey;
    const id = keyIdOf(text);
    const found = id === undefined ? undefined : await this.#lookUp(id);
    const matches = sameHash(hash, found?.hash ?? this.#dummyHash);
    if (!found || !matches) return undefined;
    this.#used.add(found.key.id);
    return found.key;
  }

  #lookUp(id: string): Entry['found'] {
    const cached = this.#cache.get(id);
    if (cached && performance.now() - cached.readAt < cacheMs) return cached.found;
    const entry: Entry = { found: this.#read(id), readAt: performance.now() };
    entry.found.catch(() => {
      if (this.#cache.get(id) === entry) this.#cache.delete(id);
    });
    // Deleting first moves the entry to the end: the first in the map is always the oldest.
    this.#cache.delete(id);
    this.#cache.set(id, entry);
    if (this.#cache.size > mostCached) this.#cache.delete(this.#cache.keys().next().value as string);
    return entry.found;
  }

  async #read(id: string): Entry['found'] {
    const [row] = await this.#db.query<ApiKeyRow & { hash: Buffer }>(
      `select ${apiKeyColumns}, hash from ${controlSchema}.api_keys
        where id = $1 and revoked_at is null and (expires_at is null or expires_at > now())`,
      [id],
    );
    return row && { key: toApiKey(row), hash: row.hash };
  }

  async #writeLastUsed(): Promise<void> {
    if (this.#used.size === 0) return;
    const ids = [...this.#used].sort();
    this.#used.clear();
    await this.#db.query(`update ${controlSchema}.api_keys set last_used_at = now() where id = any($1::text[])`, [ids]);
  }
}

/** ADMIN_API_KEY has no row; this is what requests made with it carry. */
const configuredKey: ApiKey = {
  id: 'ADMIN_API_KEY',
  tenantId: null,
  name: 'ADMIN_API_KEY',
  scopes: ['admin'],
  createdAt: new Date(0).toISOString(),
  expiresAt: null,
  revokedAt: null,
  lastUsedAt: null,
};
