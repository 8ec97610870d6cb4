// Deletes a tenant in two steps. The first call returns a token and changes nothing else. The second call, with that
// token, drops the schema: the status becomes DELETING first, so that daemons stop working for the tenant, and one
// transaction then removes schema and row.

import { randomBytes, timingSafeEqual } from 'node:crypto';
import { setTimeout } from 'node:timers/promises';
import type { Database, Queryable } from '../database/database.ts';
import { controlSchema } from '../database/identifiers.ts';
import { runQuery } from '../database/sql.ts';
import { isRetryable, sqlState } from '../database/sql-errors.ts';
import { problem } from '../kernel/errors.ts';
import { type Tenant, type TenantRow, type TenantStatus, tenantColumns, toTenant } from './tenant.ts';
import { announceTenants, lockTenant, noTenant } from './tenant-store.ts';

// Statements queue behind DDL that waits for a lock, so it must not wait long.
const lockTimeout = '3s';
// Transactions of a busy tenant lock its tables in another order, until they see that it is DELETING.
const maxTries = 10;
const maxCounted = 10_000;

/** The first step. A second request replaces the token of the first. */
export async function requestTenantDeletion(db: Queryable, slug: string): Promise<{ tenant: Tenant; confirm: string }> {
  const confirm = randomBytes(16).toString('hex');
  const [row] = await runQuery<TenantRow>(
    db,
    `update ${controlSchema}.tenants set delete_token = :deleteToken where slug = :slug returning ${tenantColumns}`,
    { slug, deleteToken: confirm },
  );
  if (!row) throw noTenant(slug);
  return { tenant: toTenant(row), confirm };
}

/** The second step. Refuses while workers have jobs, unless `force`; the workers then lose their leases. */
export async function deleteTenant(
  db: Database,
  slug: string,
  options: { confirm: string; force?: boolean | undefined },
): Promise<Tenant> {
  const { tenant, before } = await markDeleting(db, slug, options);
  try {
    await drop(db, tenant, options.force ?? false);
    await db.tenantRoles?.drop(tenant.schema);
  } catch (error) {
    await restore(db, tenant, before);
    throw error;
  }
  return tenant;
}

async function markDeleting(db: Database, slug: string, options: { confirm: string; force?: boolean | undefined }) {
  return db.transaction(async (tx) => {
    const tenant = await lockTenant(tx, slug);
    const [row] = await runQuery<{ delete_token: string | null }>(
      tx,
      `select delete_token from ${controlSchema}.tenants where id = :id`,
      { id: tenant.id },
    );
    if (!sameToken(row?.delete_token ?? null, options.confirm)) {
      throw problem('CONFLICT', 'The confirmation token does not match the last request to delete this tenant.', {
        field: 'confirm',
      });
    }
    // Checked before the status changes, because the usual refusal must not interrupt any daemon.
    if (!options.force) refuseIfRunning(await countRunning(tx, tenant));
    await runQuery(tx, `update ${controlSchema}.tenants set status = 'DELETING', updated_at = now() where id = :id`, {
      id: tenant.id,
    });
    await announceTenants(tx);
    return { tenant, before: tenant.status };
  });
}

async function drop(db: Database, tenant: Tenant, force: boolean): Promise<void> {
  for (let tries = 1; ; tries++) {
    try {
      return await dropOnce(db, tenant, force);
    } catch (error) {
      if (!isRetryable(error) && sqlState(error) !== lockNotAvailable) throw error;
      if (tries === maxTries) throw problem('CONFLICT', "The tenant's tables are in use; try again in a moment.");
      await setTimeout(Math.random() * 100 * tries);
    }
  }
}

const lockNotAvailable = '55P03';

async function dropOnce(db: Database, tenant: Tenant, force: boolean): Promise<void> {
  await db.transaction(async (tx) => {
    await tx.query("set local citus.propagate_set_commands = 'local'");
    await tx.query(`set local lock_timeout = '${lockTimeout}'`);
    if (await isOurs(tx, tenant)) {
      // After this lock no claim can commit, so the count below is final.
      await tx.query(`lock table ${tenant.schema}.jobs in access exclusive mode`);
      if (!force) refuseIfRunning(await countRunning(tx, tenant));
      await tx.query(`drop schema ${tenant.schema} cascade`);
    }
    await runQuery(tx, `delete from ${controlSchema}.tenants where id = :id`, { id: tenant.id });
    await announceTenants(tx);
  });
}

async function restore(db: Queryable, tenant: Tenant, before: TenantStatus): Promise<void> {
  // If this fails too, the tenant stays DELETING: deleting it again or activating it both work.
  await runQuery(
    db,
    `update ${controlSchema}.tenants set status = :status, updated_at = now() where id = :id and status = 'DELETING'`,
    { id: tenant.id, status: before },
  ).catch(() => {});
}

/** An unfinished creation may have left no schema, or a schema of the same name may belong to another program. */
async function isOurs(db: Queryable, tenant: Tenant): Promise<boolean> {
  const [found] = await runQuery<{ ours: boolean }>(db, `select to_regclass(:migrationsTable) is not null as ours`, {
    migrationsTable: `${tenant.schema}.migrations`,
  });
  return found?.ours ?? false;
}

async function countRunning(db: Queryable, tenant: Tenant): Promise<number> {
  if (!(await isOurs(db, tenant))) return 0;
  const [found] = await db.query<{ running: number }>(
    `select count(*)::int as running from (
       select from ${tenant.schema}.jobs
        where status in ('CLAIMED', 'PREPARING', 'LEASE_PENDING', 'RUNNING') limit ${maxCounted}) as with_workers`,
  );
  return found?.running ?? 0;
}

function refuseIfRunning(running: number): void {
  if (running === 0) return;
  throw problem('CONFLICT', `${running} of the tenant's jobs are with a worker; wait, cancel them, or use force.`, {
    running,
  });
}

function sameToken(stored: string | null, given: string): boolean {
  const a = Buffer.from(stored ?? '');
  const b = Buffer.from(given);
  return a.length > 0 && a.length === b.length && timingSafeEqual(a, b);
}
