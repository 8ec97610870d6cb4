import { describe, expect, it, onTestFinished } from 'vitest';
import type { Queryable } from '../../../server/database/database.ts';
import { createLogger } from '../../../server/kernel/logger.ts';
import { createTenant } from '../../../server/tenants/create-tenant.ts';
import { deleteTenant, requestTenantDeletion } from '../../../server/tenants/delete-tenant.ts';
import { TenantRegistry } from '../../../server/tenants/registry.ts';
import { suspendTenant } from '../../../server/tenants/tenant-store.ts';
import { eventually } from '../../support/eventually.ts';
import { useDatabase } from '../../support/postgres/database.ts';

const context = useDatabase();

async function startRegistry(db: Queryable, everyMs?: number): Promise<TenantRegistry> {
  const registry = new TenantRegistry(db, createLogger('silent'), everyMs);
  await registry.start();
  onTestFinished(() => registry.stop());
  return registry;
}

describe('the registries of two daemons', () => {
  it('see a new, a suspended and a deleted tenant without a restart', async () => {
    const registries = [await startRegistry(context.db), await startRegistry(context.db)];
    const bothSee = (check: (registry: TenantRegistry) => void) => eventually(() => registries.forEach(check));
    const { tenant } = await createTenant(context.db, { slug: 'fresh' });
    await bothSee((r) => expect(r.bySlug('fresh')?.status).toBe('ACTIVE'));
    expect(registries[0]?.byId(tenant.id)?.schema).toBe('"tenant_fresh"');
    await suspendTenant(context.db, 'fresh');
    await bothSee((r) => expect(r.active().map((t) => t.slug)).not.toContain('fresh'));
    expect(registries[1]?.list().map((t) => t.slug)).toContain('fresh');
    const { confirm } = await requestTenantDeletion(context.db, 'fresh');
    await deleteTenant(context.db, 'fresh', { confirm });
    await bothSee((r) => expect(r.bySlug('fresh')).toBeUndefined());
  });
});

describe('a registry', () => {
  it('notifies listeners of changes and only of them', async () => {
    const registry = await startRegistry(context.db, 3_600_000);
    const seen: string[][] = [];
    const off = registry.onChange((tenants) => seen.push(tenants.map((t) => t.slug)));
    registry.onChange(() => {
      throw new Error('a bad listener');
    });
    await registry.refresh();
    expect(seen).toEqual([]);
    await createTenant(context.db, { slug: 'heard' });
    await registry.refresh();
    expect(seen.at(-1)).toContain('heard');
    off();
    const count = seen.length;
    await suspendTenant(context.db, 'heard');
    await registry.refresh();
    expect(seen).toHaveLength(count);
    expect(registry.bySlug('heard')?.status).toBe('SUSPENDED');
  });

  it('keeps its last state while the database is unavailable, and catches up', async () => {
    await createTenant(context.db, { slug: 'kept' });
    let away = false;
    const flaky: Queryable = {
      query: (text, values) =>
        away ? Promise.reject(new Error('Connection terminated')) : context.db.query(text, values),
    };
    const registry = await startRegistry(flaky, 20);
    away = true;
    await expect(registry.refresh()).rejects.toThrow();
    expect(registry.bySlug('kept')?.status).toBe('ACTIVE');
    await suspendTenant(context.db, 'kept');
    away = false;
    await eventually(() => expect(registry.bySlug('kept')?.status).toBe('SUSPENDED'));
  });

  it('omits settings that it does not understand and keeps the others', async () => {
    await createTenant(context.db, { slug: 'newer', settings: { concurrency: 4 } });
    await context.db.query(
      `update leasehold.tenants set updated_at = now(),
         settings = '{"concurrency": 4, "token_limit": "lots", "from_the_future": 1}' where slug = 'newer'`,
    );
    const registry = await startRegistry(context.db, 3_600_000);
    expect(registry.bySlug('newer')?.settings).toEqual({ concurrency: 4 });
  });
});
