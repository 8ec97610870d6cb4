// Suspends a tenant (daemons stop claiming its jobs, its keys may only read) and lets it work again.
import type { Queryable } from '../database/database.ts';
import { controlSchema } from '../database/identifiers.ts';
import { problem } from '../kernel/errors.ts';
import { announceTenants } from './announce.ts';
import { getTenant } from './read.ts';
import { type Tenant, type TenantRow, type TenantStatus, tenantColumns, toTenant } from './tenant.ts';

/** Suspending a suspended tenant changes nothing and is no error. */
export async function suspendTenant(db: Queryable, slug: string): Promise<Tenant> {
  return changeStatus(db, slug, ['ACTIVE'], 'SUSPENDED');
}

/** Also takes back a deletion that did not come to its end: until the schema is gone, nothing is lost. */
export async function activateTenant(db: Queryable, slug: string): Promise<Tenant> {
  return changeStatus(db, slug, ['SUSPENDED', 'DELETING'], 'ACTIVE');
}

async function changeStatus(db: Queryable, slug: string, from: TenantStatus[], to: TenantStatus): Promise<Tenant> {
  const [row] = await db.query<TenantRow>(
    `update ${controlSchema}.tenants set status = $3, delete_token = null, updated_at = now()
      where slug = $1 and status = any($2::text[]) returning ${tenantColumns}`,
    [slug, from, to],
  );
  if (row) {
    await announceTenants(db);
    return toTenant(row);
  }
  const tenant = await getTenant(db, slug);
  if (tenant.status === to) return tenant;
  throw problem('CONFLICT', `The tenant ${slug} is ${tenant.status} and cannot become ${to}.`, {
    status: tenant.status,
  });
}
