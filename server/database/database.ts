// The pool and the two ways to use it: one statement, or one transaction. Retries only what is
// known not to have happened. Callers own their SQL; this file owns connections and errors.
import pg from 'pg';
import { errorMessage } from '../kernel/errors.ts';
import type { Logger } from '../kernel/logger.ts';
import { Availability } from './availability.ts';
import { beginWith, idleInTransactionMs, lockTimeoutMs, openSession, type SessionLimits } from './session.ts';
import { isStatementGone, Statements } from './statements.ts';
import { createTypeParsers } from './timestamps.ts';

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
  readonly pool: pg.Pool;
  readonly #limits: SessionLimits;
  readonly #availability: Availability;
  #statementTimeoutMs: number;
  #clock: { serverTimeMs: number; readAt: number } | undefined;
  readonly #statements = new WeakMap<pg.PoolClient, Statements>();

  constructor(options: DatabaseOptions) {
    this.url = options.url;
    this.#statementTimeoutMs = options.statementTimeoutMs ?? 60_000;
    this.#limits = {
      statementMs: serverTimeoutMs(this.#statementTimeoutMs),
      lockMs: lockTimeoutMs,
      idleInTransactionMs,
    };
    this.pool = new pg.Pool({
      connectionString: options.url,
      max: options.poolMax,
      idleTimeoutMillis: 30_000,
      connectionTimeoutMillis: 10_000,
      keepAlive: true,
      application_name: options.applicationName ?? 'leasehold',
      types: createTypeParsers(),
      // What is sent without waiting for the answer before it is on its way at once.
      pipeline: true,
      onConnect: (client) => this.#opened(client as pg.PoolClient),
    });
    this.#availability = new Availability(options.logger);
    // Without a listener a dropped idle connection ends the process.
    this.pool.on('error', (error) => this.#availability.connectionLost(error));
  }

  /** The database's time, as far as this process knows it. Before the first connection it is that of the process. */
  now(): Date {
    if (this.#clock === undefined) return new Date();
    return new Date(this.#clock.serverTimeMs + performance.now() - this.#clock.readAt);
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
  async together<T>(send: (tx: Queryable) => Promise<T>): Promise<T> {
    return this.#withClient(this.#statementTimeoutMs, (client) =>
      this.#rollingBack(client, async (told) => {
        // Waited for: without it the others would be transactions of their own.
        await Promise.all([
          client.query(this.#beginOf(client, {})),
          this.#statements.get(client)?.direct ? client.query(keepPlans) : undefined,
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

  /** Without a listener, an error of a connection that is in use would end the process. */
  async #opened(client: pg.PoolClient): Promise<void> {
    client.on('error', () => {});
    const { direct, ...clock } = await openSession(client, this.#limits);
    this.#statements.set(client, new Statements(client, direct));
    this.#clock = clock;
    this.#availability.connected();
  }

  /** A connection of our own has the usual limits already. */
  #beginOf(client: pg.PoolClient, options: TransactionOptions): string {
    const { timeoutMs, lockTimeoutMs: lockMs, idleTimeoutMs } = options;
    const own = {
      ...(timeoutMs !== undefined && { statementMs: serverTimeoutMs(timeoutMs) }),
      ...(lockMs !== undefined && { lockMs }),
      ...(idleTimeoutMs !== undefined && { idleInTransactionMs: idleTimeoutMs }),
    };
    return beginWith(this.#statements.get(client)?.direct ? own : { ...this.#limits, ...own });
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
    const named = often && this.#statements.get(client)?.query<R>(text, values);
    return named ?? client.query<R>(text, values);
  }

  async #connect(): Promise<pg.PoolClient> {
    try {
      return await this.pool.connect();
    } catch (error) {
      // With every connection in use, or with the pool closed, nothing is wrong with the database.
      if (!/^timeout exceeded when|^Cannot use a pool/.test(errorMessage(error)))
        this.#availability.connectFailed(error);
      throw error;
    }
  }

  async #withClient<T>(timeoutMs: number, work: (client: pg.PoolClient) => Promise<T>): Promise<T> {
    const client = await this.#connect();
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
      if (timedOut || isConnectionError(error)) this.#availability.connectionLost(error);
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
