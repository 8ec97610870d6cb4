// Changes the settings of a tenant that are stored by name: limits and budgets.
import type { Database } from '../database/database.ts';
import { controlSchema } from '../database/identifiers.ts';
import { statement } from '../database/sql.ts';
import { problem } from '../kernel/errors.ts';
import { invalidFields } from '../kernel/fields.ts';
import { type LimitSetting, limitNamePattern, maxLimits } from './limit.ts';
import type { Tenant, TenantSettings } from './tenant.ts';
import { announceTenants, lockTenant } from './tenant-store.ts';

type Named = 'limits' | 'budgets';
type Entries<N extends Named> = NonNullable<TenantSettings[N]>;

const updateStatement = statement(`
  update ${controlSchema}.tenants
     set settings = jsonb_set(settings, array[:name::text], :entries::jsonb),
         updated_at = now()
   where id = :id`);

/** `edit` changes the current entries, under the lock of the tenant. */
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
    await updateStatement.query(tx, controlSchema, { id, name, entries: JSON.stringify(entries) });
    await announceTenants(tx);
    return result;
  });
}

// Sets and removes limits in the settings of a tenant.

/** Replaces the limit of this name, or adds it. Returns true if it is new. */
export async function putLimit(db: Database, tenant: Tenant, name: string, limit: LimitSetting): Promise<boolean> {
  if (!limitNamePattern.test(name)) {
    throw invalidFields([{ field: 'name', message: `must match ${limitNamePattern.source}` }]);
  }
  const others = tenant.limits.filter((known) => known.name !== name);
  if (others.length >= maxLimits) {
    throw invalidFields([
      { field: 'name', message: `would be limit ${others.length + 1}; a tenant has at most ${maxLimits}` },
    ]);
  }
  return changeNamedSettings(db, tenant, 'limits', (limits) => {
    const isNew = limits[name] === undefined;
    limits[name] = limit;
    return isNew;
  });
}

/** If a job type declares a limit of the same name, that limit applies again after the removal. */
export async function deleteLimit(db: Database, tenant: Tenant, name: string): Promise<void> {
  await changeNamedSettings(db, tenant, 'limits', (limits) => {
    if (limits[name] === undefined) throw noLimit(tenant, name);
    delete limits[name];
    return true;
  });
}

export function noLimit({ limits }: Tenant, name: string) {
  if (limits.some((limit) => limit.name === name)) {
    const detail = `The limit ${name} is declared with its job type: replace it with PUT, or remove it from the code.`;
    return problem('CONFLICT', detail, { source: 'code' });
  }
  return problem('NOT_FOUND', 'There is no such limit.');
}
