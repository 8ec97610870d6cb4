// Queues the tenant's PENDING jobs when they are due. One timer, set for the earliest.
import type { Database } from '../../database/database.ts';
import { nextDueInMs, queueDueJobs } from '../../jobs/finish/due-jobs.ts';
import type { Logger } from '../../kernel/logger.ts';
import { EarliestTimer } from '../../kernel/service.ts';
import type { Tenant } from '../../tenants/tenant.ts';

export interface DueTimerOptions {
  db: Database;
  tenant: Pick<Tenant, 'slug' | 'schema'>;
  actor: string;
  logger: Logger;
  onQueued(): void;
}

// The delay before a due job is tried again if it could not be queued, for example because another daemon has locked
// it.
const retryMs = 250;

export class DueTimer {
  readonly #options: DueTimerOptions;
  readonly #timer = new EarliestTimer(() => this.#fire());
  #queueing: Promise<void> | undefined;

  constructor(options: DueTimerOptions) {
    this.#options = options;
  }

  /** A PENDING job is due in `ms`. */
  dueIn(ms: number): void {
    this.#timer.in(ms);
  }

  async stop(): Promise<void> {
    this.#timer.stop();
    await this.#queueing;
  }

  #fire(): void {
    const { logger, tenant } = this.#options;
    this.#queueing = this.#queueDue().catch((error: unknown) =>
      logger.warn({ err: error, tenant: tenant.slug }, 'due jobs could not be queued'),
    );
  }

  async #queueDue(): Promise<void> {
    const { db, tenant, actor, onQueued } = this.#options;
    const queued = await queueDueJobs(db, tenant.schema, actor);
    if (queued > 0) onQueued();
    // Handles further batches, and due times after the one this timer was set for.
    const nextMs = await nextDueInMs(db, tenant.schema);
    if (nextMs !== undefined) this.dueIn(queued > 0 ? nextMs + 1 : Math.max(nextMs + 1, retryMs));
  }
}
