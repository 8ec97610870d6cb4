// Sessions of the dashboard: a random token in a cookie stands for an API key. Only the token's SHA-256 is stored,
// so the stored rows open no session. A session ends with its key, which every request verifies.
import { createHash, randomBytes } from 'node:crypto';
import type { Queryable } from '../../database/database.ts';
import { controlSchema } from '../../database/identifiers.ts';
import { runQuery, statement } from '../../database/sql.ts';
import { type ApiKey, hashKey, keyIdOf, sessionCheck } from './key.ts';
import { Lookups } from './lookups.ts';
import type { KeyVerifier } from './verifier.ts';

/** A working day and the evening after it. Then a person signs in again. */
export const sessionSeconds = 12 * 3600;
// A sign-in link is printed to the terminal, to be opened at once.
const linkSeconds = 15 * 60;
// Ending a session on another daemon takes effect within this time.
const cacheMs = 5000;
// Only the database's clock decides: that of the process may be wrong.
const leftMs = `(extract(epoch from expires_at - now()) * 1000)::float8`;

interface SessionKey {
  key_id: string;
  key_check: Buffer;
}

type Kind = 'session' | 'link';

interface Stored extends SessionKey {
  kind: Kind;
  /** By the monotonic clock of this process. */
  endsAt: number;
}

export class Sessions {
  #db: Queryable;
  #keys: KeyVerifier;
  /** By the digest of the token, in hexadecimal. */
  #lookups: Lookups<Stored>;

  constructor(db: Queryable, keys: KeyVerifier) {
    this.#db = db;
    this.#keys = keys;
    this.#lookups = new Lookups((ids) => readSessions(db, ids), cacheMs);
  }

  /** Returns undefined if the text is not a valid key. */
  async open(keyText: string): Promise<{ token: string; key: ApiKey } | undefined> {
    const key = await this.#keys.verify(keyText);
    if (key === undefined) return undefined;
    const token = newToken();
    await store(this.#db, token, 'session', { keyId: key.id, check: sessionCheck(hashKey(keyText)) }, sessionSeconds);
    return { token, key };
  }

  /** Returns undefined if the link was used, has expired, or its key is no longer valid. */
  async openByLink(linkToken: string): Promise<string | undefined> {
    if ((await this.#find(linkToken, 'link')) === undefined) return undefined;
    const [row] = await runQuery<SessionKey>(
      this.#db,
      `delete from ${controlSchema}.sessions where id = :id and kind = 'link' and expires_at > now()
       returning key_id, key_check`,
      { id: digest(linkToken) },
    );
    if (row === undefined || (await this.#keyOf(row)) === undefined) return undefined;
    const token = newToken();
    await store(this.#db, token, 'session', { keyId: row.key_id, check: row.key_check }, sessionSeconds);
    return token;
  }

  /** Returns the current key of the session. */
  async verify(token: string): Promise<ApiKey | undefined> {
    const row = await this.#find(token, 'session');
    return row === undefined ? undefined : this.#keyOf(row);
  }

  async close(token: string): Promise<void> {
    if ((await this.#find(token, 'session')) === undefined) return;
    await runQuery(this.#db, `delete from ${controlSchema}.sessions where id = :id`, { id: digest(token) });
    this.#lookups.forget(digest(token).toString('hex'));
  }

  async #keyOf(row: SessionKey): Promise<ApiKey | undefined> {
    return this.#keys.verifyById(row.key_id, row.key_check);
  }

  async #find(token: string, kind: Kind): Promise<SessionKey | undefined> {
    const found = await this.#lookups.find(digest(token).toString('hex'));
    return found?.kind === kind && found.endsAt > performance.now() ? found : undefined;
  }
}

async function readSessions(db: Queryable, ids: readonly string[]): Promise<Map<string, Stored>> {
  const readAt = performance.now();
  const rows = await runQuery<SessionKey & { id: Buffer; kind: Kind; left_ms: number }>(
    db,
    `select id, kind, key_id, key_check, ${leftMs} as left_ms
       from ${controlSchema}.sessions
      where id = any(array(select decode(given.id, 'hex') from unnest(:ids::text[]) as given(id)))
        and expires_at > now()`,
    { ids },
  );
  return new Map(rows.map(({ left_ms, id, ...row }) => [id.toString('hex'), { ...row, endsAt: readAt + left_ms }]));
}

/** A token that opens one session of this key, once. */
export async function createSignInLink(db: Queryable, keyText: string): Promise<string> {
  const token = newToken();
  await store(db, token, 'link', { keyId: keyIdOf(keyText) ?? '', check: sessionCheck(hashKey(keyText)) }, linkSeconds);
  return token;
}

/** Deletes at most `limit` expired sessions and links, oldest first. Returns how many. */
export async function deleteExpiredSessions(db: Queryable, limit: number): Promise<number> {
  const rows = await runQuery(
    db,
    `with expired as (
       select id
         from ${controlSchema}.sessions
        where expires_at < now()
        order by expires_at
        limit :limit
          for update skip locked)
     delete from ${controlSchema}.sessions
      where id = any(array(select id from expired))
     returning id`,
    { limit },
  );
  return rows.length;
}

const insertStatement = statement(`
  insert into ${controlSchema}.sessions (id, kind, key_id, key_check, expires_at)
  values (:id, :kind, :keyId, :check, now() + :seconds::float8 * interval '1 second')`);

async function store(
  db: Queryable,
  token: string,
  kind: Kind,
  key: { keyId: string; check: Buffer },
  seconds: number,
): Promise<void> {
  await insertStatement.query(db, controlSchema, { id: digest(token), kind, ...key, seconds });
}

function newToken(): string {
  return randomBytes(32).toString('base64url');
}

function digest(token: string): Buffer {
  return createHash('sha256').update(token).digest();
}
