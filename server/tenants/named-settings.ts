// Changes settings of a tenant that are kept by name: limits and budgets.
import type { Database } from '../database/database.ts';
import { controlSchema } from '../database/identifiers.ts';
import type { Tenant, TenantSettings } from './tenant.ts';
import { announceTenants, lockTenant } from './tenant-store.ts';

type Named = 'limits' | 'budgets';
type Entries<N extends Named> = NonNullable<TenantSettings[N]>;

/** `edit` changes the entries as they are now, under the lock of the tenant. */
export async function changeNamedSettings<N extends Named, T>(
  db: Database,
  { slug }: Tenant,
  name: N,
  edit: (entries: Entries<N>) => T,
): Promise<T> {
  return db.transaction(async (tx) => {
    const { id, settings } = await lockTenant(tx, slug);
    const entries = { ...settings[name] } as Entries<N>;
    const result = edit(entries);
    await tx.query(
      `update ${controlSchema}.tenants
          set settings = jsonb_set(settings, array[$2::text], $3::jsonb), updated_at = now()
        where id = $1`,
      [id, name, JSON.stringify(entries)],
    );
    await announceTenants(tx);
    return result;
  });
}
