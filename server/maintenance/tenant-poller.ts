// The poll of all tenants. It sends the probes of every due task in one statement, and skips idle tenants: those
// without writes since the last poll and without work due soon. An idle tenant is probed about once a minute, so that
// changes made directly in SQL are noticed too. Several daemons share these probes: each probes an idle tenant less
// often.
import type { Database } from '../database/database.ts';
import { isDatabaseLost } from '../database/sql-errors.ts';
import { errorMessage } from '../kernel/errors.ts';
import type { Logger } from '../kernel/logger.ts';
import { Interval, type Service } from '../kernel/service.ts';
import type { TenantRegistry } from '../tenants/registry.ts';
import type { Tenant } from '../tenants/tenant.ts';
import { ActivityTracker } from './activity-tracker.ts';
import { type FailedProbe, type ProbeResults, type Probes, probeTenants, type TenantProbeResults } from './probes.ts';

/** A task that probes every tenant periodically. */
export interface PolledTask {
  readonly name: string;
  readonly everyMs: number;
  readonly probes: Probes;
  /** True if suspended tenants are probed too. */
  readonly includesSuspended: boolean;
  /** True if the task has nothing to do for this tenant within `idleForMs`, unless an event is written. */
  isIdle(results: ProbeResults, idleForMs: number, tenant: Tenant): boolean;
  /** How long an idle tenant is skipped; by default some periods, at most a minute. */
  readonly idleMs?: number;
  /** Milliseconds until this tenant must be probed again, if that is before the next period. */
  soonMs?(results: ProbeResults): number;
  /** Called with the results of the tenants that were probed, never twice at the same time. */
  onResults(found: PollResult[]): Promise<void> | void;
}

export interface PollResult extends TenantProbeResults {
  /** An event was written since this task last saw results of the tenant. */
  hasNewEvents: boolean;
  /** The tenant was skipped until now. Other daemons may still skip it. */
  wasIdle: boolean;
}

interface TenantPollerOptions {
  db: Database;
  registry: Pick<TenantRegistry, 'hasFewTenants' | 'list' | 'onFingerprint'>;
  logger: Logger;
  tasks: readonly PolledTask[];
  /** While it is connected, notifications of other daemons arrive, and `wake` is called if there is work. */
  notifications?: { readonly connected: boolean };
}

// Changes made directly in SQL, which write no event, are noticed after at most this time.
const maxIdleMs = 60_000;
const idlePeriods = 12;
// Used while all tenants are idle and notifications arrive. A lease granted meanwhile is still seen before it can
// expire, because its event is announced to the other daemons.
const periodsBetweenQuietPolls = 2;
const maxPeriodsBetweenQuietPolls = 6;
const never = Number.POSITIVE_INFINITY;
// With few tenants the workers have sent their first claims already, and a poll at the same time would delay them.
const firstPollMs = 200;
// A poll that comes a little too early is repeated after this time.
const minSoonMs = 100;

interface TaskState {
  task: PolledTask;
  dueAt: number;
  /** The time at which a tenant must be probed again before the next period. */
  soonAt: number;
  running: Promise<void> | undefined;
  /** By tenant id. */
  idleTenants: Map<string, Idleness>;
}

interface Idleness {
  probedAtMs: number;
  /** For how long the tenant is skipped; 0 if it is not idle. */
  idleMs: number;
  /** By how many daemons the time may be multiplied, because nothing becomes due meanwhile. */
  sharedBy: number;
  version: string | undefined;
}

export class TenantPoller implements Service {
  readonly name = 'tenant-poller';
  #options: TenantPollerOptions;
  #states: TaskState[];
  #interval: Interval;
  #everyMs: number;
  #activity = new ActivityTracker();
  #failures: TenantFailures;
  /** The last poll probed no tenant. */
  #quiet = false;
  /** The number of live daemons. */
  #daemons = 1;

  constructor(options: TenantPollerOptions) {
    this.#options = options;
    this.#failures = new TenantFailures(options.logger);
    this.#states = options.tasks.map((task) => ({
      task,
      dueAt: 0,
      soonAt: never,
      running: undefined,
      idleTenants: new Map(),
    }));
    this.#everyMs = Math.min(...options.tasks.map((task) => task.everyMs));
    this.#interval = new Interval(
      this.name,
      () => this.#nextPollMs(),
      () => this.poll(),
      options.logger,
    );
  }

  async start(): Promise<void> {
    await this.#interval.start();
    if (this.#options.registry.hasFewTenants) this.#interval.within(firstPollMs);
    else this.#interval.wake();
  }

  async stop(): Promise<void> {
    await this.#interval.stop();
    await Promise.all(this.#states.map((state) => state.running));
  }

  /** Something was written, or notifications no longer arrive. The next poll comes after one period. */
  wake(): void {
    if (!this.#quiet) return;
    this.#quiet = false;
    this.#interval.within(this.#everyMs);
  }

  /** Sets the number of other live daemons, which poll the same tenants. */
  setPeers(count: number): void {
    this.#daemons = 1 + count;
  }

  #nextPollMs(): number {
    const isQuiet = this.#quiet && this.#options.notifications?.connected === true;
    const quietPeriods = Math.min(periodsBetweenQuietPolls * this.#daemons, maxPeriodsBetweenQuietPolls);
    const periodMs = this.#everyMs * (isQuiet ? quietPeriods : 1);
    const soonestMs = Math.min(...this.#states.map((state) => state.soonAt)) - performance.now();
    return Math.min(periodMs, Math.max(minSoonMs, soonestMs));
  }

  /** Runs one poll for all due tasks. Does not await what the tasks do with the results. */
  async poll(): Promise<void> {
    const { db, registry } = this.#options;
    const now = performance.now();
    const isEarly = this.#states.some(({ soonAt }) => soonAt <= now + minSoonMs);
    // The tolerance keeps tasks of the same period in one statement, whatever the jitter and after an early poll.
    const until = now + (isEarly ? this.#everyMs : this.#everyMs / 4);
    const due = this.#states.filter((state) => state.running === undefined && state.dueAt <= until);
    if (due.length === 0) return;
    for (const state of due) state.soonAt = never;
    const tenants = registry.list().filter((t) => t.status === 'ACTIVE' || t.status === 'SUSPENDED');
    await this.#readActivity(tenants);
    this.#failures.forgetAllBut(tenants);
    const probed = tenants.filter(
      (tenant) => this.#failures.mayTry(tenant, now) && due.some((state) => this.#mustProbe(state, tenant, now)),
    );
    this.#quiet = probed.length === 0;
    const probes = Object.assign({}, ...due.map((state) => state.task.probes)) as Probes;
    const { found, failed } = await probeTenants(db, probed, probes);
    this.#failures.update(found, failed);
    for (const state of due) {
      const ofTask = found.filter(({ tenant }) => appliesTo(state, tenant));
      state.dueAt = now + state.task.everyMs;
      state.soonAt = now + Math.min(...ofTask.map(({ results }) => state.task.soonMs?.(results) ?? never));
      this.#forgetAllBut(state, tenants);
      this.#deliver(state, ofTask, now);
    }
  }

  async #readActivity(tenants: readonly Tenant[]): Promise<void> {
    const { db, registry, logger } = this.#options;
    try {
      registry.onFingerprint(await this.#activity.read(db, tenants));
    } catch (error) {
      if (isDatabaseLost(error)) throw error;
      // A tenant was deleted meanwhile, or the database refuses the statement, so every tenant is probed.
      logger.debug({ reason: errorMessage(error) }, 'activity of the tenants could not be read');
      this.#activity.clear();
    }
  }

  #mustProbe(state: TaskState, tenant: Tenant, now: number): boolean {
    if (!appliesTo(state, tenant)) return false;
    const idle = state.idleTenants.get(tenant.id);
    if (idle === undefined || idle.version !== this.#activity.versionOf(tenant)) return true;
    return idle.probedAtMs + idle.idleMs * Math.min(idle.sharedBy, this.#daemons) <= now;
  }

  #deliver(state: TaskState, found: TenantProbeResults[], now: number): void {
    const { task, idleTenants } = state;
    const idleMs = task.idleMs ?? Math.min(maxIdleMs, idlePeriods * task.everyMs);
    const pollResults = found.map(({ tenant, results }) => {
      const version = this.#activity.versionOf(tenant);
      const before = idleTenants.get(tenant.id);
      const hasNewEvents = before?.version !== version || version === undefined;
      const wasIdle = before !== undefined && before.idleMs > 0;
      const isCommitted = this.#activity.isCommitted(tenant);
      const isShared = isCommitted && task.isIdle(results, 2 * idleMs * this.#daemons, tenant);
      const isIdle = isShared || (isCommitted && task.isIdle(results, 2 * idleMs, tenant));
      idleTenants.set(tenant.id, {
        probedAtMs: now,
        // Jittered, so that tenants do not all come back in the same poll.
        idleMs: isIdle ? idleMs * (0.7 + Math.random() * 0.3) : 0,
        sharedBy: isShared ? this.#daemons : 1,
        version,
      });
      return { tenant, results, hasNewEvents, wasIdle };
    });
    state.running = this.#runTask(task, pollResults).finally(() => {
      state.running = undefined;
    });
  }

  async #runTask(task: PolledTask, found: PollResult[]): Promise<void> {
    try {
      await task.onResults(found);
    } catch (error) {
      this.#options.logger.error({ err: error, task: task.name }, 'periodic task failed');
    }
  }

  #forgetAllBut({ idleTenants }: TaskState, tenants: readonly Tenant[]): void {
    if (idleTenants.size <= tenants.length) return;
    const known = new Set(tenants.map((tenant) => tenant.id));
    for (const id of idleTenants.keys()) if (!known.has(id)) idleTenants.delete(id);
  }
}

function appliesTo({ task }: TaskState, tenant: Tenant): boolean {
  return task.includesSuspended || tenant.status === 'ACTIVE';
}

// Tenants whose probes fail, one by one: their node of the cluster is down, or their schema is damaged. They are tried
// less and less often, so that waiting for them does not delay the others.

const firstDelayMs = 1_000;
const maxDelayMs = 30_000;

class TenantFailures {
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
      // Logged once per outage.
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
