// The pool and the two ways to use it: one statement, or one transaction. Retries only what is
// known not to have happened. Callers own their SQL; this file owns connections and errors.
import type pg from 'pg';
import type { Logger } from '../kernel/logger.ts';
import { Connections } from './connections.ts';
import type { Servers } from './servers.ts';
import { beginWith, idleInTransactionMs, lockTimeoutMs, type SessionLimits } from './session.ts';
import { isStatementGone } from './statements.ts';

export interface Queryable {
  /** `often`: one of the few statements that run all the time; it is parsed once per connection. */
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

// Planning what is sent together takes as long as a dozen of its rows. A plan that is kept must fit a table of
// any size: one that was made while it was small may not read all of it.
const keepPlans = `select set_config('plan_cache_mode', 'force_generic_plan', true), set_config('enable_seqscan', 'off', true),
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

  /** The SQL state of the last write that the server refused for want of space or of the right to write. */
  get writeFault(): string | undefined {
    return this.#connections.writeFault;
  }

  canWrite(): void {
    this.#connections.writeFault = undefined;
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
      this.#rollingBack(client, async (told) => {
        const result = await beforeCommit(async () => {
          await client.query(this.#beginOf(client, options));
          return work({
            query: <R extends object>(text: string, values: unknown[] = [], often?: 'often') =>
              told(this.#run<R>(client, text, values, often)),
          });
        });
        await client.query('COMMIT');
        return result;
      }),
    );
  }

  /**
   * A transaction whose statements do not need each other's answers: they are sent together, with their
   * COMMIT, so that the server waits for nobody while it holds their locks. `send` must send all of them
   * before it waits. If one fails, the server refuses those behind it, and the COMMIT takes all back. What
   * fails on this side of the connection takes back nothing: `send` should have all it needs before it begins.
   */
  async pipelinedTransaction<T>(send: (tx: Queryable) => Promise<T>): Promise<T> {
    return this.#withClient(this.#statementTimeoutMs, (client) =>
      this.#rollingBack(client, async (told) => {
        // Waited for: without it the others would be transactions of their own.
        await Promise.all([
          client.query(this.#beginOf(client, {})),
          this.#connections.statementsOf(client)?.direct ? client.query(keepPlans) : undefined,
        ]);
        let sent = false;
        const answers = send({
          query: async <R extends object>(text: string, values: unknown[] = [], often?: 'often') => {
            if (sent) throw new Error('a statement came after the COMMIT of its transaction');
            return (await told(this.#send<R>(client, text, values, often))).rows;
          },
        });
        sent = true;
        const [result] = await Promise.all([answers, client.query('COMMIT')]);
        return result;
      }),
    );
  }

  /** Rolls back what fails, and tells why: statements that were sent behind the one that failed only say that it did. */
  async #rollingBack<T>(
    client: pg.PoolClient,
    work: (told: <A>(answer: Promise<A>) => Promise<A>) => Promise<T>,
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
      throw sqlState(error) === failedBefore ? (first ?? error) : error;
    }
  }

  async close(): Promise<void> {
    if (!this.pool.ended) await this.pool.end();
  }

  /** A connection of our own has the usual limits already. */
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

  /** Whether the connection is to be given up: the server may have lost its role while it lived on. */
  #cannotWrite(error: unknown): boolean {
    this.#connections.writeFault = sqlState(error);
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
      if (isWriteFault(error)) broken = this.#cannotWrite(error) || broken;
      throw error;
    } finally {
      clearTimeout(timer);
      client.release(broken);
    }
  }
}

/** The server gives up a little earlier than this side: then it is known that nothing happened. */
function serverTimeoutMs(timeoutMs: number): number {
  return Math.ceil(timeoutMs * 0.95);
}

/** The transaction had failed already. */
const failedBefore = '25P02';

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

/** A connection that is lost in here, e.g. by the server's limit for idle transactions, took its transaction with it. */
async function beforeCommit<T>(work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    // After a timeout of our own there is no time left for another try.
    if (error instanceof Error && isConnectionError(error) && error.message !== timedOutMessage) uncommitted.add(error);
    throw error;
  }
}

const timedOutMessage = 'statement timed out';

const readOnly = '25006';

/** Read-only, no space left, or a broken disk: other statements may work, writes do not. */
function isWriteFault(error: unknown): boolean {
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

/** The server cannot do it now: overloaded, out of space, locked, stopping, or a standby. Later it may. */
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
