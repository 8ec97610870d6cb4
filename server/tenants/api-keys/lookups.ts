// Reads keys that are not cached. Callers without a valid key share one statement at a time, and so one connection,
// however many requests they send: ids that arrive meanwhile are read together by the next statement.
import { and, gt, isNull, or, sql } from 'drizzle-orm';
import type { Queryable } from '../../database/database.ts';
import { build, columnsOf, defineRead } from '../../database/drizzle.ts';
import { controlSchema } from '../../database/identifiers.ts';
import { apiKeys } from '../../database/tables/control.ts';
import { problem } from '../../kernel/errors.ts';
import type { ApiKey } from './key.ts';

export interface StoredKey {
  key: ApiKey;
  hash: Buffer;
}

interface Waiting {
  resolve(found: StoredKey | undefined): void;
  reject(error: unknown): void;
  found: Promise<StoredKey | undefined>;
}

// At most fifty statements a second; the first after a pause is sent at once.
const pauseMs = 20;
const maxPerStatement = 500;
// Beyond this the daemon is flooded, and answers would come too late.
const maxWaiting = 5000;

export class KeyLookups {
  #db: Queryable;
  #waiting = new Map<string, Waiting>();
  #reading = false;

  constructor(db: Queryable) {
    this.#db = db;
  }

  /** The valid key with this id. Callers that ask for the same id share the answer. */
  find(id: string): Promise<StoredKey | undefined> {
    const known = this.#waiting.get(id);
    if (known !== undefined) return known.found;
    if (this.#waiting.size >= maxWaiting) {
      throw problem('TOO_MANY_REQUESTS', 'Too many requests with unknown API keys; try again in a few seconds.');
    }
    let callbacks: Pick<Waiting, 'resolve' | 'reject'> | undefined;
    const found = new Promise<StoredKey | undefined>((resolve, reject) => {
      callbacks = { resolve, reject };
    });
    this.#waiting.set(id, { ...(callbacks as Pick<Waiting, 'resolve' | 'reject'>), found });
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

  async #read(batch: Map<string, Waiting>): Promise<void> {
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
export async function readKeys(db: Queryable, ids: readonly string[]): Promise<Map<string, StoredKey>> {
  const rows = await validByIds(db, controlSchema, { ids });
  return new Map(rows.map(({ hash, ...key }) => [key.id, { key: key as ApiKey, hash }]));
}
