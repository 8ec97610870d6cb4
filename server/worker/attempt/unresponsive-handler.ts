// One handler that was told to stop and still runs. Its job is fenced off and held under a lease of its own until the
// handler ends, or until the daemon gives it up: after a time, or because the process is about to exit.
import { v7 as uuidv7 } from 'uuid';
import { type Database, isConnectionError, isTransient } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { fenceOff } from '../../jobs/finish/fence-off.ts';
import type { Outcome } from '../../jobs/finish/outcome.ts';
import { outcomeOfLostLease } from '../../jobs/finish/recover.ts';
import type { Job, StoredHold } from '../../jobs/model/job.ts';
import { findJob } from '../../jobs/read/find-job.ts';
import type { Logger } from '../../kernel/logger.ts';
import type { Heartbeat, HeldLease } from '../heartbeat/heartbeat.ts';
import type { HandlerEnd } from './handler-run.ts';

export interface UnresponsiveOptions {
  db: Database;
  schema: Schema;
  heartbeat: Heartbeat;
  logger: Logger;
  workerId: string;
  leaseSeconds: number;
  /** How long a handler may keep its lane. */
  maxMs: number;
  tokenLimit(): number;
}

export interface Unresponsive {
  job: Job;
  /** The lease under which the handler was started. */
  leaseId: string;
  /** Why it was told to stop, for people. */
  reason: string;
  /** How the attempt ends when the handler has ended or is given up. Undefined: its lease was lost. */
  outcome: Outcome | undefined;
  /** Resolves when the handler has really ended. */
  ended: Promise<HandlerEnd>;
  /** How long to wait for the end before the job is fenced off: a thread that is being terminated ends by itself. */
  patienceMs: number;
  /** The job is held under a new lease; the old one no longer owns it. */
  onFenced?(): void;
}

/** `ended`: the handler did. `expired`: it kept its lane for too long. `exiting`: its process is about to end. */
export type Release = 'ended' | 'expired' | 'exiting';

// While the database is away: often enough to be back before the sweeper takes the lease.
const retryMs = 250;

export class UnresponsiveHandler implements HeldLease {
  readonly schema: Schema;
  readonly job: Job;
  readonly jobIds: string[];
  readonly since = performance.now();
  leaseId: string;
  /** The job is held under `leaseId`. */
  fenced = false;
  terminated = false;
  release: Release | undefined;
  readonly #options: UnresponsiveOptions;
  readonly #given: Unresponsive;
  /** Called when it is time to look again. */
  #wake: (() => void) | undefined;
  #lost = false;

  constructor(options: UnresponsiveOptions, given: Unresponsive) {
    this.#options = options;
    this.#given = given;
    this.schema = options.schema;
    this.job = given.job;
    this.jobIds = [given.job.id];
    this.leaseId = given.leaseId;
    void given.ended.then((end) => {
      this.terminated = end.kind === 'failed' && end.error.code === 'HANDLER_KILLED';
      this.end('ended');
    });
  }

  /** What is to be written; undefined if the job is no longer ours. */
  async decide(): Promise<Outcome | undefined> {
    const outcome = this.#given.outcome ?? (this.fenced ? await this.#outcomeOfLostLease() : undefined);
    if (outcome === undefined) return undefined;
    if (this.release !== 'ended') return { ...outcome, handler: 'running' };
    return this.terminated ? { ...outcome, handler: 'terminated' } : outcome;
  }

  /** The first reason counts. */
  end(release: Release): void {
    this.release ??= release;
    this.#wake?.();
  }

  /** Resolves when the handler has ended or was given up; `fenced` then says whether the job is still held. */
  async hold(): Promise<void> {
    const timer = setTimeout(() => this.end('expired'), Math.min(this.#options.maxMs, 2 ** 31 - 1));
    try {
      await this.#sleep(this.#given.patienceMs);
      while (this.release === undefined) {
        const result = await this.#fence();
        if (result === 'lost') break;
        while (result === 'held' && this.release === undefined && !this.#lost) await this.#sleep();
      }
      while (this.release === undefined) await this.#sleep();
    } finally {
      clearTimeout(timer);
    }
  }

  /** The lease ran out without a renewal, or another has the job: the next fence tells which. */
  onLost(): void {
    this.fenced = false;
    this.#lost = true;
    this.#options.heartbeat.drop(this);
    this.#wake?.();
  }

  /** It was told to stop already; what people ask meanwhile decides when its end is written. */
  onStopRequested(): void {}

  /** `unknown`: it was given up before the database answered. */
  async #fence(): Promise<'held' | 'lost' | 'unknown'> {
    const { db, schema, heartbeat, workerId, leaseSeconds, logger } = this.#options;
    const old = { jobId: this.job.id, leaseId: this.leaseId };
    const leaseId = uuidv7();
    for (;;) {
      const sentAt = process.hrtime.bigint();
      try {
        const fence = { leaseId, owner: workerId, leaseSeconds, hold: this.#storedHold() };
        if (!(await fenceOff(db, schema, old, fence))) return 'lost';
        this.leaseId = leaseId;
        this.fenced = true;
        this.#lost = false;
        heartbeat.hold(this, sentAt);
        this.#given.onFenced?.();
        return 'held';
      } catch (error) {
        if (!isConnectionError(error) && !isTransient(error)) {
          logger.error(
            { err: error, jobId: this.job.id },
            'job of a handler that does not stop could not be fenced off',
          );
          return 'lost';
        }
        await this.#sleep(retryMs);
        if (this.release !== undefined) return 'unknown';
      }
    }
  }

  /** From the row: what people asked, and what was used, may be news to this process. */
  async #outcomeOfLostLease(): Promise<Outcome | undefined> {
    const { db, schema, workerId, tokenLimit, logger } = this.#options;
    try {
      const job = await findJob(db, schema, this.job.id);
      return job?.leaseId === this.leaseId ? outcomeOfLostLease(job, workerId, tokenLimit()) : undefined;
    } catch (error) {
      // The lease expires, and the sweeper decides.
      logger.warn({ err: error, jobId: this.job.id }, 'job of a lost lease could not be read');
      return undefined;
    }
  }

  #storedHold(): StoredHold {
    const { reason, outcome } = this.#given;
    return { kind: 'handler', reason, handler: 'running', ...(outcome && { outcome }) };
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
