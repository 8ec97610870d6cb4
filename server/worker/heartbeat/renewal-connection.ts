// The connection of the heartbeat thread, which renews leases under the role of their tenant. A connection that does
// not answer is destroyed, and the next renewal opens another.
import '../../database/connections/navigator.ts';
import type pg from 'pg';
import { Flight } from '../../database/connections/flight.ts';
import { idleInTransactionMs, keepAliveAfterMs, openSession } from '../../database/connections/session-limits.ts';
import { createTypeParsers } from '../../database/connections/value-formats.ts';
import { guardError, TenantMoved } from '../../database/nodes/placements.ts';
import type { StatementOnNode } from '../../database/nodes/tenant-nodes.ts';
import { clientOf, Servers } from '../../database/servers/servers.ts';
import { isNodeError } from '../../database/sql-errors.ts';
import { type LiveJob, type LiveRow, renewStatement, toLiveJob } from '../../jobs/claim/lease.ts';

/** The role with which the connection was opened. */
const noRole = 'none';

export interface RenewalOptions {
  url: string;
  leaseSeconds: number;
  timeoutMs: number;
}

export class RenewalConnection {
  readonly #options: RenewalOptions;
  readonly #servers: Servers;
  readonly #Client: typeof pg.Client;
  #client: pg.Client | undefined;
  /** There is no pooler, so session settings stay. */
  #isDirect = false;
  #currentRole = noRole;
  readonly #roles: Map<string, string>;

  /** `roles`: schema → role, quoted. */
  constructor(options: RenewalOptions, roles: Map<string, string>) {
    this.#options = options;
    this.#roles = roles;
    this.#servers = new Servers(options.url);
    this.#Client = clientOf(this.#servers);
  }

  /** Renews the leases and returns the jobs that they still own. `moved`: the tenant has left the node of `onNode`. */
  async renew(
    schema: string,
    leaseIds: readonly string[],
    onNode: StatementOnNode | undefined,
  ): Promise<LiveJob[] | 'moved'> {
    const { text, values } = renewStatement(schema, leaseIds, this.#options.leaseSeconds);
    try {
      const rows = onNode
        ? await this.#queryOnNode<LiveRow>(onNode, values)
        : await this.#query<LiveRow>(schema, text, values);
      return rows.map(toLiveJob);
    } catch (error) {
      if (error instanceof TenantMoved) return 'moved';
      // The server that answered is not the one that is down.
      if (!isNodeError(error)) await this.disconnect();
      throw error;
    }
  }

  async disconnect(): Promise<void> {
    const old = this.#client;
    this.#client = undefined;
    this.#servers.suspect();
    await old?.end().catch(() => {});
  }

  #query<R extends object>(schema: string, text: string, values: unknown[]): Promise<R[]> {
    return this.#within(async (using) => {
      const hasBegun = await this.#assumeRole(using, schema);
      const { rows } = await using.query<R>(text, values);
      if (hasBegun) await using.query('commit');
      return rows;
    });
  }

  /** There tenants have no roles. */
  #queryOnNode<R extends object>({ guard, text }: StatementOnNode, values: unknown[]): Promise<R[]> {
    return this.#within(async (using) => {
      const flight = new Flight([...guard.map((each) => ({ text: each })), { text, values }]);
      using.query(flight as unknown as pg.Submittable);
      const results = await flight.results.catch((error: unknown) => {
        throw flight.answered >= guard.length ? error : guardError(error);
      });
      return (results.at(-1) as pg.QueryResult<R>).rows;
    });
  }

  async #within<T>(work: (using: pg.Client) => Promise<T>): Promise<T> {
    this.#client ??= await this.#connect();
    const using = this.#client;
    // A connection that does not answer is destroyed while there is time for another try.
    const timeout = setTimeout(
      () => (using as unknown as { connection: { stream: { destroy(): void } } }).connection.stream.destroy(),
      this.#options.timeoutMs,
    );
    try {
      return await work(using);
    } finally {
      clearTimeout(timeout);
    }
  }

  /**
   * Sets the tenant's role for the session or, behind a pooler, for a transaction; returns true for a transaction. Uses
   * no role if it does not exist any more.
   */
  async #assumeRole(using: pg.Client, schema: string): Promise<boolean> {
    const role = this.#roles.get(schema) ?? noRole;
    const isDirect = this.#isDirect;
    if (isDirect ? role === this.#currentRole : role === noRole) return false;
    try {
      await using.query(isDirect ? `set role ${role}` : `begin; set local role ${role}`);
      if (isDirect) this.#currentRole = role;
      return !isDirect;
    } catch {
      this.#currentRole = noRole;
      await using.query(isDirect ? 'set role none' : 'rollback');
      return false;
    }
  }

  async #connect(): Promise<pg.Client> {
    const { timeoutMs } = this.#options;
    const fresh = new this.#Client({
      connectionString: this.#servers.url,
      connectionTimeoutMillis: timeoutMs,
      keepAlive: true,
      keepAliveInitialDelayMillis: keepAliveAfterMs,
      application_name: 'leasehold-heartbeat',
      types: createTypeParsers(),
    });
    fresh.on('error', () => {});
    fresh.on('end', () => {
      if (this.#client === fresh) this.#client = undefined;
    });
    await fresh.connect();
    const limits = { statementMs: timeoutMs, lockMs: timeoutMs, idleInTransactionMs };
    this.#isDirect = (await openSession(fresh, limits, { mayName: false })).direct;
    this.#currentRole = noRole;
    return fresh;
  }
}
