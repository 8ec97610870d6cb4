// A tenant: its row, its settings and their rules. Settings keep the API's snake_case, because they are stored and
// shown exactly as given.
import { z } from 'zod';
import { quoteSchema, type Schema } from '../database/identifiers.ts';
import { columnList, columnsOf, type RowOf } from '../database/reads/drizzle.ts';
import { tenants } from '../database/tables/control.ts';
import { httpUrlField } from '../kernel/fields.ts';
import { maxInt4, maxSeconds } from '../kernel/limits.ts';
import { budgetSettings, type DeclaredLimits, type Limit, limitSettings, limitsOf } from './named-settings.ts';

export const tenantStatuses = ['PROVISIONING', 'ACTIVE', 'SUSPENDED', 'DELETING'] as const;
export type TenantStatus = (typeof tenantStatuses)[number];

const name = z.string().min(1).max(200);
const units = z.int().min(1).max(maxInt4);

export const tenantSettings = z.strictObject({
  concurrency: z.int().min(0).max(100_000).optional().describe('Jobs that one daemon runs at once for this tenant.'),
  capacity_units: units.optional().describe('Cost units that may be leased at once, over all queues.'),
  queue_capacity_units: z.record(name, units).optional().describe('Cost units that may be leased at once, by queue.'),
  token_limit: z
    .int()
    .min(0)
    .optional()
    .describe('Tokens that one job may use unless the job says otherwise; 0 means no limit.'),
  timeout_seconds: z
    .number()
    .min(0)
    .max(maxSeconds)
    .optional()
    .describe('Most time for one attempt unless its type or the job says otherwise; 0 means no limit.'),
  retention: z
    .strictObject({
      stale_after_seconds: z.int().min(0).max(maxSeconds).optional(),
      delete_after_seconds: z.int().min(0).max(maxSeconds).optional(),
      event_days: z.int().min(1).max(365_000).optional(),
    })
    .optional()
    .describe('How long finished jobs and events are kept.'),
  webhook: z
    .strictObject({
      url: httpUrlField().optional(),
      events: z.array(name).max(100).optional(),
    })
    .optional()
    .describe('Where events are sent when the job names no address, and which.'),
  remote_job_types: z
    .array(name)
    .max(1000)
    .optional()
    .describe("Job types without an in-process handler that remote workers may take; '*' means any."),
  on_drain: z.enum(['pause', 'requeue']).optional().describe('What a drain does with jobs that outlast its grace.'),
  limits: limitSettings.optional().describe('Rate and concurrency limits by name.'),
  budgets: budgetSettings.optional().describe('How much of a unit each job, or all jobs of a day, may use, by name.'),
  max_queued: z.int().min(0).max(maxInt4).optional().describe('Most jobs that may wait at once.'),
});
export type TenantSettings = z.output<typeof tenantSettings>;

const { deleteToken: _, ...shownColumns } = columnsOf(tenants);

/** The columns that reads of tenants select: all except the token of a deletion. */
export const tenantSelection = shownColumns;
/** The same columns as text. */
export const tenantColumns = columnList(tenants, tenantSelection);

export type TenantRow = Omit<RowOf<typeof tenants>, 'deleteToken'>;

export interface Tenant extends TenantRow {
  /** The quoted schema, for SQL: `${tenant.schema}.jobs`. */
  schema: Schema;
  status: TenantStatus;
  settings: TenantSettings;
  /** The limits of its settings, and those that job types declare. */
  limits: readonly Limit[];
}

export function toTenant(row: TenantRow, declared: DeclaredLimits = {}): Tenant {
  const settings = readSettings(row.settings);
  return {
    ...row,
    schema: quoteSchema(row.schemaName),
    status: row.status as TenantStatus,
    settings,
    limits: limitsOf(settings.limits ?? {}, declared),
  };
}

/**
 * A newer version (during a deploy) or a person may have written the stored settings. Settings that this version does
 * not understand are left out; the rest applies.
 */
function readSettings(stored: unknown): TenantSettings {
  const settings: Record<string, unknown> = {};
  if (typeof stored !== 'object' || stored === null) return {};
  for (const [key, schema] of Object.entries(tenantSettings.shape)) {
    const value = schema.safeParse((stored as Record<string, unknown>)[key]);
    if (value.success && value.data !== undefined) settings[key] = value.data;
  }
  return settings as TenantSettings;
}
