// Seals the events of all tenants, soon after they were committed and never in their way.
import type { Database } from '../database/database.ts';
import type { ReportSetAside } from '../events/log/set-aside.ts';
import { sealEvents } from '../events/seals/seal.ts';
import type { Logger } from '../kernel/logger.ts';
import type { Service } from '../kernel/service.ts';
import { PerTenantTask, type TaskResult } from '../tenants/per-tenant-task.ts';
import type { TenantRegistry } from '../tenants/registry.ts';
import type { Tenant } from '../tenants/tenant.ts';

// A few seconds of blocks: what is not yet sealed is what verification cannot vouch for.
const busyMs = 2000;
const idleMs = 60_000;
// Blocks in one visit: beyond it other tenants come first.
const maxBlocks = 20;

export class Sealer implements Service {
  readonly name = 'sealer';
  #db: Database;
  #task: PerTenantTask;
  #underLoad: () => boolean;
  #onSetAside: ReportSetAside | undefined;

  constructor(options: {
    db: Database;
    registry: Pick<TenantRegistry, 'list'>;
    logger: Logger;
    /** Somebody wakes it where there is something to seal: see TenantRounds. */
    watched?: boolean;
    underLoad?: () => boolean;
    onSetAside?: ReportSetAside;
  }) {
    this.#onSetAside = options.onSetAside;
    this.#db = options.db;
    this.#underLoad = options.underLoad ?? (() => false);
    this.#task = new PerTenantTask({
      name: this.name,
      registry: options.registry,
      logger: options.logger,
      runForTenant: (tenant, signal) => this.#sealTenant(tenant, signal),
      busyMs,
      idleMs,
      concurrency: 2,
      watched: options.watched ?? false,
      ...(options.underLoad && { underLoad: options.underLoad }),
    });
  }

  async start(): Promise<void> {
    await this.#task.start();
  }

  async stop(): Promise<void> {
    await this.#task.stop();
  }

  /** There are events to seal. */
  wake(slug: string): void {
    this.#task.wake(slug);
  }

  /** One round over all tenants. */
  async runOnce(): Promise<void> {
    await this.#task.runOnce(true);
  }

  async #sealTenant(tenant: Tenant, signal: AbortSignal): Promise<TaskResult> {
    let sealed = 0;
    for (let block = 0; block < maxBlocks; block++) {
      if (signal.aborted || (block > 0 && this.#underLoad())) return 'more';
      const { handled, complete, busy, setAside } = await sealEvents(this.#db, tenant.schema);
      this.#onSetAside?.(tenant, setAside);
      sealed += handled;
      if (complete) return sealed > 0 ? 'some' : busy ? 'none' : 'rest';
    }
    return 'more';
  }
}
