// Checks whether writes succeed, for readiness: a database that answers may still be a standby, read-only or out of
// space.
import { setTimeout as delay } from 'node:timers/promises';
import { v4 as uuidv4 } from 'uuid';
import type { Database } from '../database.ts';
import { controlSchema } from '../identifiers.ts';
import { statement } from '../sql.ts';
import { isWriteError, sqlState } from '../sql-errors.ts';

export interface WriteCheckResult {
  ok: boolean;
  detail?: string;
}

// Readiness is public and may be requested at any rate. The database is queried once in this time.
const keepMs = 1_000;
// Shorter than the usual timeouts of probes, so that the probe gets an answer.
const timeoutMs = 2_000;

/** The text is public, so it names no host and no user. The log has the details. */
const details: Record<string, string> = {
  '25006': 'the database is a standby or read-only',
  '53100': 'the database has no space left',
};

/** 16 kB that do not compress: more than a page, and little to log for a check that may come every second. */
const insertFiller = statement(`
  insert into ${controlSchema}.daemons (id, incarnation, host, pid, version)
  select :id, :incarnation, string_agg(md5(n::text), ''), 0, ''
    from generate_series(1, 512) as n`);

export class WriteCheck {
  readonly #db: Database;
  #last: { result: Promise<WriteCheckResult>; at: number } | undefined;

  constructor(db: Database) {
    this.#db = db;
  }

  run(): Promise<WriteCheckResult> {
    if (this.#last === undefined || performance.now() - this.#last.at > keepMs) {
      this.#last = { result: this.#probe(), at: performance.now() };
    }
    return this.#last.result;
  }

  async #probe(): Promise<WriteCheckResult> {
    const answer = this.#insert().then(
      (): WriteCheckResult => ({ ok: true }),
      (error: unknown): WriteCheckResult => failure(error),
    );
    const silence = new AbortController();
    const timeout = delay(timeoutMs, { ok: false, detail: 'the database does not answer' }, { signal: silence.signal });
    timeout.catch(() => {});
    return Promise.race([answer, timeout]).finally(() => silence.abort());
  }

  /**
   * Inserts a row that needs new pages, and rolls it back. An update of a small row succeeds on a full disk, because its page
   * has room.
   */
  async #insert(): Promise<void> {
    const rollback = new Error('rolled back');
    const inserted = this.#db.transaction(async (tx) => {
      await insertFiller.query(tx, controlSchema, { id: `write-check-${uuidv4()}`, incarnation: uuidv4() });
      throw rollback;
    });
    await inserted.catch((error: unknown) => {
      if (error !== rollback) throw error;
    });
  }
}

function failure(error: unknown): WriteCheckResult {
  const state = sqlState(error) ?? '';
  // The schema is not migrated yet, which another check reports.
  if (state === '42P01' || state === '3F000') return { ok: true };
  const detail =
    details[state] ??
    (isWriteError(error) ? 'the database cannot write to its disk' : 'the database cannot be reached');
  return { ok: false, detail };
}

/** Rejects on a server that does not accept writes. */
export async function requireWritable(db: Database): Promise<void> {
  const [row] = await db.query<{ read_only: string }>(`select current_setting('transaction_read_only') as read_only`);
  if (row?.read_only !== 'off') throw new ReadOnlyServer();
}

class ReadOnlyServer extends Error {
  override name = 'ReadOnlyServer';
  readonly code = '25006';

  constructor() {
    super('the server is a standby or read-only; waiting until it accepts writes');
  }
}
