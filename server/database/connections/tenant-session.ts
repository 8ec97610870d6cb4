// Sends statements on a connection: under the tenant's role, on its node by the names of its shards, and in
// transactions that begin with the limits of the session and roll back on any error.
import type pg from 'pg';
import type { Schema } from '../identifiers.ts';
import { forCoordinator, guardError, guarded } from '../nodes/placements.ts';
import type { TenantNode } from '../nodes/tenant-nodes.ts';
import { sqlState, transactionFailed } from '../sql-errors.ts';
import type { Connections } from './connections.ts';
import type { Flight } from './flight.ts';
import type { Reuse, Statements, TogetherStatement } from './prepared-statements.ts';
import { beginWith, type SessionLimits, settingsQuery } from './session-limits.ts';
import { ownRole, type TenantRoles } from './tenant-roles.ts';

export interface TransactionOptions {
  /** Maximum milliseconds of the whole transaction; then its connection is destroyed. */
  timeoutMs?: number;
  /** Maximum milliseconds that one of its statements waits for a lock; zero waits without limit. */
  lockTimeoutMs?: number;
  /**
   * Maximum milliseconds between two of its statements. Longer than usual only where it holds no lock that others need.
   */
  idleTimeoutMs?: number;
  /** Parses and plans each statement once per connection. For frequent statements that find their rows by keys. */
  keepsPlans?: boolean;
}

export interface TenantSessionOptions {
  connections: Connections;
  limits: SessionLimits;
  roles: TenantRoles | undefined;
  tenant: Schema | undefined;
  node: TenantNode | undefined;
}

export class TenantSession {
  readonly #connections: Connections;
  readonly #limits: SessionLimits;
  readonly #roles: TenantRoles | undefined;
  readonly #tenant: Schema | undefined;
  readonly #node: TenantNode | undefined;

  constructor(options: TenantSessionOptions) {
    this.#connections = options.connections;
    this.#limits = options.limits;
    this.#roles = options.roles;
    this.#tenant = options.tenant;
    this.#node = options.node;
  }

  isDirect(client: pg.PoolClient): boolean {
    return this.#connections.statementsOf(client)?.direct === true;
  }

  /** Rolls back on an error and throws the first one; later statements only report that the transaction failed. */
  async rollingBack<T>(
    client: pg.PoolClient,
    work: (track: <A>(answer: Promise<A>) => Promise<A>) => Promise<T>,
  ): Promise<T> {
    let first: unknown;
    const roleBefore = this.isDirect(client) ? this.#roleOfTransaction() : ownRole;
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
      if (!this.isDirect(client)) this.#roles?.restore(client, ownRole);
    }
  }

  /** Switches the role before the BEGIN, so that a rollback does not undo it; behind a pooler, after the BEGIN. */
  async begin(client: pg.PoolClient, options: TransactionOptions): Promise<void> {
    const role = this.#roleOfTransaction();
    if (this.isDirect(client)) this.#roles?.switchTo(client, role, 'session');
    // Before the BEGIN, because a rollback would undo it. It stays set: to set it in each transaction, and to undo it
    // before and after, took a fifth of the statements of short ones.
    const statements = this.#connections.statementsOf(client);
    options.keepsPlans ? statements?.keepPlans() : statements?.planAnew();
    const begun = this.#sendBegin(client, options);
    if (!this.isDirect(client)) this.#roles?.switchTo(client, role, 'transaction');
    await begun;
  }

  /** On a node, where tenants have no roles: sends the guard and a statement in one transaction and one flight. */
  async sendGuarded<R extends object>(
    client: pg.PoolClient,
    { guard, rename }: TenantNode,
    text: string,
    values: unknown[],
    reuse: Reuse | undefined,
  ): Promise<R[]> {
    const flight = this.#statementsOf(client).queryGuarded(guard, rename(text), values, reuse);
    return this.#rowsOf<R>(lastOf(flight)).catch((error: unknown) => {
      throw flight.answered >= guard.length ? error : guardError(error);
    });
  }

  /** Sends the statements as one transaction, in one flight. Their plans are kept. Not through Citus. */
  async sendTogether(
    client: pg.PoolClient,
    given: readonly TogetherStatement[],
    { lockTimeoutMs: lockMs }: Pick<TransactionOptions, 'lockTimeoutMs'>,
  ): Promise<object[][]> {
    const role = this.#roleOfTransaction();
    const statements = this.#statementsOf(client);
    const isDirect = this.isDirect(client);
    if (isDirect) this.#roles?.switchTo(client, role, 'session');
    const ownLimits = lockMs === undefined ? {} : { lockMs };
    const limits = isDirect ? ownLimits : { ...this.#limits, ...ownLimits };
    const localRole = isDirect || role === ownRole ? undefined : role;
    const settings = settingsQuery(limits, localRole, statements.planSettings('keepPlan'));
    const guard = [...(settings === undefined ? [] : [settings]), ...(this.#node?.guard ?? [])];
    const sent = given.map((one) => ({ ...one, text: this.#node?.rename(one.text) ?? one.text }));
    const flight = statements.queryTogether(guard, sent);
    try {
      const results = await flight.results;
      return await Promise.all(results.slice(guard.length).map((result) => this.#rowsOf(result)));
    } catch (error) {
      const hasPassed = flight.answered >= guard.length;
      if (!hasPassed && localRole !== undefined) this.#roles?.refused(localRole);
      throw hasPassed || this.#node === undefined ? error : guardError(error);
    }
  }

  async #sendBegin(client: pg.PoolClient, options: TransactionOptions): Promise<void> {
    const begun = client.query(this.#beginOf(client, options));
    if (this.#node === undefined) await begun;
    else await guarded([begun, ...this.#node.guard.map((text) => this.#statementsOf(client).queryFixed(text))]);
  }

  #statementsOf(client: pg.PoolClient): Statements {
    return this.#connections.statementsOf(client) as Statements;
  }

  #roleOfTransaction(): string {
    return this.#roles?.roleFor(this.#tenant) ?? ownRole;
  }

  /** A direct connection already has the default limits. */
  #beginOf(client: pg.PoolClient, options: TransactionOptions): string {
    const { timeoutMs, lockTimeoutMs: lockMs, idleTimeoutMs } = options;
    const own = {
      ...(timeoutMs !== undefined && { statementMs: serverTimeoutMs(timeoutMs) }),
      ...(lockMs !== undefined && { lockMs }),
      ...(idleTimeoutMs !== undefined && { idleInTransactionMs: idleTimeoutMs }),
    };
    if (this.isDirect(client)) return beginWith(own);
    const plans = this.#connections.statementsOf(client)?.planSettings(options.keepsPlans ? 'keepPlan' : 'prepared');
    return beginWith({ ...this.#limits, ...own }, plans);
  }

  async send<R extends object>(
    client: pg.PoolClient,
    text: string,
    values: unknown[],
    reuse: Reuse | undefined,
    within?: 'transaction',
  ): Promise<R[]> {
    const role = this.#roles?.roleFor(this.#tenant, text);
    const isSession = this.isDirect(client);
    // Behind a pooler, a single statement is sent with its role and limits, unless it is a command.
    if (role !== undefined && (isSession || within)) {
      this.#roles?.switchTo(client, role, isSession ? 'session' : 'transaction');
    }
    const statements = this.#connections.statementsOf(client);
    const sent = this.#node?.rename(text) ?? (this.#connections.sharded ? forCoordinator(text) : text);
    if (statements === undefined) return this.#rowsOf(client.query<R>(sent, values));
    const needsSettings = role || mayWaitForLocks(text) || (statements.keepsNames && reuse !== undefined);
    if (within === undefined && !isSession && needsSettings && !isCommand(text)) {
      return this.#sendWithSettings<R>(statements, role || undefined, sent, values, reuse);
    }
    return this.#rowsOf(
      within ? statements.queryWithin<R>(sent, values, reuse) : statements.query<R>(sent, values, reuse),
    );
  }

  /** Sends the role and the limits of a single statement before it, in one transaction and one flight. */
  async #sendWithSettings<R extends object>(
    statements: Statements,
    role: string | undefined,
    text: string,
    values: unknown[],
    reuse: Reuse | undefined,
  ): Promise<R[]> {
    const settings = settingsQuery(this.#limits, role, statements.planSettings(reuse)) ?? '';
    const flight = statements.queryGuarded([settings], text, values, reuse);
    return this.#rowsOf<R>(lastOf(flight)).catch((error: unknown) => {
      if (flight.answered === 0 && role !== undefined) this.#roles?.refused(role);
      throw error;
    });
  }

  async #rowsOf<R extends object>(answer: Promise<pg.QueryResult<R>> | pg.QueryResult<R>): Promise<R[]> {
    const { rows } = await answer;
    const { json } = this.#connections;
    return json.isComplete ? rows : json.complete(rows);
  }
}

async function lastOf(flight: Flight): Promise<pg.QueryResult> {
  return (await flight.results).at(-1) as pg.QueryResult;
}

/**
 * Returns true for a command. Some commands must be alone in their transaction, so they get neither role nor limits.
 */
export function isCommand(text: string): boolean {
  return !/^\s*(?:with|select|insert|update|delete)\b/i.test(text);
}

/** Returns true for a statement that locks rows. */
function mayWaitForLocks(text: string): boolean {
  return /\b(?:insert|update|delete|for share)\b/i.test(text);
}

/** The server times out slightly before the client, so that it is certain that nothing happened. */
export function serverTimeoutMs(timeoutMs: number): number {
  return Math.ceil(timeoutMs * 0.95);
}
