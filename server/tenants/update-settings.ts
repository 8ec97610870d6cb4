// Changes a tenant's settings by JSON merge patch (RFC 7396): a field given replaces, null removes,
// what is not named stays. The merged whole must be valid.

import type { Database } from '../database/database.ts';
import { controlSchema } from '../database/identifiers.ts';
import { problem } from '../kernel/errors.ts';
import { findJsonViolation } from '../kernel/json.ts';
import { invalidFields, parseFields } from '../kernel/parse.ts';
import { announceTenants } from './announce.ts';
import { mirrorCapacities } from './capacities.ts';
import { noTenant } from './read.ts';
import { type Tenant, type TenantRow, tenantColumns, tenantSettings, toTenant } from './tenant.ts';

export async function updateTenantSettings(db: Database, slug: string, patch: unknown): Promise<Tenant> {
  const fault = findJsonViolation(patch);
  if (fault) throw invalidFields([{ ...fault, field: `settings.${fault.field}` }]);
  return db.transaction(async (tx) => {
    const [row] = await tx.query<TenantRow>(
      `select ${tenantColumns} from ${controlSchema}.tenants where slug = $1 for update`,
      [slug],
    );
    if (!row) throw noTenant(slug);
    if (row.status === 'PROVISIONING' || row.status === 'DELETING') {
      throw problem('CONFLICT', `The tenant ${slug} is ${row.status}.`, { status: row.status });
    }
    const settings = parseFields(tenantSettings, mergePatch(toTenant(row).settings, patch), 'settings');
    const [changed] = await tx.query<TenantRow>(
      `update ${controlSchema}.tenants set settings = $2, updated_at = now() where id = $1 returning ${tenantColumns}`,
      [row.id, JSON.stringify(settings)],
    );
    await mirrorCapacities(tx, toTenant(row).schema, settings);
    await announceTenants(tx);
    return toTenant(changed as TenantRow);
  });
}

/** Depth is bounded by findJsonFault above. */
export function mergePatch(target: unknown, patch: unknown): unknown {
  if (!isObject(patch)) return patch;
  const merged = new Map(isObject(target) ? Object.entries(target) : []);
  for (const [key, value] of Object.entries(patch)) {
    if (value === null) merged.delete(key);
    else merged.set(key, mergePatch(merged.get(key), value));
  }
  return Object.fromEntries(merged);
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
