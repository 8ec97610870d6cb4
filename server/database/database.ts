// The pool and the ways to use it: one statement, a transaction, a pipelined transaction. Classifies errors; only what
// surely did not happen is retried. Callers own their SQL.
import type pg from 'pg';
import type { Logger } from '../kernel/logger.ts';
import { Connections } from './connections.ts';
import type { Servers } from './servers.ts';
import { beginWith, idleInTransactionMs, lockTimeoutMs, type SessionLimits } from './session-limits.ts';
import { isStatementGone } from './statements.ts';

export interface Queryable {
  /** `often`: a frequent statement, prepared once per connection. */
  query<R extends object = Record<string, unknown>>(text: string, values?: unknown[], often?: 'often'): Promise<R[]>;
}

export interface DatabaseOptions {
  url: string;
  poolMax: number;
  logger: Logger;
  applicationName?: string;
  /** Most milliseconds for one statement before its connection is destroyed. */
  statementTimeoutMs?: number;
}

export interface TransactionOptions {
  /** Most milliseconds for the whole transaction before its connection is destroyed. */
  timeoutMs?: number;
  /** Most milliseconds that one of its statements waits for a lock; zero waits without limit. */
  lockTimeoutMs?: number;
  /** Most milliseconds between two of its statements. Longer than usual only where it holds no lock that others want. */
  idleTimeoutMs?: number;
}

// Planning a pipelined statement takes as long as a dozen of its rows, so its plan is kept. It must fit a table of any
// size: a plan made for a small table would read all of it.
const keepPlansQuery = `select set_config('plan_cache_mode', 'force_generic_plan', true), set_config('enable_seqscan', 'off', true),
  set_config('enable_bitmapscan', 'off', true)`;

export class Database implements Queryable {
  readonly url: string;
  readonly #connections: Connections;
  readonly #limits: SessionLimits;
  #statementTimeoutMs: number;

  constructor(options: DatabaseOptions) {
    this.url = options.url;
    this.#statementTimeoutMs = options.statementTimeoutMs ?? 60_000;
    this.#limits = {
      statementMs: serverTimeoutMs(this.#statementTimeoutMs),
      lockMs: lockTimeoutMs,
      idleInTransactionMs,
    };
    const { url, poolMax, logger, applicationName = 'leasehold' } = options;
    this.#connections = new Connections({ url, poolMax, logger, applicationName, limits: this.#limits });
  }

  get pool(): pg.Pool {
    return this.#connections.pool;
  }

  get servers(): Servers {
    return this.#connections.servers;
  }

  /** The SQL state of the last write that failed because the server is out of space or read-only. */
  get writeError(): string | undefined {
    return this.#connections.writeError;
  }

  canWrite(): void {
    this.#connections.writeError = undefined;
  }

  /** The database's time, as far as this process knows it. */
  now(): Date {
    return this.#connections.now();
  }

  async query<R extends object = Record<string, unknown>>(
    text: string,
    values: unknown[] = [],
    often?: 'often',
  ): Promise<R[]> {
    return this.#withClient(this.#statementTimeoutMs, (client) => this.#run<R>(client, text, values, often));
  }

  /** Runs `work` in one transaction. Rolls back on any error; never retries by itself. */
  async transaction<T>(work: (tx: Queryable) => Promise<T>, options: TransactionOptions = {}): Promise<T> {
    const timeoutMs = options.timeoutMs ?? this.#statementTimeoutMs;
    return this.#withClient(timeoutMs, (client) =>
      this.#rollingBack(client, async (track) => {
        const result = await beforeCommit(async () => {
          await client.query(this.#beginOf(client, options));
          return work({
            query: <R extends object>(text: string, values: unknown[] = [], often?: 'often') =>
              track(this.#run<R>(client, text, values, often)),
          });
        });
        await client.query('COMMIT');
        return result;
      }),
    );
  }

  /**
   * A transaction whose statements do not need each other's results. They are sent together with their COMMIT, so that
   * the server holds no lock while it waits for the client. `send` must send all of them before it awaits. If one
   * fails, the server refuses the following ones and the COMMIT rolls back. An error in `send` itself does not roll
   * back: prepare everything before.
   */
  async pipelinedTransaction<T>(send: (tx: Queryable) => Promise<T>): Promise<T> {
    return this.#withClient(this.#statementTimeoutMs, (client) =>
      this.#rollingBack(client, async (track) => {
        // Awaited: without BEGIN each of the others would be a transaction of its own.
        await Promise.all([
          client.query(this.#beginOf(client, {})),
          this.#connections.statementsOf(client)?.direct ? client.query(keepPlansQuery) : undefined,
        ]);
        let sent = false;
        const answers = send({
          query: async <R extends object>(text: string, values: unknown[] = [], often?: 'often') => {
            if (sent) throw new Error('a statement came after the COMMIT of its transaction');
            return (await track(this.#send<R>(client, text, values, often))).rows;
          },
        });
        sent = true;
        const [result] = await Promise.all([answers, client.query('COMMIT')]);
        return result;
      }),
    );
  }

  /** Rolls back on an error and throws the first one: statements sent after it only report that the transaction failed. */
  async #rollingBack<T>(
    client: pg.PoolClient,
    work: (track: <A>(answer: Promise<A>) => Promise<A>) => Promise<T>,
  ): Promise<T> {
    let first: unknown;
    try {
      return await work((answer) =>
        answer.catch((error: unknown) => {
          first ??= error;
          throw error;
        }),
      );
    } catch (error) {
      await client.query('ROLLBACK').catch(() => {});
      throw sqlState(error) === transactionFailed ? (first ?? error) : error;
    }
  }

  async close(): Promise<void> {
    if (!this.pool.ended) await this.pool.end();
  }

  /** A direct connection already has the default limits. */
  #beginOf(client: pg.PoolClient, options: TransactionOptions): string {
    const { timeoutMs, lockTimeoutMs: lockMs, idleTimeoutMs } = options;
    const own = {
      ...(timeoutMs !== undefined && { statementMs: serverTimeoutMs(timeoutMs) }),
      ...(lockMs !== undefined && { lockMs }),
      ...(idleTimeoutMs !== undefined && { idleInTransactionMs: idleTimeoutMs }),
    };
    return beginWith(this.#connections.statementsOf(client)?.direct ? own : { ...this.#limits, ...own });
  }

  async #run<R extends object>(
    client: pg.PoolClient,
    text: string,
    values: unknown[],
    often: 'often' | undefined,
  ): Promise<R[]> {
    return (await this.#send<R>(client, text, values, often)).rows;
  }

  #send<R extends object>(client: pg.PoolClient, text: string, values: unknown[], often: 'often' | undefined) {
    const named = often && this.#connections.statementsOf(client)?.query<R>(text, values);
    return named ?? client.query<R>(text, values);
  }

  /** Whether to drop the connection: its server may have become a standby. */
  #cannotWrite(error: unknown): boolean {
    this.#connections.writeError = sqlState(error);
    if (!this.servers.isChosen || sqlState(error) !== readOnly) return false;
    this.servers.suspect();
    return true;
  }

  async #withClient<T>(timeoutMs: number, work: (client: pg.PoolClient) => Promise<T>): Promise<T> {
    const client = await this.#connections.take();
    // A statement that never answers (a black-holed connection) must not keep a pool slot: the
    // socket is destroyed, which rejects the statement and drops the client from the pool.
    let timedOut = false;
    const timer = setTimeout(() => {
      timedOut = true;
      (client as unknown as { connection: { stream: { destroy(e: Error): void } } }).connection.stream.destroy(
        new Error(timedOutMessage),
      );
    }, timeoutMs);
    let broken = false;
    try {
      return await work(client);
    } catch (error) {
      broken = timedOut || isConnectionError(error) || isStatementGone(error);
      if (timedOut || isConnectionError(error)) this.#connections.lost(error);
      if (isWriteError(error)) broken = this.#cannotWrite(error) || broken;
      throw error;
    } finally {
      clearTimeout(timer);
      client.release(broken);
    }
  }
}

/** The server times out a little before the client does: then it is certain that nothing happened. */
function serverTimeoutMs(timeoutMs: number): number {
  return Math.ceil(timeoutMs * 0.95);
}

/** SQL state of a statement in a transaction that has already failed. */
const transactionFailed = '25P02';

export function sqlState(error: unknown): string | undefined {
  return error instanceof Error && 'code' in error && typeof error.code === 'string' ? error.code : undefined;
}

/** The connection is unusable, and whether the statement took effect is unknown. */
export function isConnectionError(error: unknown): boolean {
  const state = sqlState(error);
  if (state === undefined)
    return error instanceof Error && /Connection terminated|not queryable|timeout|timed out/i.test(error.message);
  return /^(08|57P0[1-5]|25P0[34])/.test(state) || /^E[A-Z]+$/.test(state);
}

/** Errors of connections that were lost before a COMMIT was sent. */
const uncommitted = new WeakSet<Error>();

/** A connection that is lost in here, e.g. by the server's limit for idle transactions, has rolled back. */
async function beforeCommit<T>(work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    // After our own timeout no time is left for a retry.
    if (error instanceof Error && isConnectionError(error) && error.message !== timedOutMessage) uncommitted.add(error);
    throw error;
  }
}

const timedOutMessage = 'statement timed out';

const readOnly = '25006';

/** Read-only, no space left, or a broken disk: other statements may work, writes do not. */
function isWriteError(error: unknown): boolean {
  return [readOnly, '53100', '58030'].includes(sqlState(error) ?? '');
}

/** The transaction surely did not happen and may be tried again. */
export function isRetryable(error: unknown): boolean {
  const state = sqlState(error);
  return (
    state === '40001' ||
    state === '40P01' ||
    isStatementGone(error) ||
    (error instanceof Error && uncommitted.has(error))
  );
}

/** The server cannot do it now: overloaded, out of space, locked, stopping, or a standby. A retry may succeed. */
export function isTransient(error: unknown): boolean {
  return /^(40|53|55|57)|^25006$/.test(sqlState(error) ?? '');
}

/** A lock was not granted in time. Nothing was done. */
export function isLockTimeout(error: unknown): boolean {
  return sqlState(error) === '55P03';
}

/** Retries serialization failures, deadlocks and connections lost before the COMMIT: all surely rolled back. */
export async function retryConflicts<T>(work: () => Promise<T>, attempts = 5): Promise<T> {
  for (let attempt = 1; ; attempt++) {
    try {
      return await work();
    } catch (error) {
      if (attempt >= attempts || !isRetryable(error)) throw error;
      await new Promise((resolve) => setTimeout(resolve, Math.random() * 20 * attempt));
    }
  }
}
