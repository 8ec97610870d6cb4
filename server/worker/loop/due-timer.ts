// Knows when the tenant's next PENDING job is due and queues it then. One timer, for the earliest.
import type { Database } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { nextDueInMs, queueDueJobs } from '../../jobs/finish/due.ts';

export interface DueTimerOptions {
  db: Database;
  schema: Schema;
  actor: string;
  onQueued(): void;
  onError(error: unknown): void;
}

// A due job that nobody could queue is left to others for a moment.
const stuckMs = 250;
// setTimeout fires at once beyond 2^31-1 ms.
const maxTimerMs = 2 ** 31 - 1;

export class DueTimer {
  readonly #options: DueTimerOptions;
  #timer: NodeJS.Timeout | undefined;
  #at = Number.POSITIVE_INFINITY;
  #queueing: Promise<void> | undefined;
  #stopped = false;

  constructor(options: DueTimerOptions) {
    this.#options = options;
  }

  /** A PENDING job is due in `ms`. */
  dueIn(ms: number): void {
    const at = performance.now() + ms;
    if (this.#stopped || at >= this.#at) return;
    this.#at = at;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#fire(), Math.min(Math.max(1, ms), maxTimerMs));
  }

  async stop(): Promise<void> {
    this.#stopped = true;
    clearTimeout(this.#timer);
    await this.#queueing;
  }

  #fire(): void {
    this.#at = Number.POSITIVE_INFINITY;
    this.#queueing = this.#queueDue().catch((error: unknown) => this.#options.onError(error));
  }

  async #queueDue(): Promise<void> {
    const { db, schema, actor, onQueued } = this.#options;
    const queued = await queueDueJobs(db, schema, actor);
    if (queued > 0) onQueued();
    // The rest of a full batch, and due times that were behind this one when they became known.
    const nextMs = await nextDueInMs(db, schema);
    if (nextMs !== undefined) this.dueIn(queued > 0 ? nextMs + 1 : Math.max(nextMs + 1, stuckMs));
  }
}
