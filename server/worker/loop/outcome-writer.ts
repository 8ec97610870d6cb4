// Writes a batch of outcomes in one transaction. Retries while the database is unavailable and the lease can be
// trusted; returns which outcomes were accepted, and the next jobs of the lanes that advanced.

import type { Database } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { isConnectionError, isTransient, sqlState } from '../../database/sql-errors.ts';
import type { Claimed, NamedClaim } from '../../jobs/claim/claim.ts';
import { type FinishResult, finishAttempts } from '../../jobs/finish/finish.ts';
import type { FinishedAttempt } from '../../jobs/finish/outcome.ts';
import { jobError } from '../../jobs/model/job-errors.ts';
import { transitions } from '../../jobs/model/states.ts';
import { findJob } from '../../jobs/read/read-jobs.ts';
import { errorMessage } from '../../kernel/errors.ts';
import { newId } from '../../kernel/ids.ts';
import type { Logger } from '../../kernel/logger.ts';

export interface OutcomeWriterOptions {
  db: Database;
  schema: Schema;
  actor: string;
  logger: Logger;
  /** Milliseconds for which the lease may still be trusted. */
  trustedForMs(leaseId: string): number;
}

export interface OutcomeBatch<T> {
  items: T[];
  /** Leases of which the last outcome is in the batch. The statement decides whether they end. */
  endedLeases: string[];
}

export interface WriteResult<T> {
  /** Each item of the batch once, with the outcome that was written in the end. */
  accepted: T[];
  /** Their leases no longer owned the jobs, or they were given up. */
  refused: T[];
  /** The next jobs of lanes, claimed with the outcomes; `sentAt` is the monotonic time before they were sent. */
  claimed: { claimed: Claimed; sentAt: bigint } | undefined;
  /** Claims of which it is unknown whether they took effect. */
  lostClaims: { leaseId: string; error: unknown }[];
  /** A lane advanced or a job was requeued, and it was not claimed here. */
  runnable: boolean;
}

// A lease may expire while the process is suspended; the fence decides whether its outcomes still count. So they are
// sent a few times before they are given up.
const minAttempts = 4;

export class OutcomeWriter<T extends FinishedAttempt> {
  readonly #options: OutcomeWriterOptions;

  constructor(options: OutcomeWriterOptions) {
    this.#options = options;
  }

  /** Never rejects. */
  async write(batch: OutcomeBatch<T>, claimNext?: NamedClaim): Promise<WriteResult<T>> {
    const { logger, trustedForMs } = this.#options;
    const { items } = batch;
    let claim = claimNext;
    const lostClaims: WriteResult<T>['lostClaims'] = [];
    for (let attempt = 1; ; attempt++) {
      const sentAt = process.hrtime.bigint();
      try {
        const result = await this.#finish(batch, claim);
        if (attempt > 1) await this.#addStored(items, result.accepted);
        const { claimed, runnable } = result;
        return {
          ...split(items, result.accepted),
          claimed: claimed && { claimed, sentAt },
          lostClaims,
          runnable,
        };
      } catch (error) {
        if (claim !== undefined) {
          lostClaims.push({ leaseId: claim.leaseId, error });
          // Under another lease: the first try may have taken effect. Then no lane advances again, and nothing is claimed.
          claim = { ...claim, leaseId: newId() };
        }
        if (!isConnectionError(error) && !isTransient(error)) {
          return { ...(await this.#writeSingly(batch, error)), lostClaims };
        }
        logger.warn({ err: error, jobs: items.length, attempt }, 'outcomes could not be written; retrying');
        const trusted = Math.max(...items.map((item) => trustedForMs(item.leaseId)));
        // Given up, the job stays RUNNING and keeps its lease from ending: the lease expires and the sweeper decides.
        if (trusted <= 0 && attempt >= minAttempts) return { ...refuse(items), lostClaims };
        const delayMs = Math.min(50 * 2 ** attempt, 1000);
        await new Promise((resolve) => setTimeout(resolve, trusted > 0 ? Math.min(delayMs, trusted) : delayMs));
      }
    }
  }

  #finish({ items, endedLeases }: OutcomeBatch<T>, claimNext: NamedClaim | undefined): Promise<FinishResult> {
    const { db, schema, actor } = this.#options;
    return finishAttempts(db, schema, items, { actor, endedLeases, claimNext });
  }

  /** After a lost answer, zero rows may mean that the first try took effect: the stored outcome decides. */
  async #addStored(items: readonly T[], accepted: Set<string>): Promise<void> {
    for (const item of items) {
      if (!accepted.has(item.jobId) && (await this.#isStored(item))) accepted.add(item.jobId);
    }
  }

  async #isStored(item: FinishedAttempt): Promise<boolean> {
    const job = await findJob(this.#options.db, this.#options.schema, item.jobId);
    return job?.leaseId === item.leaseId && job.status === transitions[item.outcome.kind].to;
  }

  /** One outcome that Postgres refuses must not fail the others. */
  async #writeSingly({ items, endedLeases }: OutcomeBatch<T>, error: unknown): Promise<WriteResult<T>> {
    const [first] = items;
    if (items.length > 1) {
      const results: WriteResult<T>[] = [];
      for (const item of items) {
        results.push(await this.write({ items: [item], endedLeases: endedLeases.filter((id) => id === item.leaseId) }));
      }
      return {
        ...refuse(results.flatMap(({ refused }) => refused)),
        accepted: results.flatMap(({ accepted }) => accepted),
        runnable: results.some(({ runnable }) => runnable),
      };
    }
    if (first === undefined) return refuse([]);
    this.#options.logger.error({ err: error, jobId: first.jobId, outcome: first.outcome.kind }, 'outcome was refused');
    if (first.outcome.kind === 'fail') return refuse([first]);
    const message = `The outcome could not be stored: ${sqlState(error) ?? ''} ${errorMessage(error)}`.slice(0, 500);
    const refusal = jobError('RESULT_REFUSED', message);
    return this.write({ items: [{ ...first, outcome: { kind: 'fail', error: refusal } }], endedLeases });
  }
}

function split<T extends FinishedAttempt>(items: T[], ids: Set<string>): Pick<WriteResult<T>, 'accepted' | 'refused'> {
  // Mostly all of them are.
  if (items.every((item) => ids.has(item.jobId))) return { accepted: items, refused: [] };
  return {
    accepted: items.filter((item) => ids.has(item.jobId)),
    refused: items.filter((item) => !ids.has(item.jobId)),
  };
}

function refuse<T>(items: T[]): WriteResult<T> {
  return { accepted: [], refused: items, claimed: undefined, lostClaims: [], runnable: false };
}
