// The gate of limits in a tenant's loop. The loop runs it when it is woken, a slot becomes free or a token is due, one
// run at a time. It runs in parallel to claims, so a job without a limit does not wait for it.
import type { Database } from '../../database/database.ts';
import { dropFullBuckets, type GatePosition, openGate } from '../../jobs/limits/gate.ts';
import { assignLimits, claimantOf } from '../../jobs/limits/limit-keys.ts';
import type { Logger } from '../../kernel/logger.ts';
import type { Metrics } from '../../stats/metrics.ts';
import type { Tenant } from '../../tenants/tenant.ts';

export interface LimitGateContext {
  db: Database;
  logger: Logger;
  handlers: { types(): readonly string[] };
  metrics: Pick<Metrics, 'limitedOpened'>;
}

export interface GateRun {
  /** The number of jobs that may now be claimed. */
  opened: number;
  /** The delay until the next run, if it is known. */
  nextMs: number | undefined;
}

// Tokens of a fast limit are given out together, because a run for each would cost more than smooth starts are worth.
const minPauseMs = 20;
// A run costs some milliseconds of CPU. Jobs without limits wake it too: while its runs open nothing, it follows their
// wake-ups less and less often. The time of a token is known, and is not delayed by this.
const maxPauseMs = 160;
// The loop has no room. Nothing is sent to the database.
const fullMs = 100;
// The delay after a run that could not visit all keys.
const nextKeysMs = 50;
const retryMs = 1000;
const cleanEveryMs = 60_000;

export class LimitGate {
  readonly #context: LimitGateContext;
  readonly #stopping = new AbortController();
  #tenant: Tenant;
  #isRunning = false;
  #again = false;
  #lastRunAt = Number.NEGATIVE_INFINITY;
  /** The pause after the last run before a wake-up leads to the next one. */
  #pauseMs = minPauseMs;
  #cleanedAt = performance.now();
  #position: GatePosition | undefined;

  constructor(tenant: Tenant, context: LimitGateContext) {
    this.#tenant = tenant;
    this.#context = context;
  }

  get hasLimits(): boolean {
    return this.#tenant.limits.length > 0;
  }

  /** True if some limits count running jobs. Each end may then let another job start. */
  get countsRunning(): boolean {
    return this.#tenant.limits.some((limit) => limit.concurrency !== undefined);
  }

  /** The delay until the next run may begin. Undefined during a run, after which the gate runs again. */
  runInMs(): number | undefined {
    if (!this.#isRunning) return this.#lastRunAt + this.#pauseMs - performance.now();
    this.#again = true;
    return undefined;
  }

  /** If the limits have changed, assigns them to the existing jobs; then the gate must run. */
  async update(tenant: Tenant): Promise<'changed' | 'unchanged'> {
    const isChanged = JSON.stringify(tenant.limits) !== JSON.stringify(this.#tenant.limits);
    this.#tenant = tenant;
    if (!isChanged) return 'unchanged';
    const { db, logger } = this.#context;
    try {
      await assignLimits(db, tenant.schema, tenant.limits, this.#stopping.signal);
      return 'changed';
    } catch (error) {
      logger.warn({ err: error, tenant: tenant.slug }, 'changed limits could not be assigned');
      return 'unchanged';
    }
  }

  /** Ends the assignment of changed limits. */
  stop(): void {
    this.#stopping.abort();
  }

  /** Opens the gate for up to `room` jobs, unless it is running. Never rejects. */
  async run(room: number): Promise<GateRun> {
    if (this.#isRunning) return { opened: 0, nextMs: undefined };
    this.#isRunning = true;
    this.#again = false;
    const result = await this.#open(room).catch((error: unknown) => {
      this.#context.logger.warn({ err: error, tenant: this.#tenant.slug }, 'the gate of limits could not run');
      return { opened: 0, nextMs: retryMs };
    });
    this.#isRunning = false;
    this.#lastRunAt = performance.now();
    const { opened, nextMs } = result;
    if (this.#again) return { opened, nextMs: Math.max(minPauseMs, Math.min(this.#pauseMs, nextMs ?? maxPauseMs)) };
    return { opened, nextMs: nextMs === undefined ? undefined : Math.max(minPauseMs, nextMs) };
  }

  async #open(room: number): Promise<GateRun> {
    const { db, handlers, metrics } = this.#context;
    const { slug, schema, limits } = this.#tenant;
    const claimants = handlers.types().map((type) => claimantOf({ type }));
    if (claimants.length === 0) return { opened: 0, nextMs: undefined };
    if (room <= 0) return { opened: 0, nextMs: fullMs };
    await this.#clean();
    const { opened, position, nextMs } = await openGate(db, schema, { limits, claimants, room, from: this.#position });
    this.#position = position;
    this.#pauseMs = opened > 0 ? minPauseMs : Math.min(this.#pauseMs * 2, maxPauseMs);
    if (opened > 0) metrics.limitedOpened.add(slug, opened);
    return { opened, nextMs: position === undefined ? nextMs : nextKeysMs };
  }

  async #clean(): Promise<void> {
    if (performance.now() - this.#cleanedAt < cleanEveryMs) return;
    this.#cleanedAt = performance.now();
    await dropFullBuckets(this.#context.db, this.#tenant.schema);
  }
}
