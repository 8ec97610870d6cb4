// Which tenants have a role of their own in the database, and as which role each connection runs now. A connection
// switches only when the next statement needs another role, in the same round trip; it keeps the role until then.
import type pg from 'pg';
import type { Logger } from '../../kernel/logger.ts';
import { controlSchema, type Schema } from '../identifiers.ts';
import { isConnectionError, isTransient, sqlState, transactionFailed } from '../sql-errors.ts';
import {
  createTenantRole,
  dropTenantRole,
  quoteRole,
  type RoleDatabase,
  readTenantRole,
  tenantRoleName,
} from '../tenant-role.ts';

/** The role with which the connection was opened. */
export const ownRole = '';
const unknownRole = '?';

/** How every statement on a tenant's tables names them. */
const tenantPrefix = '"tenant_';

export class TenantRoles {
  readonly #db: RoleDatabase;
  readonly #logger: Logger;
  /** Quoted. `ownRole`: the tenant has none that can be used. */
  readonly #known = new Map<Schema, string>();
  readonly #preparing = new Map<Schema, Promise<void>>();
  readonly #current = new WeakMap<pg.PoolClient, string>();
  #isReported = false;
  #databaseName: string | undefined;

  /** `db` is not for a tenant: roles are created with the rights of the connection. */
  constructor(db: RoleDatabase, logger: Logger) {
    this.#db = db;
    this.#logger = logger;
  }

  /** The role of a tenant whose statements already ran, quoted; undefined if they run without. */
  of(schema: Schema): string | undefined {
    return this.#known.get(schema) || undefined;
  }

  /** The role that a statement for the tenant needs; undefined: any. Without a text, that of most of its statements. */
  roleFor(tenant: Schema | undefined, text = tenantPrefix): string | undefined {
    if (tenant === undefined) return ownRole;
    if (text.includes(tenantPrefix)) return this.#known.get(tenant) ?? ownRole;
    return text.includes(controlSchema) ? ownRole : undefined;
  }

  /** Finds or creates the role at the first use of the tenant. Where that is not possible, its statements run without. */
  async prepare(schema: Schema): Promise<void> {
    if (this.#known.has(schema)) return;
    let preparing = this.#preparing.get(schema);
    if (preparing === undefined) {
      preparing = this.#prepare(schema).finally(() => this.#preparing.delete(schema));
      this.#preparing.set(schema, preparing);
    }
    await preparing;
  }

  async #prepare(schema: Schema): Promise<void> {
    try {
      this.#known.set(schema, await this.#findOrCreate(schema));
    } catch (error) {
      // Nothing is known about the rights: the next statement tries again.
      if (isConnectionError(error) || isTransient(error) || sqlState(error) === undefined) throw error;
      this.#known.set(schema, ownRole);
      this.#report(error);
    }
  }

  /** Whether the role is there with its rights, and this connection may use it. Changes nothing. */
  async isReady(schema: Schema): Promise<boolean> {
    const facts = await readTenantRole(this.#db, schema, await this.#nameOf(schema));
    return (facts?.usable && facts.granted) ?? false;
  }

  async #findOrCreate(schema: Schema): Promise<string> {
    const name = await this.#nameOf(schema);
    // A cluster connects to its nodes as the current role, and a tenant's may not log in.
    if (this.#db.sharded) return ownRole;
    const facts = await readTenantRole(this.#db, schema, name);
    if (facts === undefined) return ownRole;
    if (!facts.usable || !facts.granted) await createTenantRole(this.#db, schema, name);
    return quoteRole(name);
  }

  /** The tenant's schema is gone. */
  async drop(schema: Schema): Promise<void> {
    this.#known.delete(schema);
    const name = await this.#nameOf(schema);
    if (!this.#db.sharded) await dropTenantRole(this.#db, name);
  }

  async #nameOf(schema: Schema): Promise<string> {
    this.#databaseName ??= (await this.#db.query<{ name: string }>('select current_database() as name'))[0]?.name;
    return tenantRoleName(this.#databaseName ?? '', schema);
  }

  roleOf(client: pg.PoolClient): string {
    return this.#current.get(client) ?? ownRole;
  }

  /** The transaction that changed it was rolled back, or has ended behind a pooler. */
  restore(client: pg.PoolClient, role: string): void {
    this.#current.set(client, role);
  }

  /** Sends the switch and does not wait for it: the server runs it before the statement that is sent next. */
  switchTo(client: pg.PoolClient, role: string, scope: 'session' | 'transaction'): void {
    if (this.roleOf(client) === role) return;
    this.#current.set(client, role);
    const local = scope === 'transaction' ? 'local ' : '';
    client.query(`set ${local}role ${role === ownRole ? 'none' : role}`).catch((error: unknown) => {
      if (sqlState(error) === transactionFailed) return;
      // It was dropped, or taken from us. The statement that follows has its own answer.
      this.#current.set(client, unknownRole);
      for (const [schema, known] of this.#known) if (known === role) this.#known.delete(schema);
    });
  }

  #report(error: unknown): void {
    if (this.#isReported) return;
    this.#isReported = true;
    this.#logger.warn(
      { err: error },
      'tenants have no roles of their own in the database: run `leasehold migrate` once with a role that may create roles, or set TENANT_ROLES=false',
    );
  }
}
