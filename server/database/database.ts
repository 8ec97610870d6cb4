// The pool and the ways to use it: one statement, a transaction, a pipelined transaction. Classifies errors; only what
// surely did not happen is retried. Callers own their SQL.
import type pg from 'pg';
import type { Logger } from '../kernel/logger.ts';
import { Connections } from './connections/connections.ts';
import { keepPlans, type Reuse } from './connections/prepared-statements.ts';
import { beginWith, idleInTransactionMs, lockTimeoutMs, type SessionLimits } from './connections/session-limits.ts';
import { ownRole, TenantRoles } from './connections/tenant-roles.ts';
import type { Schema } from './identifiers.ts';
import type { Servers } from './servers/servers.ts';
import { beforeCommit, sqlState, transactionFailed } from './sql-errors.ts';

export interface Queryable {
  query<R extends object = Record<string, unknown>>(text: string, values?: unknown[], reuse?: Reuse): Promise<R[]>;
}

export interface DatabaseOptions {
  url: string;
  poolMax: number;
  logger: Logger;
  applicationName?: string;
  /** Maximum milliseconds of one statement, after which its connection is destroyed. */
  statementTimeoutMs?: number;
  /** Statements of a tenant run as a role of its own, where the database has one or lets this one create it. */
  tenantRoles?: boolean;
}

export interface TransactionOptions {
  /** Maximum milliseconds of the whole transaction; then its connection is destroyed. */
  timeoutMs?: number;
  /** Maximum milliseconds that one of its statements waits for a lock; zero waits without limit. */
  lockTimeoutMs?: number;
  /** Maximum milliseconds between two of its statements. Longer than usual only where it holds no lock that others need. */
  idleTimeoutMs?: number;
}

export class Database implements Queryable {
  readonly url: string;
  readonly #connections: Connections;
  readonly #limits: SessionLimits;
  readonly #options: DatabaseOptions;
  #statementTimeoutMs: number;
  readonly #roles: TenantRoles | undefined;
  /** Of a view for one tenant; undefined: statements run with the rights of the connection. */
  readonly #tenant: Schema | undefined;
  readonly #root: Database;
  readonly #views = new Map<Schema, Database>();

  /** `of`: a view of this database for one tenant, see `forTenant`. */
  constructor(options: DatabaseOptions, of?: { root: Database; tenant: Schema }) {
    this.url = options.url;
    this.#root = of?.root ?? this;
    this.#tenant = of?.tenant;
    this.#options = options;
    this.#statementTimeoutMs = options.statementTimeoutMs ?? 60_000;
    this.#limits = {
      statementMs: serverTimeoutMs(this.#statementTimeoutMs),
      lockMs: lockTimeoutMs,
      idleInTransactionMs,
    };
    const { url, poolMax, logger, applicationName = 'leasehold' } = options;
    const limits = this.#limits;
    this.#connections = of ? of.root.#connections : new Connections({ url, poolMax, logger, applicationName, limits });
    if (of !== undefined) this.#roles = of.root.#roles;
    else if (options.tenantRoles) this.#roles = new TenantRoles(this, logger);
  }

  /**
   * The same connections for statements of one tenant: they run as the tenant's role, so that Postgres refuses one that
   * names another tenant's schema.
   */
  forTenant(schema: Schema): Database {
    const root = this.#root;
    if (root.#roles === undefined) return root;
    let view = root.#views.get(schema);
    if (view === undefined) {
      view = new Database(root.#options, { root, tenant: schema });
      root.#views.set(schema, view);
    }
    return view;
  }

  /** Undefined if TENANT_ROLES is off. */
  get tenantRoles(): TenantRoles | undefined {
    return this.#roles;
  }

  get pool(): pg.Pool {
    return this.#connections.pool;
  }

  get servers(): Servers {
    return this.#connections.servers;
  }

  /** True if the database is a Citus cluster: one tenant per statement, because each is on a node of its own. */
  get sharded(): boolean {
    return this.#connections.sharded;
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
    reuse?: Reuse,
  ): Promise<R[]> {
    return this.#withClient(this.#statementTimeoutMs, (client) => {
      const needsTransaction = !this.#isDirect(client) && this.#roles?.roleFor(this.#tenant, text);
      return needsTransaction
        ? this.#inTransaction(client, {}, (tx) => tx.query<R>(text, values))
        : this.#send<R>(client, text, values, reuse);
    });
  }

  /** Runs `work` in one transaction. Rolls back on any error; never retries by itself. */
  async transaction<T>(work: (tx: Queryable) => Promise<T>, options: TransactionOptions = {}): Promise<T> {
    const timeoutMs = options.timeoutMs ?? this.#statementTimeoutMs;
    return this.#withClient(timeoutMs, (client) => this.#inTransaction(client, options, work));
  }

  #inTransaction<T>(
    client: pg.PoolClient,
    options: TransactionOptions,
    work: (tx: Queryable) => Promise<T>,
  ): Promise<T> {
    return this.#rollingBack(client, async (track) => {
      const result = await beforeCommit(async () => {
        await this.#begin(client, options);
        return work({
          query: <R extends object>(text: string, values: unknown[] = [], reuse?: Reuse) =>
            track(this.#send<R>(client, text, values, reuse && 'prepared', 'transaction')),
        });
      });
      await client.query('COMMIT');
      return result;
    });
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
          this.#begin(client, {}),
          this.#connections.statementsOf(client)?.mayKeepPlans ? client.query(keepPlans('transaction')) : undefined,
        ]);
        let sent = false;
        const answers = send({
          query: async <R extends object>(text: string, values: unknown[] = [], reuse?: Reuse) => {
            if (sent) throw new Error('a statement came after the COMMIT of its transaction');
            return track(this.#send<R>(client, text, values, reuse && 'prepared', 'transaction'));
          },
        });
        sent = true;
        const [result] = await Promise.all([answers, client.query('COMMIT')]);
        return result;
      }),
    );
  }

  #isDirect(client: pg.PoolClient): boolean {
    return this.#connections.statementsOf(client)?.direct === true;
  }

  /** Rolls back on an error and throws the first one: statements sent after it only report that the transaction failed. */
  async #rollingBack<T>(
    client: pg.PoolClient,
    work: (track: <A>(answer: Promise<A>) => Promise<A>) => Promise<T>,
  ): Promise<T> {
    let first: unknown;
    const roleBefore = this.#isDirect(client) ? this.#roleOfTransaction() : ownRole;
    try {
      return await work((answer) =>
        answer.catch((error: unknown) => {
          first ??= error;
          throw error;
        }),
      );
    } catch (error) {
      await client.query('ROLLBACK').catch(() => {});
      this.#roles?.restore(client, roleBefore);
      throw sqlState(error) === transactionFailed ? (first ?? error) : error;
    } finally {
      if (!this.#isDirect(client)) this.#roles?.restore(client, ownRole);
    }
  }

  /** Switches the role before the BEGIN, so that a rollback leaves the connection with it; behind a pooler after it. */
  async #begin(client: pg.PoolClient, options: TransactionOptions): Promise<void> {
    const role = this.#roleOfTransaction();
    if (this.#isDirect(client)) this.#roles?.switchTo(client, role, 'session');
    const begun = client.query(this.#beginOf(client, options));
    if (!this.#isDirect(client)) this.#roles?.switchTo(client, role, 'transaction');
    await begun;
  }

  #roleOfTransaction(): string {
    return this.#roles?.roleFor(this.#tenant) ?? ownRole;
  }

  async close(): Promise<void> {
    if (!this.pool.ended) await this.pool.end();
  }

  /** A direct connection already has the default limits. */
  #beginOf(client: pg.PoolClient, options: TransactionOptions): string {
    const { timeoutMs, lockTimeoutMs: lockMs, idleTimeoutMs } = options;
    const statements = this.#connections.statementsOf(client);
    // Before the BEGIN: a rollback would undo it.
    statements?.planAnew();
    const own = {
      ...(timeoutMs !== undefined && { statementMs: serverTimeoutMs(timeoutMs) }),
      ...(lockMs !== undefined && { lockMs }),
      ...(idleTimeoutMs !== undefined && { idleInTransactionMs: idleTimeoutMs }),
    };
    return beginWith(statements?.direct ? own : { ...this.#limits, ...own });
  }

  async #send<R extends object>(
    client: pg.PoolClient,
    text: string,
    values: unknown[],
    reuse: Reuse | undefined,
    within?: 'transaction',
  ): Promise<R[]> {
    const role = this.#roles?.roleFor(this.#tenant, text);
    if (role !== undefined) {
      const isSession = this.#isDirect(client);
      // Behind a pooler a statement outside of a transaction always runs with the rights of the connection.
      if (isSession || within) this.#roles?.switchTo(client, role, isSession ? 'session' : 'transaction');
    }
    const statements = this.#connections.statementsOf(client);
    const { rows } = await (statements?.query<R>(text, values, reuse) ?? client.query<R>(text, values));
    return rows;
  }

  async #withClient<T>(timeoutMs: number, work: (client: pg.PoolClient) => Promise<T>): Promise<T> {
    if (this.#tenant !== undefined) await this.#roles?.prepare(this.#tenant);
    return this.#connections.use(timeoutMs, work);
  }
}

/** The server times out a little before the client does: then it is certain that nothing happened. */
function serverTimeoutMs(timeoutMs: number): number {
  return Math.ceil(timeoutMs * 0.95);
}
