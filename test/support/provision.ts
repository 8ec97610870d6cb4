// A tenant for tests, and the URL of a database on the run's server.
import type { Database } from '../../server/database/database.ts';
import { createTenant } from '../../server/tenants/create-tenant.ts';
import type { Tenant } from '../../server/tenants/tenant.ts';

/** The tenant that a clone of the tenant template has from the start. */
export const defaultSlug = 'acme';

export async function provisionForTest(db: Database, slug: string): Promise<Tenant> {
  const { tenant } = await createTenant(db, { slug });
  return tenant;
}

export function databaseUrl(serverUrl: string, database: string): string {
  const url = new URL(serverUrl);
  url.pathname = `/${database}`;
  return url.href;
}
