// One attempt from claim to outcome: run the handler, stop it for one reason at most, give up on it
// when it does not stop, settle once. Named steps: start → run → (stop → grace) → settle.

import type { Outcome } from '../../jobs/finish/outcome.ts';
import type { Job } from '../../jobs/model/job.ts';
import { toJobError } from '../handlers/job-error.ts';
import { decideOutcome } from './decide-outcome.ts';
import type { HandlerEnd } from './run-handler.ts';
import type { StopReason } from './stop-reason.ts';

/** What all attempts of a claim share: who runs them and who is told. */
export interface Executor {
  cancelGraceMs: number;
  /** Of one attempt; 0: no limit. */
  timeoutSeconds(job: Job): number;
  run(attempt: Attempt): Promise<HandlerEnd>;
  /** Called exactly once; undefined when the lease was lost and nothing may be written. */
  finish(attempt: Attempt, outcome: Outcome | undefined): void;
  /** Called instead of `settle`: the handler was told to stop and still runs. */
  abandon(attempt: Attempt, abandoned: Abandoned): void;
}

export interface Abandoned {
  reason: StopReason;
  /** Undefined when the lease was lost. */
  outcome: Outcome | undefined;
  /** Resolves when the handler has really ended. */
  ended: Promise<HandlerEnd>;
  /** How long it may take until a handler that can be stopped has ended. */
  patienceMs: number;
}

// A thread that is terminated is gone within moments; a handler that listens ends soon after its signal.
const terminationMs = 1000;
const promptMs = 200;

// setTimeout fires at once beyond 2^31-1 ms.
const maxTimerMs = 2 ** 31 - 1;

export class Attempt {
  readonly job: Job;
  readonly leaseId: string;
  readonly claimedAt = performance.now();
  startedAt = this.claimedAt;
  readonly #executor: Executor;
  // Made when first asked for: most attempts end before anybody looks.
  #controller: AbortController | undefined;
  #kill: AbortController | undefined;
  #reason: StopReason | undefined;
  #timeout: NodeJS.Timeout | undefined;
  #grace: NodeJS.Timeout | undefined;
  #ended: Promise<HandlerEnd> | undefined;
  #started = false;
  #finished = false;

  constructor(job: Job, leaseId: string, executor: Executor) {
    this.job = job;
    this.leaseId = leaseId;
    this.#executor = executor;
  }

  get signal(): AbortSignal {
    this.#controller ??= new AbortController();
    if (this.#reason !== undefined && !this.#controller.signal.aborted) this.#controller.abort(this.#reason);
    return this.#controller.signal;
  }

  get kill(): AbortSignal {
    this.#kill ??= new AbortController();
    return this.#kill.signal;
  }

  get finished(): boolean {
    return this.#finished;
  }

  /** False for a job that was claimed ahead and has not begun. */
  get started(): boolean {
    return this.#started;
  }

  start(): void {
    if (this.#finished || this.#started) return;
    this.#started = true;
    this.startedAt = performance.now();
    const seconds = this.#executor.timeoutSeconds(this.job);
    if (seconds > 0) {
      const stop = () => this.stop({ kind: 'timedOut', afterSeconds: seconds });
      this.#timeout = setTimeout(stop, Math.min(seconds * 1000, maxTimerMs));
    }
    const end = (ended: HandlerEnd) => {
      this.#finish(ended);
      return ended;
    };
    this.#ended = this.#executor.run(this).then(end, (error: unknown) => end(crashed(error)));
  }

  /** Tells the handler to stop. The first reason counts; a spent budget and a lost lease override it. */
  stop(reason: StopReason): void {
    if (this.#finished) return;
    if (reason.kind === 'leaseLost') {
      // If the lease only ran out, the job is still there to be requeued; if it was taken away, the fence refuses it.
      if (!this.#started) {
        this.requeue('the lease was lost before the attempt began');
        return;
      }
      this.#reason = reason;
      this.#controller?.abort(reason);
      // Nothing may be written any more, so nothing is waited for.
      this.#abandon(reason, promptMs);
      return;
    }
    const stronger = reason.kind === 'budgetSpent' || (reason.kind === 'canceled' && this.#reason?.kind === 'paused');
    if (this.#reason !== undefined && !stronger) return;
    const first = this.#reason === undefined;
    this.#reason = reason;
    // Claimed ahead of its slot and not yet begun: there is nothing to wait for.
    if (!this.#started) {
      this.#finish(undefined);
      return;
    }
    if (!first) return;
    this.#controller?.abort(reason);
    this.#grace = setTimeout(() => this.giveUp(), this.#executor.cancelGraceMs);
  }

  /** Puts a job that was claimed ahead and never begun back in its place; the attempt is not counted. */
  requeue(reason: string): void {
    if (this.#started || this.#finished) return;
    this.#finished = true;
    this.#executor.finish(this, { kind: 'requeue', reason });
  }

  /** The grace of a handler that was told to stop is over. */
  giveUp(): void {
    // A signal to kill that somebody looks at means a thread, which can be terminated.
    if (this.#reason !== undefined) this.#abandon(this.#reason, this.#kill === undefined ? 0 : terminationMs);
  }

  #abandon(reason: StopReason, patienceMs: number): void {
    if (this.#finished) return;
    const ended = this.#ended;
    if (ended === undefined) {
      this.#finish(undefined);
      return;
    }
    this.#settle();
    const outcome = decideOutcome(this.job, undefined, reason, Math.random());
    this.#executor.abandon(this, { reason, outcome, ended, patienceMs });
    this.#kill?.abort(reason);
  }

  #finish(end: HandlerEnd | undefined): void {
    if (this.#finished) return;
    this.#settle();
    this.#executor.finish(this, decideOutcome(this.job, end, this.#reason, Math.random()));
  }

  #settle(): void {
    this.#finished = true;
    clearTimeout(this.#timeout);
    clearTimeout(this.#grace);
  }
}

function crashed(error: unknown): HandlerEnd {
  return { kind: 'failed', error: toJobError(error), recoverable: false };
}
