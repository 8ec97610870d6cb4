// Checks whether writes succeed, for readiness: a database that answers may still be a standby, read-only or out of
// space.
import { setTimeout as delay } from 'node:timers/promises';
import type { Database } from '../database.ts';
import { controlSchema } from '../identifiers.ts';
import { runQuery } from '../sql.ts';
import { sqlState } from '../sql-errors.ts';

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
  '58030': 'the database cannot write to its disk',
};

export class WriteCheck {
  readonly #db: Database;
  readonly #workerId: string;
  #last: { result: Promise<WriteCheckResult>; at: number } | undefined;

  constructor(db: Database, workerId: string) {
    this.#db = db;
    this.#workerId = workerId;
  }

  run(): Promise<WriteCheckResult> {
    if (this.#last === undefined || performance.now() - this.#last.at > keepMs) {
      this.#last = { result: this.#probe(), at: performance.now() };
    }
    return this.#last.result;
  }

  async #probe(): Promise<WriteCheckResult> {
    const write = this.#db.writeError === undefined ? this.#touch() : this.#allocate();
    const answer = write.then(
      (): WriteCheckResult => ({ ok: true }),
      (error: unknown): WriteCheckResult => failure(error),
    );
    const silence = new AbortController();
    const timeout = delay(timeoutMs, { ok: false, detail: 'the database does not answer' }, { signal: silence.signal });
    timeout.catch(() => {});
    return Promise.race([answer, timeout]).finally(() => silence.abort());
  }

  /** Updates an existing row: fails on a standby. */
  async #touch(): Promise<void> {
    await runQuery(this.#db, `update ${controlSchema}.daemons set running = running where id = :workerId`, {
      workerId: this.#workerId,
    });
  }

  /** After a failed write, a write that needs new pages must succeed; it is rolled back. */
  async #allocate(): Promise<void> {
    const rollback = new Error('rolled back');
    const table = `${controlSchema}.write_check_${process.pid}`;
    const written = this.#db.transaction(async (tx) => {
      await tx.query(`create table ${table} (filler text)`);
      await tx.query(`insert into ${table} select repeat(md5(n::text), 4) from generate_series(1, 1000) as n`);
      throw rollback;
    });
    await written.catch((error: unknown) => {
      if (error !== rollback) throw error;
    });
    this.#db.canWrite();
  }
}

function failure(error: unknown): WriteCheckResult {
  const state = sqlState(error) ?? '';
  // The schema is not migrated yet, which another check reports.
  if (state === '42P01' || state === '3F000') return { ok: true };
  return { ok: false, detail: details[state] ?? 'the database cannot be reached' };
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
