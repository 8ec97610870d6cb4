// Sets and removes limits in the settings of a tenant.
import type { Database } from '../database/database.ts';
import { problem } from '../kernel/errors.ts';
import { invalidFields } from '../kernel/fields.ts';
import { type LimitSetting, limitNamePattern, maxLimits } from './limit.ts';
import { changeNamedSettings } from './named-settings.ts';
import type { Tenant } from './tenant.ts';

/** Replaces the limit of this name, or adds it. True if it is new. */
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

/** A limit that a job type declares applies again when the one of the same name is removed. */
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
