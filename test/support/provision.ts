// A tenant for tests, and the URL of a database on the run's server.
import { v7 as uuidv7 } from 'uuid';
import type { Database } from '../../server/database/database.ts';
import { controlSchema, tenantSchemaName } from '../../server/database/identifiers.ts';
import { migrateTenant } from '../../server/database/migrate.ts';
import { getTenant } from '../../server/tenants/read.ts';
import type { Tenant } from '../../server/tenants/tenant.ts';

/** The tenant that a clone of the tenant template has from the start. */
export const defaultSlug = 'acme';

export async function provisionForTest(db: Database, slug: string): Promise<Tenant> {
  const schemaName = tenantSchemaName(slug);
  await migrateTenant(db, schemaName);
  await db.query(
    `insert into ${controlSchema}.tenants (id, slug, schema_name, status) values ($1, $2, $3, 'ACTIVE')`,
    [uuidv7(), slug, schemaName],
  );
  return getTenant(db, slug);
}

export function databaseUrl(serverUrl: string, database: string): string {
  const url = new URL(serverUrl);
  url.pathname = `/${database}`;
  return url.href;
}
