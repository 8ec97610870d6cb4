// Verifies the text of a key with a cache of two seconds that is cleared when keys change. A revocation takes effect at
// once on the daemon that made it, and within moments on the others. Unknown, revoked and expired keys get the same
// answer after the same work.
import { randomBytes } from 'node:crypto';
import { and, gt, isNull, or, sql } from 'drizzle-orm';
import type { Queryable } from '../../database/database.ts';
import { controlSchema } from '../../database/identifiers.ts';
import { build, columnsOf, defineRead } from '../../database/reads/drizzle.ts';
import { runQuery } from '../../database/sql.ts';
import { apiKeys } from '../../database/tables/control.ts';
import { problem } from '../../kernel/errors.ts';
import type { Logger } from '../../kernel/logger.ts';
import { Interval, type Service } from '../../kernel/service.ts';
import { type ApiKey, hashKey, keyIdOf, sameHash, sessionCheck } from './key.ts';

const cacheMs = 2000;
// Ids are random and never reused, so an unknown id stays unknown.
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
  /** Ids that were not valid, and when they were read. Kept separately, so that a flood of them evicts no valid key. */
  #unknown = new Map<string, number>();
  #lookups: KeyLookups;
  #changes = 0;
  #used = new Set<string>();
  #interval: Interval;
  // Compared with if the id is unknown, so that the answer takes the same time.
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

  /** Returns the key of a session if it is still valid and still the one that opened the session. */
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
    // It may have been read just before it was revoked, so it is not cached.
    if (changes !== this.#changes) return found;
    if (found) remember(this.#valid, id, { found: Promise.resolve(found), readAt: now });
    else remember(this.#unknown, id, now);
    return found;
  }

  /** A key that was valid a moment ago is read alone, not in the queue of unknown ids. */
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
    await runQuery(this.#db, `update ${controlSchema}.api_keys set last_used_at = now() where id = any(:ids::text[])`, {
      ids,
    });
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

// Reads keys that are not cached. Callers without a valid key share one statement at a time, and so one connection,
// however many requests they send. Ids that arrive meanwhile are read together by the next statement.

interface StoredKey {
  key: ApiKey;
  hash: Buffer;
}

interface PendingLookup {
  resolve(found: StoredKey | undefined): void;
  reject(error: unknown): void;
  found: Promise<StoredKey | undefined>;
}

// At most fifty statements a second; the first after a pause is sent at once.
const pauseMs = 20;
const maxPerStatement = 500;
// Beyond this number the daemon is flooded, and answers would come too late.
const maxWaiting = 5000;

class KeyLookups {
  #db: Queryable;
  #waiting = new Map<string, PendingLookup>();
  #reading = false;

  constructor(db: Queryable) {
    this.#db = db;
  }

  /** Returns the valid key with this id. Callers that ask for the same id share the answer. */
  find(id: string): Promise<StoredKey | undefined> {
    const known = this.#waiting.get(id);
    if (known !== undefined) return known.found;
    if (this.#waiting.size >= maxWaiting) {
      throw problem('TOO_MANY_REQUESTS', 'Too many requests with unknown API keys; try again in a few seconds.');
    }
    let callbacks: Pick<PendingLookup, 'resolve' | 'reject'> | undefined;
    const found = new Promise<StoredKey | undefined>((resolve, reject) => {
      callbacks = { resolve, reject };
    });
    this.#waiting.set(id, { ...(callbacks as Pick<PendingLookup, 'resolve' | 'reject'>), found });
    if (!this.#reading) {
      this.#reading = true;
      // Requests that arrive together share the first statement.
      setImmediate(() => void this.#readAll());
    }
    return found;
  }

  async #readAll(): Promise<void> {
    while (this.#waiting.size > 0) {
      const batch = [...this.#waiting].slice(0, maxPerStatement);
      for (const [id] of batch) this.#waiting.delete(id);
      await this.#read(new Map(batch));
      await new Promise<void>((resolve) => setTimeout(resolve, pauseMs));
    }
    this.#reading = false;
  }

  async #read(batch: Map<string, PendingLookup>): Promise<void> {
    try {
      const found = await readKeys(this.#db, [...batch.keys()]);
      for (const [id, waiting] of batch) waiting.resolve(found.get(id));
    } catch (error) {
      for (const waiting of batch.values()) waiting.reject(error);
    }
  }
}

const validByIds = defineRead<{ ids: readonly string[] }>()(({ ids }) =>
  build
    .select(columnsOf(apiKeys))
    .from(apiKeys)
    .where(
      and(
        sql`${apiKeys.id} = any(${ids}::text[])`,
        isNull(apiKeys.revokedAt),
        or(isNull(apiKeys.expiresAt), gt(apiKeys.expiresAt, sql`now()`)),
      ),
    ),
);

/** Those of the ids that belong to a valid key. */
async function readKeys(db: Queryable, ids: readonly string[]): Promise<Map<string, StoredKey>> {
  const rows = await validByIds(db, controlSchema, { ids });
  return new Map(rows.map(({ hash, ...key }) => [key.id, { key: key as ApiKey, hash }]));
}
