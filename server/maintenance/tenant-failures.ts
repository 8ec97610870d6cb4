// Tenants whose probes fail, one by one: their node of the cluster is down, or their schema is damaged. They are tried less
// and less often, so that waiting for them does not delay the others.
import { errorMessage } from '../kernel/errors.ts';
import type { Logger } from '../kernel/logger.ts';
import type { Tenant } from '../tenants/tenant.ts';
import type { FailedProbe, TenantProbeResults } from './probes.ts';

const firstDelayMs = 1_000;
const maxDelayMs = 30_000;

export class TenantFailures {
  readonly #logger: Logger;
  readonly #failing = new Map<string, { nextAt: number; delayMs: number }>();

  constructor(logger: Logger) {
    this.#logger = logger;
  }

  mayTry(tenant: Tenant, now: number): boolean {
    const failing = this.#failing.get(tenant.id);
    return failing === undefined || failing.nextAt <= now;
  }

  update(found: readonly TenantProbeResults[], failed: readonly FailedProbe[]): void {
    if (this.#failing.size === 0 && failed.length === 0) return;
    for (const { tenant } of found) {
      if (this.#failing.delete(tenant.id)) this.#logger.info({ tenant: tenant.slug }, 'tenant can be polled again');
    }
    for (const { tenant, error } of failed) {
      const before = this.#failing.get(tenant.id);
      // Once per outage.
      if (before === undefined) {
        this.#logger.error({ err: error, tenant: tenant.slug, reason: errorMessage(error) }, 'tenant cannot be polled');
      }
      const delayMs = before === undefined ? firstDelayMs : Math.min(2 * before.delayMs, maxDelayMs);
      this.#failing.set(tenant.id, { delayMs, nextAt: performance.now() + delayMs * (0.7 + Math.random() * 0.3) });
    }
  }

  forgetAllBut(tenants: readonly Tenant[]): void {
    if (this.#failing.size === 0) return;
    const known = new Set(tenants.map((tenant) => tenant.id));
    for (const id of this.#failing.keys()) if (!known.has(id)) this.#failing.delete(id);
  }
}
