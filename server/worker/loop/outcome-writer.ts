// Writes the outcomes of a tenant's attempts: all that are ready share one transaction. Tries again
// while the database is away and the lease can still be trusted; tells who was no longer the owner.
import { type Database, isConnectionError, isTransient, sqlState } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import type { Claimed, NamedClaim } from '../../jobs/claim/claim.ts';
import { type FinishedAttempt, type FinishResult, finishAttempts } from '../../jobs/finish/finish.ts';
import { transitions } from '../../jobs/model/states.ts';
import { findJob } from '../../jobs/read/find-job.ts';
import { errorMessage } from '../../kernel/errors.ts';
import type { Logger } from '../../kernel/logger.ts';

export interface OutcomeWriterOptions<T extends FinishedAttempt> {
  db: Database;
  schema: Schema;
  actor: string;
  logger: Logger;
  /** Milliseconds for which the lease may still be trusted. */
  trustedForMs(leaseId: string): number;
  /** The request with which the next jobs of lanes that move on are taken, if they may be. */
  nextClaim(): NamedClaim | undefined;
  /** Those jobs; `sentAt` is the monotonic time before they were asked for. */
  onClaimed(claimed: Claimed, sentAt: bigint): void;
  /** Whether it took any is not known. */
  onClaimLost(leaseId: string, error: unknown): void;
  /** A lane moved on or a job went back. `offered`: it could have been taken with the outcome, and was not ours to take. */
  onRunnable(offered: boolean): void;
  /** Called once for each item, in batches; those that are not accepted were no longer ours. */
  onFinished(items: T[], accepted: (item: T) => boolean): void;
  onWritten(): void;
}

// Beyond this a statement grows faster than it gains.
const maxBatch = 2000;
const longRun = 100;
// A lease may run out while the process stands still; the fence decides whether its outcomes still count. So they are
// sent again a few times before they are given up.
const minAttempts = 4;

export class OutcomeWriter<T extends FinishedAttempt> {
  #options: OutcomeWriterOptions<T>;
  #waiting: T[] = [];
  /** Each the last of its lease, which ends with it. */
  #lastOfLease = new Set<T>();
  /** One at a time: the outcome that ends a lease must not overtake the others of that lease. */
  #writing = 0;
  #scheduled = false;
  #idle: (() => void)[] = [];

  constructor(options: OutcomeWriterOptions<T>) {
    this.#options = options;
  }

  /** How many outcomes wait for the next write. */
  get pending(): number {
    return this.#waiting.length;
  }

  /** How many are not written yet. */
  get load(): number {
    return this.#waiting.length + this.#writing;
  }

  add(item: T, leaseEnded: boolean): void {
    this.#waiting.push(item);
    if (leaseEnded) this.#lastOfLease.add(item);
    if (this.#scheduled) return;
    this.#scheduled = true;
    // Everything that ends in this turn of the loop goes into one statement.
    setImmediate(() => {
      this.#scheduled = false;
      this.#pump();
    });
  }

  async idle(): Promise<void> {
    if (this.load === 0) return;
    await new Promise<void>((resolve) => this.#idle.push(resolve));
  }

  #pump(): void {
    if (this.#writing > 0) return;
    if (this.#waiting.length === 0) {
      for (const resolve of this.#idle.splice(0)) resolve();
      return;
    }
    const batch = this.#waiting.splice(0, this.#batchSize());
    // Whether the lease ends is decided in the statement: an earlier outcome of it may have been given up or lost.
    const ended = batch.filter((item) => this.#lastOfLease.delete(item)).map((item) => item.leaseId);
    this.#writing = batch.length;
    void this.#write(batch, ended).finally(() => {
      this.#writing = 0;
      this.#options.onWritten();
      this.#pump();
    });
  }

  /** A long run of one lease goes by itself: one fence for all is cheaper than one for each. */
  #batchSize(): number {
    const waiting = this.#waiting;
    const most = Math.min(waiting.length, maxBatch);
    const leaseId = waiting[0]?.leaseId;
    let run = 1;
    while (run < most && waiting[run]?.leaseId === leaseId) run += 1;
    return run >= longRun ? run : most;
  }

  async #write(batch: T[], ended: string[]): Promise<void> {
    for (let attempt = 1; ; attempt++) {
      const claimNext = batch.some((item) => item.targetId !== null) ? this.#options.nextClaim() : undefined;
      const sentAt = process.hrtime.bigint();
      try {
        const settled = await this.#finish(batch, ended, claimNext);
        await this.#report(batch, settled, attempt > 1);
        if (settled.runnable) this.#options.onRunnable(claimNext !== undefined);
        if (settled.claimed !== undefined) this.#options.onClaimed(settled.claimed, sentAt);
        return;
      } catch (error) {
        if (claimNext !== undefined) this.#options.onClaimLost(claimNext.leaseId, error);
        if (!isConnectionError(error) && !isTransient(error)) return this.#writeSingly(batch, ended, error);
        this.#options.logger.warn(
          { err: error, jobs: batch.length, attempt },
          'outcomes could not be written; trying again',
        );
        const trusted = Math.max(...batch.map((item) => this.#options.trustedForMs(item.leaseId)));
        // Given up, the job stays RUNNING and keeps its lease from ending: the lease runs out and the sweeper decides.
        if (trusted <= 0 && attempt >= minAttempts) return this.#options.onFinished(batch, () => false);
        const delayMs = Math.min(50 * 2 ** attempt, 1000);
        await new Promise((resolve) => setTimeout(resolve, trusted > 0 ? Math.min(delayMs, trusted) : delayMs));
      }
    }
  }

  #finish(items: FinishedAttempt[], endedLeases: string[], claimNext: NamedClaim | undefined): Promise<FinishResult> {
    const { db, schema, actor } = this.#options;
    return finishAttempts(db, schema, items, { actor, endedLeases, claimNext });
  }

  /** After a lost answer, "zero rows" may mean that the first try took effect: the stored outcome tells. */
  async #report(batch: T[], { accepted }: FinishResult, replayed: boolean): Promise<void> {
    if (replayed) {
      for (const item of batch) {
        if (!accepted.has(item.jobId) && (await this.#isStored(item))) accepted.add(item.jobId);
      }
    }
    this.#options.onFinished(batch, (item) => accepted.has(item.jobId));
  }

  async #isStored(item: FinishedAttempt): Promise<boolean> {
    const job = await findJob(this.#options.db, this.#options.schema, item.jobId);
    return job?.leaseId === item.leaseId && job.status === transitions[item.outcome.kind].to;
  }

  /** One outcome that Postgres refuses must not take the others down with it. */
  async #writeSingly(batch: T[], ended: string[], error: unknown): Promise<void> {
    const [first] = batch;
    if (batch.length > 1) {
      for (const item of batch) await this.#write([item], ended.includes(item.leaseId) ? [item.leaseId] : []);
      return;
    }
    if (first === undefined) return;
    this.#options.logger.error({ err: error, jobId: first.jobId, outcome: first.outcome.kind }, 'outcome was refused');
    if (first.outcome.kind === 'fail') return this.#options.onFinished([first], () => false);
    const refused = {
      code: 'RESULT_REFUSED',
      message: `The outcome could not be stored: ${sqlState(error) ?? ''} ${errorMessage(error)}`.slice(0, 500),
    };
    await this.#write([{ ...first, outcome: { kind: 'fail', error: refused } }], ended);
  }
}
