// The database and the ways to use it: one statement, a transaction, a pipelined transaction. Classifies errors, and
// retries only transactions that certainly did not happen. Callers own their SQL.
import type pg from 'pg';
import type { Logger } from '../kernel/logger.ts';
import { Connections } from './connections/connections.ts';
import type { Reuse } from './connections/prepared-statements.ts';
import { idleInTransactionMs, lockTimeoutMs, type SessionLimits } from './connections/session-limits.ts';
import { TenantRoles } from './connections/tenant-roles.ts';
import { isCommand, serverTimeoutMs, TenantSession, type TransactionOptions } from './connections/tenant-session.ts';
import { DeferredStatements } from './deferred-statements.ts';
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

// A socket takes this much at once. Without BEGIN the server has no limit for the wait for the rest of a message, and a
// client that is frozen in the middle would keep the locks of the statements before.
const maxFlightSize = 16_384;

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
   * Runs a transaction whose statements do not need each other's results. They are sent together, so that the server
   * holds no lock while it waits for the client. `send` must send all of them before it awaits; nothing is sent before
   * it has. If one fails, the server refuses the following ones and rolls back.
   */
  async pipelinedTransaction<T>(
    send: (tx: Queryable) => Promise<T>,
    options: Pick<TransactionOptions, 'lockTimeoutMs'> = {},
  ): Promise<T> {
    const nodes = this.#connections.isKnown ? this.#tenantNodes() : await this.#findNodes();
    if (nodes === undefined) return this.#pipelinedTransaction(send, options);
    return nodes.runTransaction<T, Queryable>(send, (node, all) => this.#on(node).#pipelinedTransaction(all, options));
  }

  async #pipelinedTransaction<T>(send: (tx: Queryable) => Promise<T>, options: TransactionOptions): Promise<T> {
    const statements = new DeferredStatements();
    const result = send(statements);
    // It may fail before anybody waits for it.
    result.catch(() => {});
    try {
      await this.#withClient(this.#statementTimeoutMs, (client) => {
        const isFlight = !this.#connections.sharded && statements.size <= maxFlightSize;
        return isFlight ? this.#fly(client, statements, options) : this.#sendWithCommit(client, statements, options);
      });
    } catch (error) {
      statements.fail(error);
      await result.catch(() => {});
      throw error;
    }
    return result;
  }

  async #fly(client: pg.PoolClient, statements: DeferredStatements, options: TransactionOptions): Promise<void> {
    const all = statements.take();
    const answers = await this.#session.sendTogether(client, all, options).catch((error: unknown) => {
      for (const one of all) one.reject(error);
      throw error;
    });
    for (const [n, one] of all.entries()) one.resolve(answers[n]);
  }

  /** Between BEGIN and COMMIT, where the server limits how long it waits for the rest of a large message. */
  #sendWithCommit(client: pg.PoolClient, statements: DeferredStatements, options: TransactionOptions): Promise<void> {
    return this.#session.rollingBack(client, async (track) => {
      // Awaited, because without BEGIN each of the others would be its own transaction.
      await this.#session.begin(client, { ...options, keepsPlans: true });
      const answers = statements.take().map(({ text, values, reuse, resolve, reject }) => {
        const answer = track(this.#session.send(client, text, values, reuse && 'prepared', 'transaction'));
        answer.then(resolve, reject);
        return answer;
      });
      await Promise.all([...answers, client.query('COMMIT')]);
    });
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
