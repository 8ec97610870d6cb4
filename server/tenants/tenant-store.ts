// The rows of tenants in the control schema: reads them, suspends and activates a tenant, and changes its settings.
// create-tenant.ts creates tenants, delete-tenant.ts deletes them.
import { asc, eq, gt, sql } from 'drizzle-orm';
import type { Database, Queryable } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import { controlSchema } from '../database/identifiers.ts';
import { sendNotification, tenantsChanged } from '../database/notifications/notifications.ts';
import { build, defineRead } from '../database/reads/drizzle.ts';
import { runQuery, statement } from '../database/sql.ts';
import { tenants } from '../database/tables/control.ts';
import { problem } from '../kernel/errors.ts';
import { invalidFields, parseFields } from '../kernel/fields.ts';
import { findJsonViolation } from '../kernel/json/json-violations.ts';
import type { DeclaredLimits } from './named-settings.ts';
import type { TenantSettings } from './tenant.ts';
import {
  type Tenant,
  type TenantRow,
  type TenantStatus,
  tenantColumns,
  tenantSelection,
  tenantSettings,
  toTenant,
} from './tenant.ts';

const selectTenants = () => build.select(tenantSelection).from(tenants);
// Independent of the database's collation, so that a cursor made on one server is valid on another.
const slugInByteOrder = sql`${tenants.slug} collate "C"`;

const bySlug = defineRead<{ slug: string }>()(({ slug }) => selectTenants().where(eq(tenants.slug, slug)));
const bySlugForUpdate = defineRead<{ slug: string }>()(({ slug }) =>
  selectTenants().where(eq(tenants.slug, slug)).for('update'),
);
const inOrder = defineRead<object>()(() => selectTenants().orderBy(asc(tenants.slug)));
const pageAfter = defineRead<{ after: string; limit: number }>()(({ after, limit }) =>
  selectTenants().where(gt(slugInByteOrder, after)).orderBy(slugInByteOrder).limit(limit),
);

export async function findTenant(db: Queryable, slug: string): Promise<Tenant | undefined> {
  const [row] = await bySlug(db, controlSchema, { slug });
  return row && toTenant(row);
}

export async function getTenant(db: Queryable, slug: string): Promise<Tenant> {
  const tenant = await findTenant(db, slug);
  if (!tenant) throw noTenant(slug);
  return tenant;
}

export async function lockTenant(tx: Queryable, slug: string): Promise<Tenant> {
  const [row] = await bySlugForUpdate(tx, controlSchema, { slug });
  if (!row) throw noTenant(slug);
  return toTenant(row);
}

export async function readAllTenants(db: Queryable): Promise<Tenant[]> {
  return (await inOrder(db, controlSchema, {})).map((row) => toTenant(row));
}

/** Lists tenants after `afterSlug`, in the order of their slugs. */
export async function readTenantPage(db: Queryable, limit: number, afterSlug = ''): Promise<Tenant[]> {
  return (await pageAfter(db, controlSchema, { after: afterSlug, limit })).map((row) => toTenant(row));
}

/**
 * SQL: a value that changes with every change of a tenant or of the limits that job types declare, whatever the order
 * of their commits.
 */
export const tenantsFingerprint = `select count(*)::text || ':' ||
    coalesce(sum(hashtextextended(id::text || updated_at::text || status, 0)), 0)::text || ':' ||
    (select coalesce(sum(hashtextextended(type || limits::text, 0)), 0)::text
       from ${controlSchema}.job_types where limits is not null) as fingerprint
  from ${controlSchema}.tenants`;

/** Reads all tenants and their fingerprint, as of one moment. */
export async function readTenantsAndFingerprint(db: Queryable): Promise<{ tenants: Tenant[]; fingerprint: string }> {
  const rows = await db.query<TenantRow & { fingerprint: string; declared: DeclaredLimits | null }>(
    `select f.fingerprint, d.declared, t.*
       from (${tenantsFingerprint}) f
      cross join (select jsonb_object_agg(type, limits) as declared
                    from ${controlSchema}.job_types where limits is not null) d
       left join (select ${tenantColumns} from ${controlSchema}.tenants) t on true
      order by t.slug`,
  );
  return {
    tenants: rows
      .filter((row) => row.id !== null)
      .map(({ fingerprint: _, declared, ...row }) => toTenant(row, declared ?? {})),
    fingerprint: rows[0]?.fingerprint ?? '',
  };
}

export async function readTenantsFingerprint(db: Queryable): Promise<string> {
  const rows = await db.query<{ fingerprint: string }>(tenantsFingerprint);
  return rows[0]?.fingerprint ?? '';
}

/** Daemons stop claiming the tenant's jobs, and its keys may only read. Suspending twice is not an error. */
export async function suspendTenant(db: Queryable, slug: string): Promise<Tenant> {
  return changeStatus(db, slug, ['ACTIVE'], 'SUSPENDED');
}

/** Also ends an unfinished deletion, because nothing is lost until the schema is dropped. */
export async function activateTenant(db: Queryable, slug: string): Promise<Tenant> {
  return changeStatus(db, slug, ['SUSPENDED', 'DELETING'], 'ACTIVE');
}

const changeStatusStatement = statement(`
  update ${controlSchema}.tenants
     set status = :to,
         delete_token = null,
         updated_at = now()
   where slug = :slug
     and status = any(:from::text[])
  returning ${tenantColumns}`);

async function changeStatus(db: Queryable, slug: string, from: TenantStatus[], to: TenantStatus): Promise<Tenant> {
  const [row] = await changeStatusStatement.query<TenantRow>(db, controlSchema, { slug, from, to });
  if (row) {
    await announceTenants(db);
    return toTenant(row);
  }
  const tenant = await getTenant(db, slug);
  if (tenant.status === to) return tenant;
  throw problem('CONFLICT', `The tenant ${slug} is ${tenant.status} and cannot become ${to}.`, {
    status: tenant.status,
  });
}

/**
 * JSON merge patch (RFC 7396): a given field replaces, null removes, the others stay. The merged settings must be
 * valid.
 */
export async function updateTenantSettings(db: Database, slug: string, patch: unknown): Promise<Tenant> {
  const violation = findJsonViolation(patch);
  if (violation) throw invalidFields([{ ...violation, field: `settings.${violation.field}` }]);
  return db.transaction(async (tx) => {
    const tenant = await lockTenant(tx, slug);
    if (tenant.status === 'PROVISIONING' || tenant.status === 'DELETING') {
      throw problem('CONFLICT', `The tenant ${slug} is ${tenant.status}.`, { status: tenant.status });
    }
    const settings = parseFields(tenantSettings, mergePatch(tenant.settings, patch), 'settings');
    const [changed] = await runQuery<TenantRow>(
      tx,
      `update ${controlSchema}.tenants set settings = :settings, updated_at = now() where id = :id returning ${tenantColumns}`,
      { id: tenant.id, settings: JSON.stringify(settings) },
    );
    await mirrorCapacities(tx, tenant.schema, settings);
    await announceTenants(tx);
    return toTenant(changed as TenantRow);
  });
}

/** The depth of `patch` is bounded by findJsonViolation. */
function mergePatch(target: unknown, patch: unknown): unknown {
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

/** Notifies every daemon that tenants changed. A hint: the registry's refresh interval finds the change too. */
export async function announceTenants(db: Queryable): Promise<void> {
  await sendNotification(db, `-:${tenantsChanged}`).catch(() => {});
}

export function noTenant(slug: string) {
  return problem('NOT_FOUND', `There is no tenant ${JSON.stringify(slug.slice(0, 100))}.`);
}

/** True if the settings limit the cost units that may be leased at once. */
export function hasCapacities(settings: TenantSettings): boolean {
  return settings.capacity_units !== undefined || Object.keys(settings.queue_capacity_units ?? {}).length > 0;
}

/**
 * Copies the capacity settings into the tenant's own table, where a row lock makes admission atomic. Queue '' is the
 * whole tenant. Call in a transaction. Rows that stay keep their reservations.
 */
export async function mirrorCapacities(tx: Queryable, schema: Schema, settings: TenantSettings): Promise<void> {
  const totals = new Map<string, number>(Object.entries(settings.queue_capacity_units ?? {}));
  if (settings.capacity_units !== undefined) totals.set('', settings.capacity_units);
  // Locked in one order everywhere, so that concurrent changes do not deadlock.
  const queues = [...totals.keys()].sort();
  await runQuery(tx, `delete from ${schema}.capacities where not (queue = any(:queues::text[]))`, { queues });
  if (queues.length === 0) return;
  await runQuery(
    tx,
    `insert into ${schema}.capacities (queue, total_units)
     select queue, total_units from unnest(:queues::text[], :totals::int[]) as given (queue, total_units)
     on conflict (queue) do update set total_units = excluded.total_units`,
    { queues, totals: queues.map((queue) => totals.get(queue)) },
  );
}
