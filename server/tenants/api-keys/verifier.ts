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
import type { Logger } from '../../kernel/logger.ts';
import { Interval, type Service } from '../../kernel/service.ts';
import { type ApiKey, hashKey, keyIdOf, sameHash, sessionCheck } from './key.ts';
import { Lookups } from './lookups.ts';

const cacheMs = 2000;
// `last_used_at` is informational: a minute is precise enough and keeps writes to this table rare.
const lastUsedMs = 60_000;

export class KeyVerifier implements Service {
  readonly name = 'key-verifier';
  #db: Queryable;
  #adminHash: Buffer | undefined;
  #lookups: Lookups<StoredKey>;
  #used = new Set<string>();
  #interval: Interval;
  // Compared with if the id is unknown, so that the answer takes the same time.
  #dummyHash = randomBytes(32);

  constructor(db: Queryable, config: { adminApiKey: string }, logger: Logger) {
    this.#db = db;
    this.#lookups = new Lookups((ids) => readKeys(db, ids), cacheMs);
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
    const found = id === undefined ? undefined : await this.#lookups.find(id);
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
    const found = await this.#lookups.find(id);
    if (!found || !sameHash(sessionCheck(found.hash), check)) return undefined;
    this.#used.add(found.key.id);
    return found.key;
  }

  /** A key was revoked or rotated here or, without an id, on another daemon: drops what is cached. */
  forget(id?: string): void {
    this.#lookups.forget(id);
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

interface StoredKey {
  key: ApiKey;
  hash: Buffer;
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
