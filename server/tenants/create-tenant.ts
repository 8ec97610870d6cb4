// Creates a tenant in repeatable steps: row (PROVISIONING), schema and migrations, capacities, then ACTIVE together
// with its first key. Calling it again finishes an interrupted creation. Of several concurrent callers, the one that
// changes the row's status created the tenant.

import type { Database, Queryable } from '../database/database.ts';
import { controlSchema, isSlug, slugRule, tenantSchemaName } from '../database/identifiers.ts';
import { MigrationError, migrateTenant } from '../database/migrations/migrate.ts';
import { runQuery, statement } from '../database/sql.ts';
import { sqlState } from '../database/sql-errors.ts';
import { problem } from '../kernel/errors.ts';
import { invalidFields, parseFields } from '../kernel/fields.ts';
import { newId } from '../kernel/ids.ts';
import { type NewApiKey, scopes } from './api-keys/key.ts';
import { createApiKey } from './api-keys/key-store.ts';
import { type Tenant, type TenantRow, type TenantSettings, tenantColumns, tenantSettings, toTenant } from './tenant.ts';
import { announceTenants, findTenant, mirrorCapacities } from './tenant-store.ts';
import { newWebhookSecret } from './webhook-secrets.ts';

export interface CreateTenantInput {
  slug: string;
  settings?: TenantSettings | undefined;
}

export interface CreatedTenant {
  tenant: Tenant;
  /** The tenant's first key, with every tenant scope; its text is never shown again. */
  key: NewApiKey;
}

export async function createTenant(db: Database, input: CreateTenantInput): Promise<CreatedTenant> {
  if (!isSlug(input.slug)) throw invalidFields([{ field: 'slug', message: `must be ${slugRule}` }]);
  const settings = parseFields(tenantSettings, input.settings ?? {}, 'settings');
  const reserved = await reserve(db, input.slug, settings);
  // Finishing an interrupted creation without new settings keeps those of the first call.
  const wanted = input.settings === undefined ? reserved.settings : settings;
  await createSchema(db, reserved);
  await db.tenantRoles?.prepare(reserved.schema);
  await db.transaction((tx) => mirrorCapacities(tx, reserved.schema, wanted));
  const created = await activate(db, reserved, wanted);
  await announceTenants(db);
  return created;
}

const insertStatement = statement(`
  insert into ${controlSchema}.tenants (id, slug, schema_name, status, settings, webhook_secrets)
  values (:id, :slug, :schemaName, 'PROVISIONING', :settings, array[:secret])
  returning ${tenantColumns}`);

/** The tenant's row, PROVISIONING: a new one, or that of an interrupted creation. */
async function reserve(db: Database, slug: string, settings: TenantSettings): Promise<Tenant> {
  const existing = await findTenant(db, slug);
  if (existing) return unfinished(existing);
  const schemaName = tenantSchemaName(slug);
  const [found] = await runQuery<{ taken: boolean }>(
    db,
    `select exists (select from pg_namespace where nspname = :schemaName) as taken`,
    { schemaName },
  );
  if (found?.taken) {
    // A concurrent call may have created it between the two reads.
    const winner = await findTenant(db, slug);
    if (!winner) throw foreignSchema(schemaName);
    return unfinished(winner);
  }
  try {
    const [row] = await insertStatement.query<TenantRow>(db, controlSchema, {
      id: newId(),
      slug,
      schemaName,
      settings: JSON.stringify(settings),
      secret: newWebhookSecret(),
    });
    return toTenant(row as TenantRow);
  } catch (error) {
    if (sqlState(error) !== '23505') throw error;
    // A concurrent call inserted it first; from here on the row's status decides.
    const winner = await findTenant(db, slug);
    if (!winner) throw exists(slug);
    return unfinished(winner);
  }
}

function unfinished(tenant: Tenant): Tenant {
  if (tenant.status !== 'PROVISIONING') throw exists(tenant.slug);
  return tenant;
}

async function createSchema(db: Database, tenant: Tenant): Promise<void> {
  try {
    await migrateTenant(db, tenant.schemaName);
  } catch (error) {
    if (error instanceof MigrationError) throw problem('CONFLICT', error.message, { schema: tenant.schemaName });
    throw error;
  }
}

async function activate(db: Database, tenant: Tenant, settings: TenantSettings): Promise<CreatedTenant> {
  return db.transaction(async (tx: Queryable) => {
    const [row] = await runQuery<TenantRow>(
      tx,
      `update ${controlSchema}.tenants set status = 'ACTIVE', settings = :settings, updated_at = now()
        where id = :id and status = 'PROVISIONING' returning ${tenantColumns}`,
      { id: tenant.id, settings: JSON.stringify(settings) },
    );
    if (!row) throw exists(tenant.slug);
    const key = await createApiKey(tx, { tenantId: tenant.id, name: 'first key', scopes: [...scopes] });
    return { tenant: toTenant(row), key };
  });
}

function exists(slug: string) {
  return problem('ALREADY_EXISTS', `The tenant ${slug} exists already.`, { field: 'slug' });
}

function foreignSchema(schemaName: string) {
  return problem(
    'CONFLICT',
    `The schema ${schemaName} exists in the database but belongs to no tenant; it was left untouched.`,
    { schema: schemaName },
  );
}
