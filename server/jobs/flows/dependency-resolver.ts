// Queues jobs when the jobs they wait for have ended, tenant by tenant. Tracks which tenants have such jobs, so that
// commits of other tenants cost nothing here.
import type { Database } from '../../database/database.ts';
import type { ReportSetAside } from '../../events/log/set-aside.ts';
import type { Tenant } from '../../tenants/tenant.ts';
import type { CommitSignals } from '../commit-signals.ts';
import { queueDueJobs } from '../finish/due-jobs.ts';
import { cancelChildren } from './cancel-children.ts';
import { followDependencies } from './follow-dependencies.ts';

interface ResolverOptions {
  db: Database;
  actor: string;
  signals: Pick<CommitSignals, 'jobsWritten'>;
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

  /** True if jobs of the tenant wait for others, as far as this daemon knows. The poll finds the rest. */
  isActive(slug: string): boolean {
    return this.#active.has(slug);
  }

  async runForTenant(tenant: Tenant): Promise<'more' | 'some' | 'idle'> {
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
    const { db, actor, signals } = this.#options;
    for (;;) {
      const queued = await queueDueJobs(db.forTenant(tenant.schema), tenant.schema, actor, dueAtOnce);
      if (queued > 0) signals.jobsWritten(tenant);
      if (queued < dueAtOnce) return;
    }
  }
}
