// The one look round all tenants that an idle daemon takes: asks for everybody who wants to know
// something of every tenant, in one statement, and leaves out the tenants that are at rest: where
// nothing happened since the last look and nothing is due soon. Those are asked once a minute.
import { type Database, isConnectionError } from '../database/database.ts';
import { errorMessage } from '../kernel/errors.ts';
import { Interval } from '../kernel/interval.ts';
import type { Logger } from '../kernel/logger.ts';
import type { Service } from '../kernel/service.ts';
import type { TenantRegistry } from '../tenants/registry.ts';
import type { Tenant } from '../tenants/tenant.ts';
import { ActivityTracker } from './activity-tracker.ts';
import { type ProbeResults, type Probes, probeTenants, type TenantProbeResults } from './probe-tenants.ts';

/** Somebody who wants to know something of every tenant, again and again. */
export interface PolledTask {
  readonly name: string;
  readonly everyMs: number;
  readonly probes: Probes;
  /** Suspended tenants too. */
  readonly suspended: boolean;
  /** Nothing of this tenant's comes up within `restMs` unless an event is written. */
  isIdle(answers: ProbeResults, idleForMs: number, tenant: Tenant): boolean;
  /** How long a tenant at rest is left out; a minute, or some periods, if it does not say. */
  readonly restMs?: number;
  /** The answers of those who do not rest; while it is at work it is not called again. */
  onResults(found: PollResult[]): Promise<void> | void;
}

export interface PollResult extends TenantProbeResults {
  /** Something was written since this watcher last heard of the tenant. */
  hasNewEvents: boolean;
}

export interface TenantPollerOptions {
  db: Database;
  registry: Pick<TenantRegistry, 'list' | 'onFingerprint'>;
  logger: Logger;
  tasks: readonly PolledTask[];
  /** True while wake-ups of other daemons arrive here: then `stir` is called when there is something to do. */
  receivesNotifications?(): boolean;
}

// Of what leaves no event (a hand in the database) an idle tenant's daemons learn this late.
const maxIdleMs = 60_000;
const idlePeriods = 12;
// While all tenants rest and wake-ups arrive. A lease that is taken meanwhile is known before it can run out.
const periodsBetweenQuietPolls = 2;

interface TaskState {
  task: PolledTask;
  dueAt: number;
  busy: Promise<void> | undefined;
  /** By tenant id: until when it may be left out, and the mark under which that was decided. */
  idleTenants: Map<string, { until: number; mark: string | undefined }>;
}

export class TenantPoller implements Service {
  readonly name = 'watch';
  #options: TenantPollerOptions;
  #tasks: TaskState[];
  #interval: Interval;
  #everyMs: number;
  #activity = new ActivityTracker();
  #quiet = false;

  constructor(options: TenantPollerOptions) {
    this.#options = options;
    this.#tasks = options.tasks.map((task) => ({ task, dueAt: 0, busy: undefined, idleTenants: new Map() }));
    this.#everyMs = Math.min(...options.tasks.map((task) => task.everyMs));
    const periods = () => (this.#quiet && options.receivesNotifications?.() === true ? periodsBetweenQuietPolls : 1);
    this.#interval = new Interval(
      this.name,
      () => this.#everyMs * periods(),
      () => this.poll(),
      options.logger,
    );
  }

  async start(): Promise<void> {
    await this.#interval.start();
    this.#interval.wake();
  }

  async stop(): Promise<void> {
    await this.#interval.stop();
    await Promise.all(this.#tasks.map((state) => state.busy));
  }

  /** Something happens, or wake-ups no longer arrive: the next look is not put off. */
  wake(): void {
    if (!this.#quiet) return;
    this.#quiet = false;
    this.#interval.within(this.#everyMs);
  }

  /** One look, for all whose time has come. What they begin goes on behind it. */
  async poll(): Promise<void> {
    const { db, registry } = this.#options;
    const now = performance.now();
    // Those with the same period stay together, whatever the jitter.
    const due = this.#tasks.filter((d) => d.busy === undefined && d.dueAt <= now + this.#everyMs / 4);
    if (due.length === 0) return;
    const tenants = registry.list().filter((t) => t.status === 'ACTIVE' || t.status === 'SUSPENDED');
    await this.#readActivity(tenants);
    const asked = tenants.filter((tenant) => due.some((state) => this.#isDue(state, tenant, now)));
    this.#quiet = asked.length === 0;
    const questions = Object.assign({}, ...due.map((state) => state.task.probes)) as Probes;
    const answers = await probeTenants(db, asked, questions);
    for (const state of due) {
      state.dueAt = now + state.task.everyMs;
      this.#forgetAllBut(state, tenants);
      this.#deliver(
        state,
        answers.filter(({ tenant }) => appliesTo(state, tenant)),
        now,
      );
    }
  }

  async #readActivity(tenants: readonly Tenant[]): Promise<void> {
    const { db, registry, logger } = this.#options;
    try {
      registry.onFingerprint(await this.#activity.read(db, tenants));
    } catch (error) {
      if (isConnectionError(error)) throw error;
      // A tenant was deleted meanwhile, or the database does not tell: everybody is asked.
      logger.debug({ reason: errorMessage(error) }, 'marks of the tenants could not be read');
      this.#activity.forget();
    }
  }

  #isDue(state: TaskState, tenant: Tenant, now: number): boolean {
    if (!appliesTo(state, tenant)) return false;
    const rest = state.idleTenants.get(tenant.id);
    return rest === undefined || rest.until <= now || rest.mark !== this.#activity.versionOf(tenant);
  }

  #deliver(state: TaskState, answers: TenantProbeResults[], now: number): void {
    const { task, idleTenants } = state;
    const restMs = task.restMs ?? Math.min(maxIdleMs, idlePeriods * task.everyMs);
    const found = answers.map(({ tenant, results: said }) => {
      const mark = this.#activity.versionOf(tenant);
      const hasNewEvents = idleTenants.get(tenant.id)?.mark !== mark || mark === undefined;
      const mayRest = this.#activity.isCommitted(tenant) && task.isIdle(said, 2 * restMs, tenant);
      // Not all at the same time again.
      const until = mayRest ? now + restMs * (0.7 + Math.random() * 0.3) : 0;
      idleTenants.set(tenant.id, { until, mark });
      return { tenant, results: said, hasNewEvents };
    });
    state.busy = this.#runTask(task, found).finally(() => {
      state.busy = undefined;
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
  return task.suspended || tenant.status === 'ACTIVE';
}
