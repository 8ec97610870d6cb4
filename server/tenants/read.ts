// Reads tenants from the control schema: one, all, or a page of them.
import type { Queryable } from '../database/database.ts';
import { controlSchema } from '../database/identifiers.ts';
import { problem } from '../kernel/errors.ts';
import { type Tenant, type TenantRow, tenantColumns, toTenant } from './tenant.ts';

export async function findTenant(db: Queryable, slug: string): Promise<Tenant | undefined> {
  const rows = await db.query<TenantRow>(`select ${tenantColumns} from ${controlSchema}.tenants where slug = $1`, [
    slug,
  ]);
  return rows[0] && toTenant(rows[0]);
}

export async function getTenant(db: Queryable, slug: string): Promise<Tenant> {
  const tenant = await findTenant(db, slug);
  if (!tenant) throw noTenant(slug);
  return tenant;
}

export async function readAllTenants(db: Queryable): Promise<Tenant[]> {
  const rows = await db.query<TenantRow>(`select ${tenantColumns} from ${controlSchema}.tenants order by slug`);
  return rows.map(toTenant);
}

/** Tenants behind `afterSlug`, in order of their slugs. */
export async function readTenantPage(db: Queryable, limit: number, afterSlug = ''): Promise<Tenant[]> {
  const rows = await db.query<TenantRow>(
    `select ${tenantColumns} from ${controlSchema}.tenants
      where slug collate "C" > $1 order by slug collate "C" limit $2`,
    [afterSlug, limit],
  );
  return rows.map(toTenant);
}

/** SQL. Changes whenever any tenant is added, changed or removed, whatever the order of their commits. */
export const tenantsFingerprint = `select count(*)::text || ':' ||
    coalesce(sum(hashtextextended(id::text || updated_at::text || status, 0)), 0)::text as fingerprint
  from ${controlSchema}.tenants`;

/** All tenants, and the fingerprint that they have. */
export async function readTenantsAndFingerprint(db: Queryable): Promise<{ tenants: Tenant[]; fingerprint: string }> {
  const rows = await db.query<TenantRow & { fingerprint: string }>(
    `select f.fingerprint, t.* from (${tenantsFingerprint}) f
       left join (select ${tenantColumns} from ${controlSchema}.tenants) t on true order by t.slug`,
  );
  return {
    tenants: rows.filter((row) => row.id !== null).map(toTenant),
    fingerprint: rows[0]?.fingerprint ?? '',
  };
}

export async function readTenantsFingerprint(db: Queryable): Promise<string> {
  const rows = await db.query<{ fingerprint: string }>(tenantsFingerprint);
  return rows[0]?.fingerprint ?? '';
}

export function noTenant(slug: string) {
  return problem('NOT_FOUND', `There is no tenant ${JSON.stringify(slug.slice(0, 100))}.`);
}
