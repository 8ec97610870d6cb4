// A role in the database for each tenant: no login, rights on the rows of its own schema and on nothing else. A statement
// that runs as this role cannot reach another tenant, whatever schema its text names.
import { createHash } from 'node:crypto';
import type { Schema } from './identifiers.ts';
import { sqlState } from './sql-errors.ts';

interface Queryable {
  query<R extends object>(text: string, values?: unknown[]): Promise<R[]>;
}

/** What roles need of the database: it creates them with the rights of its connections. */
export interface RoleDatabase extends Queryable {
  readonly sharded: boolean;
  transaction<T>(work: (tx: Queryable) => Promise<T>): Promise<T>;
}

/** Roles belong to the whole server, schemas to one of its databases: the name stands for both. */
export function tenantRoleName(database: string, schema: Schema): string {
  const schemaName = bare(schema);
  const hash = createHash('sha256').update(`${database}/${schemaName}`).digest('hex').slice(0, 10);
  // Postgres cuts names at 63 bytes.
  return `lh_${schemaName.replace(/^tenant_/, '').slice(0, 45)}_${hash}`;
}

export function quoteRole(name: string): string {
  if (!/^[a-z][a-z0-9_]{0,62}$/.test(name)) throw new Error(`not a role name: ${JSON.stringify(name)}`);
  return `"${name}"`;
}

export interface RoleFacts {
  exists: boolean;
  /** This connection may switch to it. */
  usable: boolean;
  /** It has its rights on every table of the schema. */
  granted: boolean;
}

/** Undefined: there is no such schema. */
export async function readTenantRole(db: Queryable, schema: Schema, role: string): Promise<RoleFacts | undefined> {
  const [facts] = await db.query<RoleFacts>(
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
       left join pg_catalog.pg_roles as r on r.rolname = $2
      where n.nspname = $1`,
    [bare(schema), role],
  );
  return facts;
}

/** Creates what is missing. Safe in several processes at once. Fails with 42501 if this connection may not. */
export async function createTenantRole(db: RoleDatabase, schema: Schema, name: string): Promise<void> {
  const role = quoteRole(name);
  await db.transaction(async (tx) => {
    await tx.query('select pg_advisory_xact_lock(hashtextextended($1, 0))', [`leasehold:role:${name}`]);
    const facts = await readTenantRole(tx, schema, name);
    if (facts === undefined) return;
    if (!facts.exists) await tx.query(`create role ${role} nologin`);
    if (!facts.usable) await tx.query(`grant ${role} to current_user`);
    if (!facts.granted) {
      await tx.query(`grant usage on schema ${schema} to ${role}`);
      await tx.query(`grant select, insert, update, delete on all tables in schema ${schema} to ${role}`);
      await tx.query(`grant usage, select on all sequences in schema ${schema} to ${role}`);
      await tx.query(`grant execute on all functions in schema ${schema} to ${role}`);
      // What later migrations create.
      const future = `alter default privileges in schema ${schema} grant`;
      await tx.query(`${future} select, insert, update, delete on tables to ${role}`);
      await tx.query(`${future} usage, select on sequences to ${role}`);
      await tx.query(`${future} execute on functions to ${role}`);
    }
    for (const member of await readersAndWriters(tx, schema, name)) await tx.query(`grant ${role} to ${member}`);
  });
}

/** Who may already read and write all jobs of the tenant, such as the role of the daemons where another one migrates. */
async function readersAndWriters(tx: Queryable, schema: Schema, name: string): Promise<string[]> {
  const rows = await tx.query<{ member: string }>(
    `select distinct quote_ident(r.rolname) as member
       from pg_catalog.pg_class as c
       join pg_catalog.pg_namespace as n on n.oid = c.relnamespace,
            aclexplode(c.relacl) as a
       join pg_catalog.pg_roles as r on r.oid = a.grantee
      where n.nspname = $1 and c.relname = 'jobs' and r.rolname not in ($2, current_user) and not r.rolsuper
        and not exists (select from unnest(array['select', 'insert', 'update', 'delete']) as p
                         where not has_table_privilege(r.oid, c.oid, p))`,
    [bare(schema), name],
  );
  return rows.map(({ member }) => member);
}

/** After its schema is gone. A role that may not be dropped stays, without any rights. */
export async function dropTenantRole(db: Queryable, name: string): Promise<void> {
  await db.query(`drop role if exists ${quoteRole(name)}`).catch((error: unknown) => {
    if (!/^(42501|2BP01)$/.test(sqlState(error) ?? '')) throw error;
  });
}

function bare(schema: Schema): string {
  return schema.replaceAll('"', '');
}
