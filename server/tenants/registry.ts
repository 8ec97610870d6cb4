// All tenants in memory. The rows are read again only when a notification or a poll reports a change. While the
// database cannot be reached, the last known state stays.
import type { Queryable } from '../database/database.ts';
import { errorMessage } from '../kernel/errors.ts';
import type { Logger } from '../kernel/logger.ts';
import type { Service } from '../kernel/service.ts';
import { Interval } from '../kernel/service.ts';
import type { Tenant } from './tenant.ts';
import { readTenantsAndFingerprint, readTenantsFingerprint } from './tenant-store.ts';

// A tenant created on one daemon must be served by all within a second or two: through a notification or, without
// notifications, by reading every second.
const refreshMs = 1000;
const refreshWhenNotifiedMs = 15_000;

const fewTenants = 5;

export type TenantsListener = (tenants: readonly Tenant[]) => void;

export class TenantRegistry implements Service {
  readonly name = 'tenant-registry';
  #db: Queryable;
  #logger: Logger;
  #interval: Interval;
  #tenants: readonly Tenant[] = [];
  #bySlug = new Map<string, Tenant>();
  #byId = new Map<string, Tenant>();
  #fingerprint: string | undefined;
  #listeners = new Set<TenantsListener>();
  #reading: Promise<void> | undefined;
  #failing = false;
  #readAt = Number.NEGATIVE_INFINITY;
  readonly #notifications: { readonly connected: boolean } | undefined;

  /** While `notifications` are connected, changes are announced to this daemon. */
  constructor(db: Queryable, logger: Logger, everyMs = refreshMs, notifications?: { readonly connected: boolean }) {
    this.#db = db;
    this.#logger = logger;
    this.#notifications = notifications;
    const period = () => (this.#notifications?.connected ? refreshWhenNotifiedMs : everyMs);
    this.#interval = new Interval(this.name, period, () => this.#tick(), logger);
  }

  /** Reads the tenants once, then keeps refreshing. Does not fail if the database cannot be reached. */
  async start(): Promise<void> {
    await this.#tick();
    await this.#interval.start();
  }

  async stop(): Promise<void> {
    await this.#interval.stop();
    await this.#reading?.catch(() => {});
  }

  list(): readonly Tenant[] {
    return this.#tenants;
  }

  active(): readonly Tenant[] {
    return this.#tenants.filter((tenant) => tenant.status === 'ACTIVE');
  }

  /**
   * True if a daemon claims for every active tenant when it starts. With many, its first poll finds those with work.
   */
  get hasFewTenants(): boolean {
    return this.active().length <= fewTenants;
  }

  bySlug(slug: string): Tenant | undefined {
    return this.#bySlug.get(slug);
  }

  byId(id: string): Tenant | undefined {
    return this.#byId.get(id);
  }

  /** Calls `listener` after every change. Returns a function that unsubscribes. */
  onChange(listener: TenantsListener): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** Reads the committed state; rejects if the database cannot be reached. */
  async refresh(): Promise<void> {
    // A read in flight may have begun before the caller's commit, so it is awaited and repeated.
    await this.#reading?.catch(() => {});
    this.#reading ??= this.#read().finally(() => {
      this.#reading = undefined;
    });
    return this.#reading;
  }

  /** A poll has read the tenants' fingerprint together with other values. */
  onFingerprint(fingerprint: string): void {
    this.#readAt = performance.now();
    if (fingerprint !== this.#fingerprint) void this.#tryRefresh();
  }

  /** Changes may have been missed. */
  refreshNow(): void {
    this.#readAt = Number.NEGATIVE_INFINITY;
    this.#interval.wake();
  }

  async #tick(): Promise<void> {
    if (this.#notifications?.connected && performance.now() - this.#readAt < refreshWhenNotifiedMs) return;
    await this.#tryRefresh();
  }

  async #tryRefresh(): Promise<void> {
    try {
      await this.refresh();
      if (this.#failing) this.#logger.info('tenants can be read again');
      this.#failing = false;
    } catch (error) {
      // Logged once per outage, because this runs every second.
      if (!this.#failing)
        this.#logger.warn({ reason: errorMessage(error) }, 'tenants cannot be read, keeping the last state');
      this.#failing = true;
    }
  }

  async #read(): Promise<void> {
    const known = this.#fingerprint !== undefined && (await readTenantsFingerprint(this.#db)) === this.#fingerprint;
    this.#readAt = performance.now();
    if (known) return;
    const { tenants, fingerprint } = await readTenantsAndFingerprint(this.#db);
    this.#replace(tenants);
    this.#fingerprint = fingerprint;
    this.#announce();
  }

  #replace(tenants: readonly Tenant[]): void {
    this.#tenants = tenants;
    this.#bySlug = new Map(tenants.map((tenant) => [tenant.slug, tenant]));
    this.#byId = new Map(tenants.map((tenant) => [tenant.id, tenant]));
  }

  #announce(): void {
    for (const listener of this.#listeners) {
      try {
        listener(this.#tenants);
      } catch (error) {
        this.#logger.error({ err: error }, 'a listener for tenant changes failed');
      }
    }
  }
}
