// The database and the ways to use it: one statement, a transaction, a pipelined transaction. Classifies errors, and
// retries only transactions that certainly did not happen. Callers own their SQL.
import type pg from 'pg';
import type { Logger } from '../kernel/logger.ts';
import { Connections } from './connections/connections.ts';
import type { Reuse } from './connections/prepared-statements.ts';
import { idleInTransactionMs, lockTimeoutMs, type SessionLimits } from './connections/session-limits.ts';
import { TenantRoles } from './connections/tenant-roles.ts';
import { isCommand, serverTimeoutMs, TenantSession, type TransactionOptions } from './connections/tenant-session.ts';
import type { Schema } from './identifiers.ts';
import { type StatementOnNode, type TenantNode, TenantNodes } from './nodes/tenant-nodes.ts';
import type { Servers } from './servers/servers.ts';
import type { Queryable } from './sql.ts';
import { beforeCommit, toNodeError } from './sql-errors.ts';

export type { Queryable } from './sql.ts';

export interface DatabaseOptions {
  url: string;
  poolMax: number;
  logger: Logger;
  applicationName?: string;
  /** Maximum milliseconds of one statement, after which its connection is destroyed. */
  statementTimeoutMs?: number;
  /** Statements of a tenant run as its own role, if the database has one or allows this process to create it. */
  tenantRoles?: boolean;
}

export class Database implements Queryable {
  readonly url: string;
  readonly #connections: Connections;
  readonly #limits: SessionLimits;
  readonly #options: DatabaseOptions;
  #statementTimeoutMs: number;
  readonly #roles: TenantRoles | undefined;
  /** Set in a view for one tenant. If undefined, statements run with the rights of the connection. */
  readonly #tenant: Schema | undefined;
  readonly #root: Database;
  readonly #views = new Map<Schema, Database>();
  /** Set in a view for a tenant on its node, in a cluster. */
  readonly #node: TenantNode | undefined;
  readonly #nodeViews = new WeakMap<TenantNode, Database>();
  #nodes: TenantNodes | undefined;
  readonly #session: TenantSession;

  /** `of`: a view of this database for one tenant (see `forTenant`), possibly on its node. */
  constructor(options: DatabaseOptions, of?: { root: Database; tenant?: Schema; node?: TenantNode }) {
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
    this.#node = of?.node;
    this.#connections = of
      ? (of.node?.connections ?? of.root.#connections)
      : new Connections({ url, poolMax, logger, applicationName, limits });
    // The roles of tenants cannot log in, so a cluster has none.
    if (of !== undefined) this.#roles = of.node === undefined ? of.root.#roles : undefined;
    else if (options.tenantRoles) this.#roles = new TenantRoles(this, logger);
    this.#session = new TenantSession({
      connections: this.#connections,
      limits,
      roles: this.#roles,
      tenant: this.#tenant,
      node: this.#node,
    });
  }

  /**
   * Returns a view for statements of one tenant. They run as the tenant's role, so that Postgres refuses a statement
   * that names another tenant's schema.
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

  /** True if the database is a Citus cluster. A statement then concerns one tenant, because each is on its own node. */
  get sharded(): boolean {
    return this.#connections.sharded;
  }

  /** In a cluster, a tenant's statement for its node, if one of the tenant has gone there. */
  onNode(schema: Schema, text: string): StatementOnNode | undefined {
    return this.#root.#nodes?.onNode(schema, text);
  }

  /** The database's time, estimated by this process. */
  now(): Date {
    return this.#connections.now();
  }

  async query<R extends object = Record<string, unknown>>(
    text: string,
    values: unknown[] = [],
    reuse?: Reuse,
  ): Promise<R[]> {
    const nodes = this.#connections.isKnown ? this.#tenantNodes() : await this.#findNodes();
    if (nodes === undefined) return this.#query<R>(text, values, reuse);
    return nodes.run(text, (node) => this.#on(node).#query<R>(text, values, reuse));
  }

  #query<R extends object>(text: string, values: unknown[], reuse?: Reuse): Promise<R[]> {
    return this.#withClient(this.#statementTimeoutMs, (client) => {
      if (this.#node !== undefined) return this.#session.sendGuarded<R>(client, this.#node, text, values, reuse);
      const isSingle = this.#session.isDirect(client) || !isCommand(text) || !this.#roles?.roleFor(this.#tenant, text);
      return isSingle
        ? this.#session.send<R>(client, text, values, reuse)
        : this.#inTransaction(client, {}, (tx) => tx.query<R>(text, values));
    });
  }

  /** Connects: before the first statement, which may be one of a tenant, it is not known whether this is a cluster. */
  async #findNodes(): Promise<TenantNodes | undefined> {
    await this.#connections.connect();
    return this.#tenantNodes();
  }

  /** The nodes of the tenants in a cluster. A view on a node has none. */
  #tenantNodes(): TenantNodes | undefined {
    if (!this.#connections.sharded) return undefined;
    const root = this.#root;
    const { url } = root.servers;
    const { poolMax, logger, applicationName = 'leasehold' } = root.#options;
    root.#nodes ??= new TenantNodes({ url, poolMax, logger, applicationName, limits: root.#limits }, (text, values) =>
      root.#query(text, values),
    );
    return root.#nodes;
  }

  /** Returns the view for a tenant on its node. Without one, the statement goes through the coordinator. */
  #on(node: TenantNode | undefined): Database {
    if (node === undefined) return this;
    let view = this.#nodeViews.get(node);
    if (view === undefined) {
      view = new Database(this.#options, { root: this.#root, node });
      this.#nodeViews.set(node, view);
    }
    return view;
  }

  /** Runs `work` in one transaction. Rolls back on any error, and never retries. */
  async transaction<T>(work: (tx: Queryable) => Promise<T>, options: TransactionOptions = {}): Promise<T> {
    const nodes = this.#connections.isKnown ? this.#tenantNodes() : await this.#findNodes();
    if (nodes === undefined) return this.#transaction(work, options);
    return nodes.runTransaction<T, Queryable>(work, (node, all) => this.#on(node).#transaction(all, options));
  }

  #transaction<T>(work: (tx: Queryable) => Promise<T>, options: TransactionOptions): Promise<T> {
    const timeoutMs = options.timeoutMs ?? this.#statementTimeoutMs;
    return this.#withClient(timeoutMs, (client) => this.#inTransaction(client, options, work));
  }

  #inTransaction<T>(
    client: pg.PoolClient,
    options: TransactionOptions,
    work: (tx: Queryable) => Promise<T>,
  ): Promise<T> {
    return this.#session.rollingBack(client, async (track) => {
      const result = await beforeCommit(async () => {
        await this.#session.begin(client, options);
        return work({
          query: <R extends object>(text: string, values: unknown[] = [], reuse?: Reuse) => {
            const kept = options.keepsPlans || reuse ? 'prepared' : undefined;
            const send = () => track(this.#session.send<R>(client, text, values, kept, 'transaction'));
            const asked = this.#node === undefined ? this.#root.#nodes?.refuseIfSilent(text) : undefined;
            return asked === undefined ? send() : asked.then(send);
          },
        });
      });
      await client.query('COMMIT');
      return result;
    });
  }

  /**
   * Runs a transaction in two round trips. `prepare` sends its first statements together with the BEGIN, and returns a
   * function that sends the last ones together with the COMMIT. If the BEGIN fails, the first statements run without a
   * transaction and `prepare` gets no answer, so they must be harmless alone.
   */
  async transactionInTwoFlights<T>(
    prepare: (tx: Queryable) => Promise<(tx: Queryable) => Promise<T>>,
    options: TransactionOptions = {},
  ): Promise<T> {
    if (this.sharded) return this.transaction(async (tx) => (await prepare(tx))(tx), options);
    return this.#withClient(options.timeoutMs ?? this.#statementTimeoutMs, (client) =>
      this.#session.rollingBack(client, async (track) => {
        const send: Queryable['query'] = (text, values = [], reuse) =>
          track(this.#session.send(client, text, values, reuse && 'prepared', 'transaction'));
        const finish = await beforeCommit(async () => {
          const begun = this.#session.begin(client, { ...options, keepsPlans: true });
          const prepared = prepare({
            query: async <R extends object>(...given: Parameters<typeof send>) => {
              const [rows] = await Promise.all([send<R>(...given), begun]);
              return rows;
            },
          });
          return (await Promise.all([prepared, begun]))[0];
        });
        return this.#commitWith(client, send, finish);
      }),
    );
  }

  /**
   * Runs a transaction whose statements do not need each other's results. They are sent together with their COMMIT, so
   * that the server holds no lock while it waits for the client. `send` must send all of them before it awaits. If one
   * fails, the server refuses the following ones and the COMMIT rolls back. An error in `send` itself does not roll
   * back, so prepare everything before.
   */
  async pipelinedTransaction<T>(send: (tx: Queryable) => Promise<T>): Promise<T> {
    const nodes = this.#connections.isKnown ? this.#tenantNodes() : await this.#findNodes();
    if (nodes === undefined) return this.#pipelinedTransaction(send);
    return nodes.runTransaction<T, Queryable>(send, (node, all) => this.#on(node).#pipelinedTransaction(all));
  }

  #pipelinedTransaction<T>(send: (tx: Queryable) => Promise<T>): Promise<T> {
    return this.#withClient(this.#statementTimeoutMs, (client) =>
      this.#session.rollingBack(client, async (track) => {
        // Awaited, because without BEGIN each of the others would be its own transaction.
        await this.#session.begin(client, { keepsPlans: true });
        const query: Queryable['query'] = (text, values = [], reuse) =>
          track(this.#session.send(client, text, values, reuse && 'prepared', 'transaction'));
        return this.#commitWith(client, query, send);
      }),
    );
  }

  /** Sends the COMMIT after the statements of `send`, and waits for all answers. */
  async #commitWith<T>(
    client: pg.PoolClient,
    query: Queryable['query'],
    send: (tx: Queryable) => Promise<T>,
  ): Promise<T> {
    let sent = false;
    const answers = send({
      query: async <R extends object>(text: string, values?: unknown[], reuse?: Reuse) => {
        if (sent) throw new Error('a statement came after the COMMIT of its transaction');
        return query<R>(text, values, reuse);
      },
    });
    sent = true;
    const [result] = await Promise.all([answers, client.query('COMMIT')]);
    return result;
  }

  async close(): Promise<void> {
    await this.#root.#nodes?.close();
    if (!this.pool.ended) await this.pool.end();
  }

  async #withClient<T>(timeoutMs: number, work: (client: pg.PoolClient) => Promise<T>): Promise<T> {
    if (this.#tenant !== undefined) await this.#roles?.prepare(this.#tenant);
    if (this.#node === undefined) return this.#connections.use(timeoutMs, work);
    return this.#node.watch
      .use(() => this.#connections.use(timeoutMs, work))
      .catch((error: unknown) => {
        throw toNodeError(error);
      });
  }
}
