// Reads keys from the database for those who are not known to hold a valid one. Whatever strangers send, they
// have one statement at a time between them, and one connection: ids that come meanwhile share the next.
import type { Queryable } from '../../database/database.ts';
import { controlSchema } from '../../database/identifiers.ts';
import { problem } from '../../kernel/errors.ts';
import { type ApiKey, type ApiKeyRow, apiKeyColumns, toApiKey } from './key.ts';

export interface StoredKey {
  key: ApiKey;
  hash: Buffer;
}

interface Waiting {
  resolve(found: StoredKey | undefined): void;
  reject(error: unknown): void;
  found: Promise<StoredKey | undefined>;
}

// At most some fifty statements a second; the first after a pause does not wait.
const pauseMs = 20;
const mostPerStatement = 500;
// Beyond this the daemon is flooded; who waits would be answered too late.
const mostWaiting = 5000;

export class KeyLookups {
  #db: Queryable;
  #waiting = new Map<string, Waiting>();
  #reading = false;

  constructor(db: Queryable) {
    this.#db = db;
  }

  /** The valid key with this id; callers that ask for the same one share the answer. */
  find(id: string): Promise<StoredKey | undefined> {
    const known = this.#waiting.get(id);
    if (known !== undefined) return known.found;
    if (this.#waiting.size >= mostWaiting) {
      throw problem('TOO_MANY_REQUESTS', 'Too many requests with unknown API keys; try again in a few seconds.');
    }
    let settle: Pick<Waiting, 'resolve' | 'reject'> | undefined;
    const found = new Promise<StoredKey | undefined>((resolve, reject) => {
      settle = { resolve, reject };
    });
    this.#waiting.set(id, { ...(settle as Pick<Waiting, 'resolve' | 'reject'>), found });
    if (!this.#reading) {
      this.#reading = true;
      // Those of the same moment share the first statement.
      setImmediate(() => void this.#readAll());
    }
    return found;
  }

  async #readAll(): Promise<void> {
    while (this.#waiting.size > 0) {
      const batch = [...this.#waiting].slice(0, mostPerStatement);
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

/** Those of the ids that belong to a valid key. */
export async function readKeys(db: Queryable, ids: readonly string[]): Promise<Map<string, StoredKey>> {
  const rows = await db.query<ApiKeyRow & { hash: Buffer }>(
    `select ${apiKeyColumns}, hash from ${controlSchema}.api_keys
      where id = any($1::text[]) and revoked_at is null and (expires_at is null or expires_at > now())`,
    [ids],
  );
  return new Map(rows.map((row) => [row.id, { key: toApiKey(row), hash: row.hash }]));
}
