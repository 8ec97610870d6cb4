// The settings that apply to a tenant with their source (its own settings, the environment of the daemon, or a
// default), and changes of those that are stored by name: limits and budgets.
import type { Database } from '../database/database.ts';
import { controlSchema } from '../database/identifiers.ts';
import { statement } from '../database/sql.ts';
import { type Config, isDefault, type SettingName } from '../kernel/config.ts';
import { problem } from '../kernel/errors.ts';
import { invalidFields } from '../kernel/fields.ts';
import { type LimitSetting, limitNamePattern, maxLimits } from './named-settings.ts';
import { type Tenant, type TenantSettings, tenantSettings } from './tenant.ts';
import { announceTenants, lockTenant } from './tenant-store.ts';

export interface EffectiveSetting {
  /** `retention.event_days` for a part. */
  name: string;
  description: string;
  value: unknown;
  source: 'tenant' | 'environment' | 'default';
  /** The setting of the daemon that applies if the tenant has none. */
  setting: SettingName | null;
}

interface Fallback {
  setting: SettingName | null;
  value(config: Config): unknown;
  description?: string;
}

const none: Fallback = { setting: null, value: () => null };

/** The values that apply if the tenant sets none, by name. */
const fallbacks: Record<string, Fallback> = {
  concurrency: { setting: 'TENANT_CONCURRENCY', value: (config) => config.tenantConcurrency },
  capacity_units: none,
  queue_capacity_units: none,
  token_limit: { setting: 'TOKEN_LIMIT', value: (config) => config.tokenLimit },
  timeout_seconds: { setting: 'JOB_TIMEOUT_SECONDS', value: (config) => config.jobTimeoutSeconds },
  'retention.stale_after_seconds': {
    setting: 'RETENTION_STALE_AFTER_SECONDS',
    value: (config) => config.retentionStaleAfterSeconds,
    description: 'Age at which a finished job becomes stale.',
  },
  'retention.delete_after_seconds': {
    setting: 'RETENTION_DELETE_AFTER_SECONDS',
    value: (config) => config.retentionDeleteAfterSeconds,
    description: 'Age at which a stale job is deleted.',
  },
  'retention.event_days': {
    setting: 'RETENTION_EVENT_DAYS',
    value: (config) => config.retentionEventDays,
    description: 'Days that events, deliveries, ended leases and statistics are kept.',
  },
  webhook: none,
  remote_job_types: { setting: null, value: () => [] },
  on_drain: { setting: null, value: () => 'pause' },
  limits: none,
  budgets: none,
  max_queued: none,
};

export function effectiveSettings(tenant: Pick<Tenant, 'settings'>, config: Config): EffectiveSetting[] {
  return Object.entries(fallbacks).map(([name, fallback]) => {
    const own = ownValue(tenant.settings, name);
    const { setting } = fallback;
    const description = fallback.description ?? tenantSettings.shape[name as keyof TenantSettings]?.description ?? '';
    if (own !== undefined) return { name, description, value: own, source: 'tenant', setting };
    const source = setting === null || isDefault(setting, config) ? 'default' : 'environment';
    return { name, description, value: fallback.value(config), source, setting };
  });
}

function ownValue(settings: TenantSettings, name: string): unknown {
  const [first = '', second] = name.split('.');
  const value = (settings as Record<string, unknown>)[first];
  return second === undefined ? value : (value as Record<string, unknown> | undefined)?.[second];
}

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
