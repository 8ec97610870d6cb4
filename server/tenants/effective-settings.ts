// The settings that apply to a tenant, and their source: its own settings, the environment of the daemon, or a default.
import { type Config, isDefault, type SettingName } from '../kernel/config.ts';
import { type Tenant, type TenantSettings, tenantSettings } from './tenant.ts';

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
