// Limits how many long-lived requests (live streams, waiting claims) a daemon serves at once: in total, per tenant and
// per key. A share is reserved for tenants that have none, so that a few tenants cannot shut out the others.
import { problem } from './errors.ts';

export interface QuotaLimits {
  total: number;
  perTenant?: number | undefined;
  perKey?: number | undefined;
}

export interface Holder {
  tenantId: string;
  keyId: string;
}

const reservedShare = 1 / 20;

export class Quota {
  readonly #what: string;
  readonly #limits: { total: number; perTenant: number; perKey: number };
  readonly #reserved: number;
  readonly #byTenant = new Map<string, number>();
  readonly #byKey = new Map<string, number>();
  #used = 0;

  /** `what`: a plural noun for the error message. */
  constructor(what: string, { total, perTenant, perKey }: QuotaLimits) {
    this.#what = what;
    this.#limits = { total, perTenant: perTenant ?? total, perKey: perKey ?? total };
    this.#reserved = Math.floor(total * reservedShare);
  }

  get used(): number {
    return this.#used;
  }

  /** Takes a place or throws TOO_MANY_REQUESTS. Returns an idempotent function that releases the place. */
  enter({ tenantId, keyId }: Holder): () => void {
    const ofTenant = this.#byTenant.get(tenantId) ?? 0;
    const { total, perTenant, perKey } = this.#limits;
    if (this.#used >= (ofTenant === 0 ? total : total - this.#reserved)) throw this.#refused('server', this.#used);
    if (ofTenant >= perTenant) throw this.#refused('tenant', perTenant);
    if ((this.#byKey.get(keyId) ?? 0) >= perKey) throw this.#refused('key', perKey);
    this.#used += 1;
    add(this.#byTenant, tenantId, 1);
    add(this.#byKey, keyId, 1);
    let isReleased = false;
    return () => {
      if (isReleased) return;
      isReleased = true;
      this.#used -= 1;
      add(this.#byTenant, tenantId, -1);
      add(this.#byKey, keyId, -1);
    };
  }

  #refused(scope: 'server' | 'tenant' | 'key', limit: number) {
    const who = { server: 'This server', tenant: 'The tenant', key: 'The API key' }[scope];
    const here = scope === 'server' ? '' : ' on this server';
    return problem(
      'TOO_MANY_REQUESTS',
      `${who} has ${limit} ${this.#what}${here}, and takes no more; try again soon.`,
      {
        scope,
        limit,
      },
    );
  }
}

function add(counts: Map<string, number>, name: string, change: 1 | -1): void {
  const count = (counts.get(name) ?? 0) + change;
  if (count === 0) counts.delete(name);
  else counts.set(name, count);
}
