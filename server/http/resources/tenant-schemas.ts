// How tenants look over HTTP.
import { z } from 'zod';
import { type Tenant, tenantSettings, tenantStatuses } from '../../tenants/tenant.ts';

const isoTime = z.iso.datetime({ offset: true });

export const settingsSchema = tenantSettings.meta({ id: 'TenantSettings' });

export const tenantSchema = z
  .strictObject({
    id: z.uuid(),
    slug: z.string(),
    schema: z.string().describe("The Postgres schema that holds the tenant's data."),
    status: z.enum(tenantStatuses),
    settings: settingsSchema,
    created_at: isoTime,
    updated_at: isoTime,
  })
  .meta({ id: 'Tenant' });

export function tenantToApi(tenant: Tenant): z.input<typeof tenantSchema> {
  return {
    id: tenant.id,
    slug: tenant.slug,
    schema: tenant.schemaName,
    status: tenant.status,
    settings: tenant.settings,
    created_at: tenant.createdAt,
    updated_at: tenant.updatedAt,
  };
}
