// /api/admin/tenants: create, configure, suspend and delete tenants. Every change is logged with its author.
import { z } from 'zod';
import type { Database } from '../../database/database.ts';
import type { Config } from '../../kernel/config.ts';
import { createTenant } from '../../tenants/create-tenant.ts';
import { deleteTenant, requestTenantDeletion } from '../../tenants/delete-tenant.ts';
import type { TenantRegistry } from '../../tenants/registry.ts';
import { type Tenant, tenantSettings, tenantStatuses } from '../../tenants/tenant.ts';
import { effectiveSettings } from '../../tenants/tenant-settings.ts';
import {
  activateTenant,
  getTenant,
  readTenantPage,
  suspendTenant,
  updateTenantSettings,
} from '../../tenants/tenant-store.ts';
import { booleanQuery, paged, pageOf, pageQuery, pageSchema } from '../request/paging.ts';
import { audit } from '../request/request-log.ts';
import { RouteGroup, reply } from '../route.ts';
import { toApi } from '../to-api.ts';
import { newKeySchema, newKeyToApi } from './keys.ts';

interface AdminTenantDependencies {
  db: Database;
  config: Config;
  registry: Pick<TenantRegistry, 'refresh'>;
}

const isoTime = z.iso.datetime({ offset: true });

const settingsSchema = tenantSettings.meta({ id: 'TenantSettings' });

const tenantSchema = z
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

const effectiveSchema = z
  .strictObject({
    name: z.string().describe('A part has a dot: `retention.event_days`.'),
    description: z.string(),
    value: z.unknown().describe('Null: no limit, or nothing.'),
    source: z.enum(['tenant', 'environment', 'default']),
    setting: z.string().nullable().describe('The setting of the daemon that applies where the tenant has none.'),
  })
  .meta({ id: 'EffectiveSetting' });

const slugParams = z.strictObject({ slug: z.string().max(100) });
const oneTenant = z.strictObject({ tenant: tenantSchema });

export function adminTenantRoutes(deps: AdminTenantDependencies): RouteGroup {
  const group = new RouteGroup('Administration');
  addReads(group, deps);
  addCreation(group, deps);
  addChanges(group, deps);
  addDeletion(group, deps);
  return group;
}

function addReads(group: RouteGroup, { db, config }: AdminTenantDependencies): void {
  group.route({
    method: 'get',
    path: '/api/admin/tenants',
    summary: 'List tenants by slug',
    access: 'operator',
    query: z.strictObject(pageQuery()),
    answers: { 200: pageSchema('tenants', tenantSchema) },
    problems: ['INVALID_CURSOR'],
    handle: async ({ query }) => {
      const list = { name: 'tenants', position: ['text'] } as const;
      const page = await paged(list, query, async ([after], limit) =>
        pageOf(await readTenantPage(db, limit + 1, after), limit, (last) => [last.slug]),
      );
      return { tenants: page.rows.map(tenantToApi), next_cursor: page.next_cursor };
    },
  });
  group.route({
    method: 'get',
    path: '/api/admin/tenants/{slug}',
    summary: 'Read one tenant',
    access: 'operator',
    params: slugParams,
    answers: { 200: oneTenant },
    problems: ['NOT_FOUND'],
    handle: async ({ params }) => ({ tenant: tenantToApi(await getTenant(db, params.slug)) }),
  });
  group.route({
    method: 'get',
    path: '/api/admin/tenants/{slug}/settings',
    summary: 'What applies to a tenant, and where it comes from',
    description: 'The environment is that of the daemon that answers.',
    access: 'operator',
    params: slugParams,
    answers: { 200: z.strictObject({ settings: z.array(effectiveSchema) }) },
    problems: ['NOT_FOUND'],
    handle: async ({ params }) => ({ settings: effectiveSettings(await getTenant(db, params.slug), config) }),
  });
}

function addCreation(group: RouteGroup, { db, registry }: AdminTenantDependencies): void {
  group.route({
    method: 'post',
    path: '/api/admin/tenants',
    summary: 'Create a tenant and its first key',
    description: 'Repeating an interrupted request completes it.',
    access: 'operator',
    body: z.strictObject({ slug: z.string().max(100), settings: settingsSchema.optional() }),
    answers: { 201: z.strictObject({ tenant: tenantSchema, key: newKeySchema }) },
    problems: ['ALREADY_EXISTS', 'CONFLICT'],
    handle: async (context) => {
      const { tenant, key } = await createTenant(db, context.body);
      audit(context, 'tenant created', { tenant: tenant.slug, newKey: key.id });
      await refreshNow(registry);
      return reply(201, { tenant: tenantToApi(tenant), key: newKeyToApi(key) });
    },
  });
}

function addChanges(group: RouteGroup, { db, registry }: AdminTenantDependencies): void {
  group.route({
    method: 'patch',
    path: '/api/admin/tenants/{slug}',
    summary: "Change a tenant's settings (JSON merge patch)",
    description: 'Given settings replace the stored ones, null removes a setting, others stay.',
    access: 'operator',
    params: slugParams,
    body: z.strictObject({ settings: z.record(z.string(), z.unknown()) }),
    answers: { 200: oneTenant },
    problems: ['NOT_FOUND', 'CONFLICT'],
    handle: async (context) => {
      const tenant = await updateTenantSettings(db, context.params.slug, context.body.settings);
      audit(context, 'tenant settings changed', { tenant: tenant.slug, fields: Object.keys(context.body.settings) });
      await refreshNow(registry);
      return { tenant: tenantToApi(tenant) };
    },
  });
  const addStatusChange = (verb: 'suspend' | 'activate', summary: string, change: typeof suspendTenant) =>
    group.route({
      method: 'post',
      path: `/api/admin/tenants/{slug}/${verb}`,
      summary,
      access: 'operator',
      params: slugParams,
      answers: { 200: oneTenant },
      problems: ['NOT_FOUND', 'CONFLICT'],
      handle: async (context) => {
        const tenant: Tenant = await change(db, context.params.slug);
        audit(context, 'tenant status changed', { tenant: tenant.slug, status: tenant.status });
        await refreshNow(registry);
        return { tenant: tenantToApi(tenant) };
      },
    });
  addStatusChange('suspend', 'Stop claiming jobs of a tenant; its keys may only read', suspendTenant);
  addStatusChange('activate', 'Let a suspended tenant work again', activateTenant);
}

function addDeletion(group: RouteGroup, { db, registry }: AdminTenantDependencies): void {
  group.route({
    method: 'delete',
    path: '/api/admin/tenants/{slug}',
    summary: 'Delete a tenant with all its data, in two steps',
    description:
      'The first call answers 202 with a token and deletes nothing; the second, with `confirm`, deletes. ' +
      'Refused while jobs are with a worker, unless `force=true`.',
    access: 'operator',
    params: slugParams,
    query: z.strictObject({ confirm: z.string().max(100).optional(), force: booleanQuery().optional() }),
    answers: { 200: oneTenant, 202: z.strictObject({ tenant: tenantSchema, confirm: z.string() }) },
    problems: ['NOT_FOUND', 'CONFLICT'],
    handle: async (context) => {
      const { params, query } = context;
      if (query.confirm === undefined) {
        const { tenant, confirm } = await requestTenantDeletion(db, params.slug);
        audit(context, 'tenant deletion requested', { tenant: tenant.slug });
        return reply(202, { tenant: tenantToApi(tenant), confirm });
      }
      const tenant = await deleteTenant(db, params.slug, { confirm: query.confirm, force: query.force });
      audit(context, 'tenant deleted', { tenant: tenant.slug, force: query.force ?? false });
      await refreshNow(registry);
      return { tenant: tenantToApi(tenant) };
    },
  });
}

// The change is committed, and this daemon must know it before the caller's next request. If the read fails, the
// registry repeats it a second later.
async function refreshNow(registry: Pick<TenantRegistry, 'refresh'>): Promise<void> {
  await registry.refresh().catch(() => {});
}

function tenantToApi(tenant: Tenant): z.input<typeof tenantSchema> {
  return toApi(tenantSchema, tenant, { schema: tenant.schemaName });
}
