// Tracks which tenants have a database role, and the current role of each connection. A connection switches roles only
// when the next statement needs another one, in the same round trip.
import { createHash } from 'node:crypto';
import type pg from 'pg';
import type { Logger } from '../../kernel/logger.ts';
import { controlSchema, type Schema } from '../identifiers.ts';
import { type Queryable, runQuery } from '../sql.ts';
import { isConnectionError, isTransient, sqlState, transactionFailed } from '../sql-errors.ts';

/** The role with which the connection was opened. */
export const ownRole = '';
const unknownRole = '?';

/** Matches the tables in statements of a tenant. */
const tenantPrefix = '"tenant_';

export class TenantRoles {
  readonly #db: RoleDatabase;
  readonly #logger: Logger;
  /** The quoted role, or `ownRole` if the tenant has no usable role. */
  readonly #known = new Map<Schema, string>();
  readonly #preparing = new Map<Schema, Promise<void>>();
  readonly #current = new WeakMap<pg.PoolClient, string>();
  #isReported = false;
  #databaseName: string | undefined;

  /** `db` is not for a tenant, because roles are created with the rights of the connection. */
  constructor(db: RoleDatabase, logger: Logger) {
    this.#db = db;
    this.#logger = logger;
  }

  /** Returns the quoted role of a tenant whose statements already ran; undefined if they run without one. */
  of(schema: Schema): string | undefined {
    return this.#known.get(schema) || undefined;
  }

  /**
   * Returns the role that a statement of the tenant needs; undefined for any. Without a text, returns the role of most
   * of its statements.
   */
  roleFor(tenant: Schema | undefined, text = tenantPrefix): string | undefined {
    if (tenant === undefined) return ownRole;
    if (text.includes(tenantPrefix)) return this.#known.get(tenant) ?? ownRole;
    return text.includes(controlSchema) ? ownRole : undefined;
  }

  /**
   * Finds or creates the role at the first use of the tenant. If that is not possible, its statements run without a
   * role.
   */
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
      // The rights are unknown, so the next statement tries again.
      if (isConnectionError(error) || isTransient(error) || sqlState(error) === undefined) throw error;
      this.#known.set(schema, ownRole);
      this.#report(error);
    }
  }

  /** Checks, without changes, that the role exists with its rights and that this connection may use it. */
  async isReady(schema: Schema): Promise<boolean> {
    const facts = await readTenantRole(this.#db, schema, await this.#nameOf(schema));
    return (facts?.usable && facts.granted) ?? false;
  }

  async #findOrCreate(schema: Schema): Promise<string> {
    const name = await this.#nameOf(schema);
    // A cluster connects to its nodes as the current role, and the role of a tenant cannot log in.
    if (this.#db.sharded) return ownRole;
    const facts = await readTenantRole(this.#db, schema, name);
    if (facts === undefined) return ownRole;
    if (!facts.usable || !facts.granted) await createTenantRole(this.#db, schema, name);
    return quoteRole(name);
  }

  /** The tenant's schema was deleted. */
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

  /** The transaction that changed the role was rolled back, or has ended behind a pooler. */
  restore(client: pg.PoolClient, role: string): void {
    this.#current.set(client, role);
  }

  /** Sends the switch without waiting for it: the server runs it before the next statement. */
  switchTo(client: pg.PoolClient, role: string, scope: 'session' | 'transaction'): void {
    if (this.roleOf(client) === role) return;
    this.#current.set(client, role);
    const local = scope === 'transaction' ? 'local ' : '';
    client.query(`set ${local}role ${role === ownRole ? 'none' : role}`).catch((error: unknown) => {
      if (sqlState(error) === transactionFailed) return;
      // The following statement reports its own result.
      this.#current.set(client, unknownRole);
      this.refused(role);
    });
  }

  /** The role was dropped, or may no longer be used: the next statement of its tenant finds or creates it again. */
  refused(role: string): void {
    for (const [schema, known] of this.#known) if (known === role) this.#known.delete(schema);
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

// A database role for each tenant: no login, and rights only on the rows of its own schema. A statement that runs as
// this role cannot reach another tenant, whatever schema its text names.

/** The database access that roles need, with the rights of its connections. */
export interface RoleDatabase extends Queryable {
  readonly sharded: boolean;
  transaction<T>(work: (tx: Queryable) => Promise<T>): Promise<T>;
}

/** Roles belong to the whole server and schemas to one of its databases, so the name contains both. @internal */
export function tenantRoleName(database: string, schema: Schema): string {
  const schemaName = bare(schema);
  const hash = createHash('sha256').update(`${database}/${schemaName}`).digest('hex').slice(0, 10);
  // Postgres cuts names at 63 bytes.
  return `lh_${schemaName.replace(/^tenant_/, '').slice(0, 45)}_${hash}`;
}

function quoteRole(name: string): string {
  if (!/^[a-z][a-z0-9_]{0,62}$/.test(name)) throw new Error(`not a role name: ${JSON.stringify(name)}`);
  return `"${name}"`;
}

interface RoleFacts {
  exists: boolean;
  /** This connection may switch to the role. */
  usable: boolean;
  /** The role has its rights on every table of the schema. */
  granted: boolean;
}

/** Returns undefined if there is no such schema. */
async function readTenantRole(db: Queryable, schema: Schema, role: string): Promise<RoleFacts | undefined> {
  const [facts] = await runQuery<RoleFacts>(
    db,
    `select r.oid is not null as exists,
            coalesce(case when current_setting('server_version_num')::int >= 160000 then pg_has_role(r.oid, 'SET')
                          else pg_has_role(r.oid, 'MEMBER') end, false) as usable,
            coalesce(has_schema_privilege(r.oid, n.oid, 'usage'), false) and not exists (
              select from pg_catalog.pg_class as c
               where c.relnamespace = n.oid and c.relkind in ('r', 'p')
                 and not (has_table_privilege(r.oid, c.oid, 'select') and has_table_privilege(r.oid, c.oid, 'insert')
                          and has_table_privilege(r.oid, c.oid, 'update') and has_table_privilege(r.oid, c.oid, 'delete'))
            ) as granted
       from pg_catalog.pg_namespace as n
       left join pg_catalog.pg_roles as r on r.rolname = :role
      where n.nspname = :schema`,
    { schema: bare(schema), role },
  );
  return facts;
}

/**
 * Creates missing roles and rights. Safe in several processes at once. Fails with 42501 if this connection may not do
 * so.
 */
async function createTenantRole(db: RoleDatabase, schema: Schema, name: string): Promise<void> {
  const role = quoteRole(name);
  await db.transaction(async (tx) => {
    await runQuery(tx, `select pg_advisory_xact_lock(hashtextextended(:lockName, 0))`, {
      lockName: `leasehold:role:${name}`,
    });
    const facts = await readTenantRole(tx, schema, name);
    if (facts === undefined) return;
    if (!facts.exists) await tx.query(`create role ${role} nologin`);
    if (!facts.usable) await tx.query(`grant ${role} to current_user`);
    if (!facts.granted) {
      await tx.query(`grant usage on schema ${schema} to ${role}`);
      await tx.query(`grant select, insert, update, delete on all tables in schema ${schema} to ${role}`);
      await tx.query(`grant usage, select on all sequences in schema ${schema} to ${role}`);
      await tx.query(`grant execute on all functions in schema ${schema} to ${role}`);
      // Rights on tables of later migrations.
      const future = `alter default privileges in schema ${schema} grant`;
      await tx.query(`${future} select, insert, update, delete on tables to ${role}`);
      await tx.query(`${future} usage, select on sequences to ${role}`);
      await tx.query(`${future} execute on functions to ${role}`);
    }
    for (const member of await readersAndWriters(tx, schema, name)) await tx.query(`grant ${role} to ${member}`);
  });
}

/**
 * Roles that may already read and write all jobs of the tenant, such as the role of the daemons if another role
 * migrates.
 */
async function readersAndWriters(tx: Queryable, schema: Schema, name: string): Promise<string[]> {
  const rows = await runQuery<{ member: string }>(
    tx,
    `select distinct quote_ident(r.rolname) as member
       from pg_catalog.pg_class as c
       join pg_catalog.pg_namespace as n on n.oid = c.relnamespace,
            aclexplode(c.relacl) as a
       join pg_catalog.pg_roles as r on r.oid = a.grantee
      where n.nspname = :schema and c.relname = 'jobs' and r.rolname not in (:role, current_user) and not r.rolsuper
        and not exists (select from unnest(array['select', 'insert', 'update', 'delete']) as p
                         where not has_table_privilege(r.oid, c.oid, p))`,
    { schema: bare(schema), role: name },
  );
  return rows.map(({ member }) => member);
}

/** Drops the role after its schema. A role that may not be dropped stays, without any rights. */
async function dropTenantRole(db: Queryable, name: string): Promise<void> {
  await db.query(`drop role if exists ${quoteRole(name)}`).catch((error: unknown) => {
    if (!/^(42501|2BP01)$/.test(sqlState(error) ?? '')) throw error;
  });
}

function bare(schema: Schema): string {
  return schema.replaceAll('"', '');
}
