// Decides whether the text of a key is valid, from a cache of two seconds that is cleared when keys change. A revocation
// takes effect at once on the daemon that made it, within moments on the others. Unknown, revoked and expired keys get
// the same answer after the same work.
import { randomBytes } from 'node:crypto';
import type { Queryable } from '../../database/database.ts';
import { controlSchema } from '../../database/identifiers.ts';
import type { Logger } from '../../kernel/logger.ts';
import type { Service } from '../../kernel/service.ts';
import { Interval } from '../../kernel/service.ts';
import { type ApiKey, hashKey, keyIdOf, sameHash, sessionCheck } from './key.ts';
import { KeyLookups, readKeys, type StoredKey } from './lookups.ts';

const cacheMs = 2000;
// Ids are random and never reused: an unknown id stays unknown.
const unknownMs = 30_000;
// Bounds the memory that a flood of invented ids can take.
const maxCached = 10_000;
// `last_used_at` is informational: a minute is precise enough and keeps writes to this table rare.
const lastUsedMs = 60_000;

interface Entry {
  found: Promise<StoredKey | undefined>;
  readAt: number;
}

export class KeyVerifier implements Service {
  readonly name = 'key-verifier';
  #db: Queryable;
  #adminHash: Buffer | undefined;
  /** Ids that were valid when they were last read. */
  #valid = new Map<string, Entry>();
  /** Ids that were not, and when that was read. Kept apart, so that a flood of them evicts no valid key. */
  #unknown = new Map<string, number>();
  #lookups: KeyLookups;
  #changes = 0;
  #used = new Set<string>();
  #interval: Interval;
  // Compared with when the id is unknown, so that the answer takes the same time.
  #dummyHash = randomBytes(32);

  constructor(db: Queryable, config: { adminApiKey: string }, logger: Logger) {
    this.#db = db;
    this.#lookups = new KeyLookups(db);
    this.#adminHash = config.adminApiKey === '' ? undefined : hashKey(config.adminApiKey);
    this.#interval = new Interval('key-last-used', lastUsedMs, () => this.#writeLastUsed(), logger);
  }

  async start(): Promise<void> {
    await this.#interval.start();
  }

  async stop(): Promise<void> {
    await this.#interval.stop();
  }

  /** The key of this text, or undefined if it is not valid. Rejects only when the database cannot be reached. */
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

  /** The key of a session: still valid, and still the one that the session was opened with. */
  async verifyById(id: string, check: Buffer): Promise<ApiKey | undefined> {
    if (id === configuredKey.id) {
      return this.#adminHash && sameHash(sessionCheck(this.#adminHash), check) ? configuredKey : undefined;
    }
    const found = await this.#lookUp(id);
    if (!found || !sameHash(sessionCheck(found.hash), check)) return undefined;
    this.#used.add(found.key.id);
    return found.key;
  }

  /** A key was revoked or rotated here or, without an id, on another daemon: drops what is cached. */
  forget(id?: string): void {
    this.#changes += 1;
    if (id === undefined) this.#valid.clear();
    else this.#valid.delete(id);
  }

  async #lookUp(id: string): Promise<StoredKey | undefined> {
    const now = performance.now();
    const valid = this.#valid.get(id);
    if (valid && now - valid.readAt < cacheMs) return valid.found;
    const unknownAt = this.#unknown.get(id);
    if (unknownAt !== undefined && now - unknownAt < unknownMs) return undefined;
    if (valid) return this.#refresh(id, now);
    const changes = this.#changes;
    const found = await this.#lookups.find(id);
    // It may have been read just before it was revoked: not cached.
    if (changes !== this.#changes) return found;
    if (found) remember(this.#valid, id, { found: Promise.resolve(found), readAt: now });
    else remember(this.#unknown, id, now);
    return found;
  }

  /** A key that was valid a moment ago is read by itself, not in the queue of unknown ids. */
  #refresh(id: string, now: number): Entry['found'] {
    const entry: Entry = { found: this.#readAgain(id), readAt: now };
    remember(this.#valid, id, entry);
    return entry.found;
  }

  async #readAgain(id: string): Entry['found'] {
    try {
      const found = (await readKeys(this.#db, [id])).get(id);
      if (found) return found;
      remember(this.#unknown, id, performance.now());
    } catch (error) {
      this.#valid.delete(id);
      throw error;
    }
    this.#valid.delete(id);
    return undefined;
  }

  async #writeLastUsed(): Promise<void> {
    if (this.#used.size === 0) return;
    const ids = [...this.#used].sort();
    this.#used.clear();
    await this.#db.query(`update ${controlSchema}.api_keys set last_used_at = now() where id = any($1::text[])`, [ids]);
  }
}

/** Deleting first moves the entry to the end, so that the first in the map is always the oldest. */
function remember<V>(cache: Map<string, V>, id: string, value: V): void {
  cache.delete(id);
  cache.set(id, value);
  if (cache.size > maxCached) cache.delete(cache.keys().next().value as string);
}

/** The key of requests made with ADMIN_API_KEY, which has no row. */
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
