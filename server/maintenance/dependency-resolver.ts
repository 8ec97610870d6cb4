// Lets jobs go on when those they wait for have ended, tenant by tenant. Knows which tenants have such jobs, so that the
// commits of all others cost nothing here.
import type { Database } from '../database/database.ts';
import type { ReportSetAside } from '../events/log/set-aside.ts';
import { queueDueJobs } from '../jobs/finish/waiting-jobs.ts';
import { cancelChildren } from '../jobs/flows/cancel-children.ts';
import { followDependencies } from '../jobs/flows/follow-dependencies.ts';
import type { Tenant } from '../tenants/tenant.ts';
import type { TaskResult } from './per-tenant-task.ts';

interface ResolverOptions {
  db: Database;
  actor: string;
  /** There may be jobs to claim now. */
  workAvailable(tenant: Tenant): void;
  onSetAside: ReportSetAside;
}

const dueAtOnce = 500;

export class DependencyResolver {
  readonly #options: ResolverOptions;
  /** By slug. */
  readonly #active = new Set<string>();

  constructor(options: ResolverOptions) {
    this.#options = options;
  }

  /** Whether jobs of the tenant wait for others, as far as this daemon knows. The poll finds what it does not know. */
  isActive(slug: string): boolean {
    return this.#active.has(slug);
  }

  async runForTenant(tenant: Tenant): Promise<TaskResult> {
    const { db, actor, onSetAside } = this.#options;
    const followed = await followDependencies(db.forTenant(tenant.schema), tenant.schema);
    if (followed === undefined) {
      this.#active.delete(tenant.slug);
      return 'idle';
    }
    this.#active.add(tenant.slug);
    onSetAside(tenant, followed.setAside);
    const more = await cancelChildren(db.forTenant(tenant.schema), tenant.schema, actor);
    if (followed.handled > 0 || more) await this.#queueDue(tenant);
    if (!followed.complete || more) return 'more';
    return followed.busy ? 'some' : 'idle';
  }

  async #queueDue(tenant: Tenant): Promise<void> {
    const { db, actor, workAvailable } = this.#options;
    for (;;) {
      const queued = await queueDueJobs(db.forTenant(tenant.schema), tenant.schema, actor, dueAtOnce);
      if (queued > 0) workAvailable(tenant);
      if (queued < dueAtOnce) return;
    }
  }
}
