// One handler that was asked to stop and still runs. Its job is fenced off and held under a lease of its own until the
// handler returns, or until the daemon gives it up: after a time, or because the process is about to exit.

import type { Schema } from '../../database/identifiers.ts';
import { isConnectionError, isTransient } from '../../database/sql-errors.ts';
import { fenceOff } from '../../jobs/finish/fence-off.ts';
import type { Outcome } from '../../jobs/finish/outcome.ts';
import { outcomeOfLostLease } from '../../jobs/finish/recover.ts';
import type { Job, StoredHold } from '../../jobs/model/job.ts';
import { budgetRules } from '../../jobs/model/job-budget.ts';
import type { JobErrorCode } from '../../jobs/model/job-errors.ts';
import { findJob } from '../../jobs/read/read-jobs.ts';
import { newId } from '../../kernel/ids.ts';
import { maxTimerMs } from '../../kernel/limits.ts';
import type { HeldLease } from '../heartbeat/heartbeat.ts';
import type { WorkerContext } from '../worker-context.ts';
import type { Attempt, UnresponsiveEnd } from './attempt.ts';
import { JobStopped } from './stop-reason.ts';

/** `ended`: the handler returned. `expired`: it kept its lane for too long. `exiting`: its process is about to exit. */
export type Release = 'ended' | 'expired' | 'exiting';

// While the database is unavailable: often enough to be back before the sweeper takes the lease.
const retryMs = 250;

export class UnresponsiveHandler implements HeldLease {
  readonly schema: Schema;
  readonly job: Job;
  readonly jobIds: string[];
  leaseId: string;
  /** The job is held under `leaseId`. */
  fenced = false;
  release: Release | undefined;
  readonly #context: WorkerContext;
  readonly #attempt: Attempt;
  readonly #end: UnresponsiveEnd;
  readonly #expiry: NodeJS.Timeout;
  #terminated = false;
  #patient = true;
  #lost = false;
  #wake: (() => void) | undefined;

  constructor(context: WorkerContext, attempt: Attempt, end: UnresponsiveEnd) {
    this.#context = context;
    this.#attempt = attempt;
    this.#end = end;
    this.schema = attempt.tenant.schema;
    this.job = attempt.job;
    this.jobIds = [attempt.job.id];
    this.leaseId = attempt.leaseId;
    const maxMs = context.config.unresponsiveHandlerMaxSeconds * 1000;
    this.#expiry = setTimeout(() => this.giveUp('expired'), Math.min(maxMs, maxTimerMs));
    void end.handlerEnd.then((ended) => {
      this.#terminated = ended.kind === 'failed' && ended.error.code === ('HANDLER_KILLED' satisfies JobErrorCode);
      this.giveUp('ended');
    });
  }

  /** The first reason counts. */
  giveUp(release: Release): void {
    this.release ??= release;
    clearTimeout(this.#expiry);
    this.#wake?.();
  }

  /**
   * Moves the job to a lease of its own, again if that lease was lost. True: the job was fenced off, and the lease
   * before no longer owns it. False: the handler was released; `fenced` says whether the job is still held.
   */
  async fence(): Promise<boolean> {
    // A thread that is being terminated exits by itself.
    if (this.#patient) await this.#sleep(this.#end.patienceMs);
    this.#patient = false;
    while (this.fenced && this.release === undefined && !this.#lost) await this.#sleep();
    if (this.release === undefined && (await this.#fence()) === 'held') return true;
    while (this.release === undefined) await this.#sleep();
    return false;
  }

  /** What to write; undefined if this daemon no longer holds the job. */
  async decide(): Promise<Outcome | undefined> {
    const outcome = this.#end.outcome ?? (this.fenced ? await this.#outcomeOfLostLease() : undefined);
    if (outcome === undefined) return undefined;
    if (this.release !== 'ended') return { ...outcome, handler: 'running' };
    return this.#terminated ? { ...outcome, handler: 'terminated' } : outcome;
  }

  /** The lease expired without a renewal, or another daemon has the job: the next fence decides which. */
  onLost(): void {
    this.fenced = false;
    this.#lost = true;
    this.#context.heartbeat.drop(this);
    this.#wake?.();
  }

  /** The handler was asked to stop already. A request made since then decides when the outcome is written. */
  onStopRequested(): void {}

  /** `unknown`: the handler was released before the database answered. */
  async #fence(): Promise<'held' | 'lost' | 'unknown'> {
    const { db, heartbeat, config, logger } = this.#context;
    const { workerId: owner, leaseSeconds } = config;
    const old = { jobId: this.job.id, leaseId: this.leaseId };
    const leaseId = newId();
    for (;;) {
      const sentAt = process.hrtime.bigint();
      try {
        const fence = { leaseId, owner, leaseSeconds, hold: this.#storedHold() };
        if (!(await fenceOff(db, this.schema, old, fence))) return 'lost';
        this.leaseId = leaseId;
        this.fenced = true;
        this.#lost = false;
        heartbeat.hold(this, sentAt);
        return 'held';
      } catch (error) {
        if (!isConnectionError(error) && !isTransient(error)) {
          logger.error({ err: error, jobId: this.job.id }, 'job of an unresponsive handler could not be fenced off');
          return 'lost';
        }
        await this.#sleep(retryMs);
        if (this.release !== undefined) return 'unknown';
      }
    }
  }

  /** From the row: stop requests and token usage may be newer there than in this process. */
  async #outcomeOfLostLease(): Promise<Outcome | undefined> {
    const { db, config, registry, logger } = this.#context;
    const tenant = registry.bySlug(this.#attempt.tenant.slug) ?? this.#attempt.tenant;
    try {
      const job = await findJob(db, this.schema, this.job.id);
      if (job?.leaseId !== this.leaseId) return undefined;
      return outcomeOfLostLease(job, config.workerId, budgetRules(tenant, config.tokenLimit));
    } catch (error) {
      // The lease expires, and the sweeper decides.
      logger.warn({ err: error, jobId: this.job.id }, 'job of a lost lease could not be read');
      return undefined;
    }
  }

  #storedHold(): StoredHold {
    const { reason, outcome } = this.#end;
    const message = `${new JobStopped(reason).message}, and the handler has not stopped`;
    return { kind: 'handler', reason: message, handler: 'running', ...(outcome && { outcome }) };
  }

  async #sleep(ms?: number): Promise<void> {
    if (ms === 0) return;
    await new Promise<void>((resolve) => {
      const timer = ms === undefined ? undefined : setTimeout(resolve, ms);
      this.#wake = () => {
        clearTimeout(timer);
        resolve();
      };
      if (this.release !== undefined) this.#wake();
    });
    this.#wake = undefined;
  }
}
