// Carries out bulk operations in the background. A new one is begun at once where it was asked for;
// those of a daemon that died are found by a look at all tenants, one statement for many of them.
import pLimit from 'p-limit';
import type { Database } from '../database/database.ts';
import { runOperationsOnce } from '../jobs/actions/run-bulk-operations.ts';
import { Interval } from '../kernel/interval.ts';
import type { Logger } from '../kernel/logger.ts';
import type { Service } from '../kernel/service.ts';
import type { TenantRegistry } from '../tenants/registry.ts';
import type { Tenant } from '../tenants/tenant.ts';
import { type Probes, probeTenants, type TenantProbeResults } from './probe-tenants.ts';
import type { PolledTask } from './tenant-poller.ts';

export interface OperationRunnerOptions {
  db: Database;
  registry: Pick<TenantRegistry, 'active'>;
  logger: Logger;
  /** Time between two looks that the runner takes by itself; without it the daemon's watch tells it. */
  everyMs?: number;
  /** Lanes may have moved on, or jobs were resumed. */
  wake(slug: string): void;
}

const questions: Probes = {
  // True: nobody is at it; false: somebody is; null: there is none.
  operation_waits: (s) =>
    `(select locked_until is null or locked_until < now() from ${s}.operations
       where status = 'running' order by locked_until nulls first limit 1)`,
};
// An operation is no reason to take the connections that workers and requests need.
const tenantsAtOnce = 2;

export class OperationRunner implements Service {
  readonly name = 'operations';
  #options: OperationRunnerOptions;
  #interval: Interval;
  #abort = new AbortController();

  constructor(options: OperationRunnerOptions) {
    this.#options = options;
    this.#interval = new Interval(
      this.name,
      options.everyMs ?? Number.POSITIVE_INFINITY,
      () => this.runOnce(),
      options.logger,
    );
  }

  async start(): Promise<void> {
    await this.#interval.start();
  }

  /** The operations under way stop behind their present batch; another daemon goes on with them. */
  async stop(): Promise<void> {
    this.#abort.abort();
    await this.#interval.stop();
  }

  wake(): void {
    this.#interval.wake();
  }

  async runOnce(): Promise<void> {
    const { db, registry } = this.#options;
    await this.#finishAll(await probeTenants(db, registry.active(), questions));
  }

  /** What it wants to know from the watch: those of a daemon that died are found so. */
  watcher(everyMs: number): PolledTask {
    return {
      name: this.name,
      everyMs,
      suspended: false,
      probes: questions,
      isIdle: ({ operation_waits }) => operation_waits === null,
      onResults: (found) => this.#finishAll(found),
    };
  }

  async #finishAll(found: TenantProbeResults[]): Promise<void> {
    const limit = pLimit(tenantsAtOnce);
    const waiting = found.filter(({ results: answers }) => answers.operation_waits === true);
    await Promise.all(waiting.map(({ tenant }) => limit(() => this.#finish(tenant))));
  }

  async #finish(tenant: Tenant): Promise<void> {
    const { db, logger, wake } = this.#options;
    const { signal } = this.#abort;
    try {
      for (let more = true; more && !signal.aborted; ) {
        const run = await runOperationsOnce(db, tenant, { signal });
        if (run.handled > 0) wake(tenant.slug);
        more = run.more;
      }
    } catch (error) {
      // It is taken up again when its lock has run out.
      logger.warn({ err: error, tenant: tenant.slug }, 'bulk operation interrupted');
    }
  }
}
