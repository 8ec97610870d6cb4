// The tenants of an embedded Leasehold: the functions of /api/admin/tenants as calls.
import type { Daemon } from '../daemon/daemon.ts';
import { Problem } from '../kernel/errors.ts';
import { createTenant } from '../tenants/create-tenant.ts';
import { findTenant, readAllTenants, updateTenantSettings } from '../tenants/tenant-store.ts';
import type { TenantInfo, TenantOptions, Tenants } from './api.ts';

export class HostTenants implements Tenants {
  readonly #daemon: Pick<Daemon, 'db' | 'registry'>;

  constructor(daemon: Pick<Daemon, 'db' | 'registry'>) {
    this.#daemon = daemon;
  }

  /** The key has every scope of the tenant and is shown only here. */
  async create(slug: string, settings?: TenantOptions): Promise<{ tenant: TenantInfo; key: string }> {
    const { tenant, key } = await createTenant(this.#daemon.db, { slug, settings });
    await this.#daemon.registry.refresh();
    return { tenant: infoOf(tenant), key: key.text };
  }

  /**
   * Creates the tenant if it is missing. The key of a tenant that is created here is not kept: create keys over the
   * API.
   */
  async ensure(slug: string, settings?: TenantOptions): Promise<TenantInfo> {
    const { db, registry } = this.#daemon;
    const known = await findTenant(db, slug);
    if (known?.status !== 'PROVISIONING' && known !== undefined) return infoOf(known);
    try {
      return (await this.create(slug, settings)).tenant;
    } catch (error) {
      // Another process created it meanwhile.
      if (!(error instanceof Problem) || error.code !== 'ALREADY_EXISTS') throw error;
      await registry.refresh();
      const made = await findTenant(db, slug);
      if (made === undefined) throw error;
      return infoOf(made);
    }
  }

  async list(): Promise<TenantInfo[]> {
    return (await readAllTenants(this.#daemon.db)).map(infoOf);
  }

  /** A given field replaces, null removes, the others stay. */
  async configure(
    slug: string,
    settings: { [K in keyof TenantOptions]?: TenantOptions[K] | null },
  ): Promise<TenantInfo> {
    const tenant = await updateTenantSettings(this.#daemon.db, slug, settings);
    await this.#daemon.registry.refresh();
    return infoOf(tenant);
  }
}

function infoOf({ slug, schemaName, status, settings }: TenantInfo): TenantInfo {
  return { slug, schemaName, status, settings };
}
