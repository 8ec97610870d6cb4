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
import { Marks } from './activity-tracker.ts';
import { type Answer, type Answers, type Questions, survey } from './probe-tenants.ts';

/** Somebody who wants to know something of every tenant, again and again. */
export interface Watcher {
  readonly name: string;
  readonly everyMs: number;
  readonly questions: Questions;
  /** Suspended tenants too. */
  readonly suspended: boolean;
  /** Nothing of this tenant's comes up within `restMs` unless an event is written. */
  rests(answers: Answers, restMs: number, tenant: Tenant): boolean;
  /** How long a tenant at rest is left out; a minute, or some periods, if it does not say. */
  readonly restMs?: number;
  /** The answers of those who do not rest; while it is at work it is not called again. */
  hear(found: Heard[]): Promise<void> | void;
}

export interface Heard extends Answer {
  /** Something was written since this watcher last heard of the tenant. */
  stirred: boolean;
}

export interface WatchOptions {
  db: Database;
  registry: Pick<TenantRegistry, 'list' | 'heard'>;
  logger: Logger;
  watchers: readonly Watcher[];
  /** True while wake-ups of other daemons arrive here: then `stir` is called when there is something to do. */
  isTold?(): boolean;
}

// Of what leaves no event (a hand in the database) an idle tenant's daemons learn this late.
const longestRestMs = 60_000;
const periodsOfRest = 12;
// While all tenants rest and wake-ups arrive. A lease that is taken meanwhile is known before it can run out.
const periodsBetweenQuietLooks = 2;

interface Duty {
  watcher: Watcher;
  dueAt: number;
  busy: Promise<void> | undefined;
  /** By tenant id: until when it may be left out, and the mark under which that was decided. */
  rests: Map<string, { until: number; mark: string | undefined }>;
}

export class Watch implements Service {
  readonly name = 'watch';
  #options: WatchOptions;
  #duties: Duty[];
  #interval: Interval;
  #everyMs: number;
  #marks = new Marks();
  #quiet = false;

  constructor(options: WatchOptions) {
    this.#options = options;
    this.#duties = options.watchers.map((watcher) => ({ watcher, dueAt: 0, busy: undefined, rests: new Map() }));
    this.#everyMs = Math.min(...options.watchers.map((watcher) => watcher.everyMs));
    const periods = () => (this.#quiet && options.isTold?.() === true ? periodsBetweenQuietLooks : 1);
    this.#interval = new Interval(
      this.name,
      () => this.#everyMs * periods(),
      () => this.look(),
      options.logger,
    );
  }

  async start(): Promise<void> {
    await this.#interval.start();
    this.#interval.wake();
  }

  async stop(): Promise<void> {
    await this.#interval.stop();
    await Promise.all(this.#duties.map((duty) => duty.busy));
  }

  /** Something happens, or wake-ups no longer arrive: the next look is not put off. */
  stir(): void {
    if (!this.#quiet) return;
    this.#quiet = false;
    this.#interval.within(this.#everyMs);
  }

  /** One look, for all whose time has come. What they begin goes on behind it. */
  async look(): Promise<void> {
    const { db, registry } = this.#options;
    const now = performance.now();
    // Those with the same period stay together, whatever the jitter.
    const due = this.#duties.filter((d) => d.busy === undefined && d.dueAt <= now + this.#everyMs / 4);
    if (due.length === 0) return;
    const tenants = registry.list().filter((t) => t.status === 'ACTIVE' || t.status === 'SUSPENDED');
    await this.#readMarks(tenants);
    const asked = tenants.filter((tenant) => due.some((duty) => this.#wants(duty, tenant, now)));
    this.#quiet = asked.length === 0;
    const questions = Object.assign({}, ...due.map((duty) => duty.watcher.questions)) as Questions;
    const answers = await survey(db, asked, questions);
    for (const duty of due) {
      duty.dueAt = now + duty.watcher.everyMs;
      this.#forgetAllBut(duty, tenants);
      this.#tell(
        duty,
        answers.filter(({ tenant }) => concerns(duty, tenant)),
        now,
      );
    }
  }

  async #readMarks(tenants: readonly Tenant[]): Promise<void> {
    const { db, registry, logger } = this.#options;
    try {
      registry.heard(await this.#marks.read(db, tenants));
    } catch (error) {
      if (isConnectionError(error)) throw error;
      // A tenant was deleted meanwhile, or the database does not tell: everybody is asked.
      logger.debug({ reason: errorMessage(error) }, 'marks of the tenants could not be read');
      this.#marks.forget();
    }
  }

  #wants(duty: Duty, tenant: Tenant, now: number): boolean {
    if (!concerns(duty, tenant)) return false;
    const rest = duty.rests.get(tenant.id);
    return rest === undefined || rest.until <= now || rest.mark !== this.#marks.of(tenant);
  }

  #tell(duty: Duty, answers: Answer[], now: number): void {
    const { watcher, rests } = duty;
    const restMs = watcher.restMs ?? Math.min(longestRestMs, periodsOfRest * watcher.everyMs);
    const found = answers.map(({ tenant, answers: said }) => {
      const mark = this.#marks.of(tenant);
      const stirred = rests.get(tenant.id)?.mark !== mark || mark === undefined;
      const mayRest = this.#marks.isSettled(tenant) && watcher.rests(said, 2 * restMs, tenant);
      // Not all at the same time again.
      const until = mayRest ? now + restMs * (0.7 + Math.random() * 0.3) : 0;
      rests.set(tenant.id, { until, mark });
      return { tenant, answers: said, stirred };
    });
    duty.busy = this.#hear(watcher, found).finally(() => {
      duty.busy = undefined;
    });
  }

  async #hear(watcher: Watcher, found: Heard[]): Promise<void> {
    try {
      await watcher.hear(found);
    } catch (error) {
      this.#options.logger.error({ err: error, task: watcher.name }, 'periodic task failed');
    }
  }

  #forgetAllBut({ rests }: Duty, tenants: readonly Tenant[]): void {
    if (rests.size <= tenants.length) return;
    const known = new Set(tenants.map((tenant) => tenant.id));
    for (const id of rests.keys()) if (!known.has(id)) rests.delete(id);
  }
}

function concerns({ watcher }: Duty, tenant: Tenant): boolean {
  return watcher.suspended || tenant.status === 'ACTIVE';
}
