// The connection pool of a process. Connects to the server that accepts writes, sets the limits of each session, and
// drops connections to a server that is no longer used.
import pg from 'pg';
import { errorMessage } from '../../kernel/errors.ts';
import type { Logger } from '../../kernel/logger.ts';
import { Availability } from '../servers/availability.ts';
import { clientOf, Servers } from '../servers/servers.ts';
import {
  hideValues,
  isDatabaseLost,
  isStatementGone,
  isWriteError,
  readOnlyState,
  sqlState,
  timedOutMessage,
} from '../sql-errors.ts';
import { Statements } from './prepared-statements.ts';
import { keepAliveAfterMs, openSession, type SessionLimits } from './session-limits.ts';
import { createTypeParsers, JsonValues } from './value-formats.ts';

export interface ConnectionsOptions {
  url: string;
  poolMax: number;
  logger: Logger;
  applicationName: string;
  limits: SessionLimits;
  /** A node of a cluster. Statements on it name shards, so Postgres plans them without Citus. */
  isNode?: boolean;
}

export class Connections {
  readonly pool: pg.Pool;
  readonly servers: Servers;
  readonly json = new JsonValues();
  readonly #limits: SessionLimits;
  readonly #isNode: boolean;
  readonly #availability: Availability;
  readonly #logger: Logger;
  /** True if the database is a Citus cluster; undefined until the first connection. */
  #sharded: boolean | undefined;
  #clock: { serverTimeMs: number; readAt: number } | undefined;
  readonly #statements = new WeakMap<pg.PoolClient, Statements>();
  /** False after a pooler that kept named statements at first has lost one. */
  #mayNameBehindPooler = true;
  readonly #generations = new WeakMap<pg.PoolClient, number>();
  readonly #inUse = new Set<pg.PoolClient>();

  constructor(options: ConnectionsOptions) {
    this.#limits = options.limits;
    this.#isNode = options.isNode ?? false;
    this.#availability = new Availability(options.logger);
    this.#logger = options.logger;
    this.servers = new Servers(options.url);
    this.pool = new pg.Pool({
      connectionString: this.servers.url,
      Client: clientOf(this.servers) as never,
      max: options.poolMax,
      idleTimeoutMillis: 30_000,
      connectionTimeoutMillis: 10_000,
      keepAlive: true,
      keepAliveInitialDelayMillis: keepAliveAfterMs,
      application_name: options.applicationName,
      types: createTypeParsers(this.json.parse),
      // Sends a statement without waiting for the result of the previous one.
      pipeline: true,
      onConnect: (client) => this.#opened(client as pg.PoolClient),
    });
    // Without a listener a dropped idle connection ends the process. A pool that is closing expects to lose them: a
    // server that stops at the same time may end them first.
    this.pool.on('error', (error) => {
      if (!this.pool.ending) this.#lost(error);
    });
  }

  get sharded(): boolean {
    return this.#sharded === true;
  }

  /** True after the first connection, which shows whether the database is a cluster. */
  get isKnown(): boolean {
    return this.#sharded !== undefined;
  }

  /** Opens a connection, which stays in the pool. */
  async connect(): Promise<void> {
    (await this.#take()).release();
  }

  /** The database's time, estimated by this process. Before the first connection, the time of the process. */
  now(): Date {
    if (this.#clock === undefined) return new Date();
    return new Date(this.#clock.serverTimeMs + performance.now() - this.#clock.readAt);
  }

  /** Runs `work` with a connection for at most `timeoutMs`. Drops the connection if it can no longer be used. */
  async use<T>(timeoutMs: number, work: (client: pg.PoolClient) => Promise<T>): Promise<T> {
    const client = await this.#take();
    this.#inUse.add(client);
    // A statement that never answers (a black-holed connection) must not keep a pool slot: the
    // socket is destroyed, which rejects the statement and drops the client from the pool.
    let timedOut = false;
    const timer = setTimeout(() => {
      timedOut = true;
      destroy(client);
    }, timeoutMs);
    let broken = false;
    try {
      return await work(client);
    } catch (error) {
      hideValues(error);
      const isLost = timedOut || isDatabaseLost(error);
      broken = isLost || isStatementGone(error);
      if (isLost) this.#lost(error);
      if (isStatementGone(error)) this.#statementGone(client, error);
      if (isWriteError(error)) broken = this.#cannotWrite(error) || broken;
      throw error;
    } finally {
      clearTimeout(timer);
      this.#inUse.delete(client);
      client.release(broken);
    }
  }

  /** The server does not answer: ends all statements in progress. */
  destroyUsed(): void {
    for (const client of this.#inUse) destroy(client);
  }

  async #take(): Promise<pg.PoolClient> {
    try {
      for (;;) {
        const client = await this.pool.connect();
        if (this.#generations.get(client) === this.servers.generation) return client;
        // The server of this connection is no longer used.
        client.release(true);
      }
    } catch (error) {
      // If every connection is in use, or the pool is closed, the database is not at fault.
      const isOurs = /^timeout exceeded when|^Cannot use a pool/.test(errorMessage(error));
      if (!isOurs) this.#availability.connectFailed(error);
      throw error;
    }
  }

  statementsOf(client: pg.PoolClient): Statements | undefined {
    return this.#statements.get(client);
  }

  /** True if the connection must be dropped, because its server may have become a standby. */
  #cannotWrite(error: unknown): boolean {
    this.#availability.writeFailed(error);
    if (!this.servers.isChosen || sqlState(error) !== readOnlyState) return false;
    this.servers.suspect();
    return true;
  }

  /** Behind a pooler a new connection may lead to the same server process, with the same statements. */
  #statementGone(client: pg.PoolClient, error: unknown): void {
    if (this.#statements.get(client)?.direct !== false || !this.#mayNameBehindPooler) return;
    this.#mayNameBehindPooler = false;
    this.#logger.warn(
      { err: error },
      'the pooler lost a prepared statement; none are used behind it until the restart',
    );
  }

  /** A connection broke, idle or in use. */
  #lost(error: unknown): void {
    this.servers.suspect();
    this.#availability.connectionLost(error);
  }

  async #opened(client: pg.PoolClient): Promise<void> {
    // Without a listener, an error of a connection in use would end the process.
    client.on('error', () => {});
    // Read before the first await, because the server may change later.
    this.#generations.set(client, this.servers.generation);
    const { sharded: hasNodes, ...facts } = await openSession(client, this.#limits, {
      mayName: this.#mayNameBehindPooler,
    });
    const sharded = hasNodes && !this.#isNode;
    this.#sharded = sharded;
    this.#statements.set(client, new Statements(client, { ...facts, sharded }));
    this.#clock = facts;
    this.#availability.connected();
  }
}

/** Destroys the socket, which rejects the statements in progress. */
function destroy(client: pg.PoolClient): void {
  (client as unknown as { connection: { stream: { destroy(e: Error): void } } }).connection.stream.destroy(
    new Error(timedOutMessage),
  );
}
