// Stores the durable calls of an attempt of this process in its tenant's schema. Every write is fenced, and a refused
// one ends the attempt with `leaseLost`. Calls are retried while the database is unavailable.
import { isConnectionError, isTransient } from '../../database/sql-errors.ts';
import { type EventWait, openEventWait, type WantedEvent } from '../../jobs/attempt/event-waits.ts';
import type { StepChange } from '../../jobs/attempt/save-steps.ts';
import type { StepGroupCommit } from '../../jobs/attempt/step-group-commit.ts';
import { type OpenWait, openSleep, type StepCall, type WaitEnd } from '../../jobs/attempt/steps.ts';
import { isHeld } from '../../jobs/claim/lease.ts';
import type { AwaitedCalls, Waiting } from '../../jobs/model/waiting.ts';
import { openQuestion, type QuestionState } from '../../jobs/questions/ask.ts';
import { closeQuestionsOf } from '../../jobs/questions/close-questions.ts';
import type { AskedQuestion } from '../../jobs/questions/question-request.ts';
import type { Config } from '../../kernel/config.ts';
import { Fatal } from '../handler-errors.ts';
import type { ChildrenAnswer, ChildrenRequest, LoadedCalls, StepStore } from '../step-store.ts';
import { JobStopped, requestedStop, type Stopping, type StopReason, sleep, throwIfStopped } from '../stop-reason.ts';
import { toStorable } from '../storable.ts';
import { type DurableRun, waitForChildrenIn } from './enqueue-children.ts';

interface StepsRun extends DurableRun {
  stepCommits: StepGroupCommit;
  config: Pick<Config, 'resultLimitBytes' | 'questionTimeoutSeconds' | 'workerId'>;
  readonly signal: AbortSignal;
  check?(): void;
  stop(reason: StopReason): void;
}

export class DatabaseSteps implements StepStore {
  readonly #run: StepsRun;

  constructor(run: StepsRun) {
    this.#run = run;
  }

  async load(): Promise<LoadedCalls> {
    const { tenant, stepCommits } = this.#run;
    const { steps, stop } = await this.#fenced(() => stepCommits.load(tenant.schema, this.#held));
    return { steps, stop: requestedStop(stop) };
  }

  async stop(reason: StopReason): Promise<void> {
    this.#run.stop(reason);
  }

  openSleep(call: StepCall, end: WaitEnd): Promise<OpenWait> {
    const { db, tenant } = this.#run;
    return this.#fenced(() => openSleep(db, tenant.schema, this.#held, call, end));
  }

  children(request: ChildrenRequest): Promise<ChildrenAnswer> {
    return this.#fenced(() => waitForChildrenIn(this.#run, request, this.#actor));
  }

  openEventWait(call: StepCall, wanted: WantedEvent): Promise<EventWait> {
    const { db, tenant } = this.#run;
    return this.#fenced(() => openEventWait(db, tenant.schema, this.#held, call, wanted, this.#actor));
  }

  async save(changes: readonly StepChange[]): Promise<StopReason | undefined> {
    const { tenant, config, stepCommits } = this.#run;
    let bytes = 0;
    for (const { name, result } of changes) {
      const stored = toStorable(result, config.resultLimitBytes, `The result of step ${name}`);
      if (!stored.ok) throw new Fatal(stored.error.message, { code: stored.error.code });
      bytes += stored.text?.length ?? 0;
    }
    const write = { held: this.#held, changes, actor: this.#actor };
    return requestedStop(await this.#fenced(() => stepCommits.save(tenant.schema, write, bytes)));
  }

  async timeOut(name: string, seconds: number): Promise<void> {
    this.#run.stop({ kind: 'timedOut', afterSeconds: seconds, phase: name });
  }

  async suspend(waiting: Waiting, leftMs: number, awaited?: AwaitedCalls): Promise<void> {
    this.#run.stop({ kind: 'suspended', waiting, leftMs, awaited });
  }

  openQuestion(call: StepCall, question: AskedQuestion): Promise<QuestionState> {
    const { db, tenant, config } = this.#run;
    const timeout_seconds = question.timeout_seconds ?? config.questionTimeoutSeconds;
    return this.#fenced(() =>
      openQuestion(db, tenant.schema, this.#held, call, { ...question, timeout_seconds }, this.#actor),
    );
  }

  async closeQuestions(): Promise<void> {
    const { db, tenant } = this.#run;
    await this.#fenced(() => closeQuestionsOf(db, tenant.schema, this.#held, this.#actor));
  }

  /** Each write is idempotent: after a lost answer it finds what it has stored. */
  async #fenced<T>(write: () => Promise<T | undefined>): Promise<T> {
    const written = await retryWhileHeld(this.#run, async () => {
      return (await write()) ?? ((await this.#isHeld()) ? await write() : undefined);
    });
    if (written !== undefined) return written;
    this.#run.stop({ kind: 'leaseLost' });
    throw new JobStopped({ kind: 'leaseLost' });
  }

  /**
   * While a tenant moves between nodes, a fenced write can miss an existing row. This checks the row and writes again.
   */
  #isHeld(): Promise<boolean> {
    return isHeld(this.#run.db, this.#run.tenant.schema, this.#held);
  }

  get #actor(): string {
    const { job, config } = this.#run;
    return `worker:${job.leaseOwner ?? config.workerId}`;
  }

  get #held() {
    return { jobId: this.#run.job.id, leaseId: this.#run.leaseId };
  }
}

// Writes are retried while the database is briefly unavailable and the lease is trusted, so that finished work does not
// fail because its result could not be stored at once.

const retryMs = 250;
// If the connection stays lost, the expiring lease ends the retries. A statement that this server cannot finish needs a
// limit.
const maxTransientErrors = 100;

/**
 * `work` must be safe to repeat, because it is unknown after a lost connection whether it took effect. Rejects when the
 * attempt must stop, at the latest when its lease may have expired.
 */
export async function retryWhileHeld<T>(stopping: Stopping, work: () => Promise<T>): Promise<T> {
  for (let transientErrors = 0; ; ) {
    try {
      return await work();
    } catch (error) {
      if (!isConnectionError(error)) {
        transientErrors += 1;
        if (!isTransient(error) || transientErrors > maxTransientErrors) throw error;
      }
      throwIfStopped(stopping.signal);
      await sleep(retryMs, stopping);
      throwIfStopped(stopping.signal);
    }
  }
}
