// Runs the gate of limits for a tenant's loop when the loop is woken, a slot becomes free or a token is due. One run at
// a time. It runs in parallel to claims, so a job without a limit does not wait for it.
import type { Database } from '../../database/database.ts';
import { assignLimits } from '../../jobs/limits/assign-limits.ts';
import { dropFullBuckets, type GatePosition, openGate } from '../../jobs/limits/gate.ts';
import { claimantOf } from '../../jobs/limits/limit-keys.ts';
import type { Logger } from '../../kernel/logger.ts';
import { EarliestTimer } from '../../kernel/service.ts';
import type { Metrics } from '../../stats/metrics.ts';
import type { Tenant } from '../../tenants/tenant.ts';

export interface LimitGateContext {
  db: Database;
  logger: Logger;
  handlers: { types(): readonly string[] };
  metrics: Pick<Metrics, 'limitedOpened'>;
}

export interface LimitGateOptions {
  /** The number of jobs that the loop can take now. */
  room(): number;
  onOpened(): void;
}

// Tokens of a fast limit are given out together, because a run for each would cost more than smooth starts are worth.
const minPauseMs = 20;
// The loop has no room. Nothing is sent to the database.
const fullMs = 100;
// The delay after a run that could not visit all keys.
const nextKeysMs = 50;
const retryMs = 1000;
const cleanEveryMs = 60_000;

export class LimitGate {
  readonly #context: LimitGateContext;
  readonly #options: LimitGateOptions;
  readonly #timer = new EarliestTimer(() => this.#start());
  readonly #stopping = new AbortController();
  #tenant: Tenant;
  #running: Promise<void> | undefined;
  #again = false;
  #lastRunAt = Number.NEGATIVE_INFINITY;
  #cleanedAt = performance.now();
  #position: GatePosition | undefined;

  constructor(tenant: Tenant, context: LimitGateContext, options: LimitGateOptions) {
    this.#tenant = tenant;
    this.#context = context;
    this.#options = options;
  }

  /** True if some limits count running jobs. Each end may then let another job start. */
  get countsRunning(): boolean {
    return this.#tenant.limits.some((limit) => limit.concurrency !== undefined);
  }

  /** A job may have been queued, or a slot of a limit may be free. Without limits, this does nothing. */
  wake(): void {
    if (this.#tenant.limits.length > 0) this.wakeNow();
  }

  /** Jobs wait at the gate, even if the tenant no longer has limits. */
  wakeNow(): void {
    if (this.#running === undefined) this.#timer.in(this.#lastRunAt + minPauseMs - performance.now());
    else this.#again = true;
  }

  /** If the limits have changed, they are assigned to the existing jobs. */
  update(tenant: Tenant): void {
    const isChanged = JSON.stringify(tenant.limits) !== JSON.stringify(this.#tenant.limits);
    this.#tenant = tenant;
    if (!isChanged) return;
    const { db, logger } = this.#context;
    assignLimits(db, tenant.schema, tenant.limits, this.#stopping.signal)
      .then(() => this.wakeNow())
      .catch((error: unknown) =>
        logger.warn({ err: error, tenant: tenant.slug }, 'changed limits could not be assigned'),
      );
  }

  async stop(): Promise<void> {
    this.#stopping.abort();
    this.#timer.stop();
    await this.#running;
  }

  #start(): void {
    if (this.#running !== undefined) return;
    const { logger } = this.#context;
    this.#running = this.#run()
      .catch((error: unknown) => {
        logger.warn({ err: error, tenant: this.#tenant.slug }, 'the gate of limits could not run');
        return retryMs;
      })
      .then((nextMs) => {
        this.#running = undefined;
        this.#lastRunAt = performance.now();
        if (this.#again) this.#timer.in(minPauseMs);
        else if (nextMs !== undefined) this.#timer.in(Math.max(minPauseMs, nextMs));
      });
  }

  /** Returns the delay until the next run, if it is known. */
  async #run(): Promise<number | undefined> {
    const { db, handlers, metrics } = this.#context;
    const { room, onOpened } = this.#options;
    const { slug, schema, limits } = this.#tenant;
    this.#again = false;
    const claimants = handlers.types().map((type) => claimantOf({ type }));
    if (claimants.length === 0) return undefined;
    const free = room();
    if (free <= 0) return fullMs;
    const result = await openGate(db, schema, { limits, claimants, room: free, from: this.#position });
    this.#position = result.position;
    if (result.opened > 0) {
      metrics.limitedOpened.add(slug, result.opened);
      onOpened();
    }
    await this.#clean();
    return result.position === undefined ? result.nextMs : nextKeysMs;
  }

  async #clean(): Promise<void> {
    if (performance.now() - this.#cleanedAt < cleanEveryMs) return;
    this.#cleanedAt = performance.now();
    await dropFullBuckets(this.#context.db, this.#tenant.schema);
  }
}
