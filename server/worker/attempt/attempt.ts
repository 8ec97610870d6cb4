// One attempt from its start to its end: runs the handler, stops it for at most one reason, gives up on a handler that
// does not stop, and enters the queue of ended attempts exactly once. It writes nothing; the loop takes it from the
// queue and writes the outcome. Thousands start per second, so an attempt has no promise or timer of its own.

import { setTimeout as delay } from 'node:timers/promises';
import { toJobError } from '../../durable/job-error.ts';
import type { StopReason } from '../../durable/stop-reason.ts';
import type { NewJob } from '../../jobs/enqueue/enqueue.ts';
import type { Outcome } from '../../jobs/finish/outcome.ts';
import { replacedBy } from '../../jobs/finish/stop-decisions.ts';
import type { Job } from '../../jobs/model/job.ts';
import { timeoutOf } from '../../jobs/model/job.ts';
import { withJobSpan } from '../../jobs/model/trace.ts';
import { monotonicMs } from '../../kernel/clock.ts';
import type { Tenant } from '../../tenants/tenant.ts';
import type { JobDefinition } from '../handlers/define-job.ts';
import type { HeldLease } from '../heartbeat/heartbeat.ts';
import { readStopRequests } from '../heartbeat/read-stop-requests.ts';
import type { WorkerContext } from '../worker-context.ts';
import { decideOutcome } from './decide-outcome.ts';
import { type HandlerEnd, type HandlerRun, runHandler } from './run-handler.ts';

/** The attempts of one claim. They share a lease, which is held until the last of them has left. */
export interface AttemptBatch extends HeldLease {
  readonly tenant: Tenant;
  readonly claimedAt: number;
  has(attempt: Attempt): boolean;
  /** Returns true if it was the last of the batch. */
  remove(attempt: Attempt): boolean;
  /** Called when the handler has got its thread, from which on its time limit counts. */
  onBegun(attempt: Attempt): void;
  /** Called exactly once for each attempt, at its end. */
  onEnded(attempt: Attempt): void;
}

/** A handler that was asked to stop and still runs. */
export interface UnresponsiveEnd {
  reason: StopReason;
  /** Undefined if the lease was lost. */
  outcome: Outcome | undefined;
  /** Resolves when the handler has returned. */
  handlerEnd: Promise<HandlerEnd>;
  /** The time that a stoppable handler has to return. */
  returnTimeoutMs: number;
}

// A terminated thread exits within moments, and a handler that observes its signal returns soon after it.
const terminationMs = 1000;
const promptMs = 200;
const readAgainMs = 250;

export class Attempt implements HandlerRun {
  readonly job: Job;
  readonly batch: AttemptBatch;
  /** From `performance.now()`, like the other times of an attempt. */
  startedAt = 0;
  endedAt = 0;
  timeoutAt = Number.POSITIVE_INFINITY;
  /** The outcome to write. Undefined if the lease was lost and nothing may be written. */
  outcome: Outcome | undefined;
  /** Set if the attempt ended although its handler still runs. */
  unresponsive: UnresponsiveEnd | undefined;
  readonly #context: WorkerContext;
  // Created on first use, because most attempts end before anything reads their signals.
  #controller: AbortController | undefined;
  #kill: AbortController | undefined;
  #reason: StopReason | undefined;
  #grace: NodeJS.Timeout | undefined;
  #handlerEnd: Promise<HandlerEnd> | undefined;
  #started = false;
  #begun = false;
  #finished = false;

  constructor(job: Job, batch: AttemptBatch, context: WorkerContext) {
    this.job = job;
    this.batch = batch;
    this.#context = context;
  }

  get leaseId(): string {
    return this.batch.leaseId;
  }

  get tenant(): Tenant {
    return this.batch.tenant;
  }

  get db() {
    return this.#context.db;
  }

  get stepCommits() {
    return this.#context.stepCommits;
  }

  get logger() {
    return this.#context.logger;
  }

  get config() {
    return this.#context.config;
  }

  get jobTypes() {
    return this.#context.handlers;
  }

  get signals() {
    return this.#context.signals;
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

  /** False if the job was claimed ahead of its slot and has not started. */
  get started(): boolean {
    return this.#started;
  }

  /** False if the handler cannot have begun: the attempt has not started, or waits for a thread. */
  get begun(): boolean {
    return this.#begun;
  }

  /** The duration of the attempt. */
  get seconds(): number {
    return this.#begun ? (this.endedAt - this.startedAt) / 1000 : 0;
  }

  start(): void {
    if (this.#finished || this.#started) return;
    this.#started = true;
    this.startedAt = performance.now();
    const definition = this.#context.handlers.get(this.job.type);
    // A job with phases writes the start of one before that gets its thread.
    if (definition?.isolate === undefined || definition.phases !== undefined) this.#begin();
    this.#handlerEnd = this.#run(definition);
  }

  begin(): void {
    if (this.#finished || this.#begun) return;
    this.startedAt = performance.now();
    this.#begin();
    this.batch.onBegun(this);
  }

  #begin(): void {
    this.#begun = true;
    const seconds = this.#timeoutSeconds;
    if (seconds > 0) this.timeoutAt = this.startedAt + seconds * 1000;
  }

  /** Stops the attempt with the reason `timedOut`. The loop calls this once `timeoutAt` has passed. */
  timeOut(): void {
    this.timeoutAt = Number.POSITIVE_INFINITY;
    this.stop({ kind: 'timedOut', afterSeconds: this.#timeoutSeconds });
  }

  /**
   * Asks the handler to stop. The first reason counts, unless the table of stop-decisions.ts lets a later one replace
   * it.
   */
  stop(reason: StopReason): void {
    if (this.#finished) return;
    if (reason.kind === 'leaseLost') {
      // If the lease only expired, the job can still be requeued. If another holder has it, the fence refuses the
      // write.
      if (!this.#begun) this.requeue('the lease was lost before the attempt began');
      this.#reason = reason;
      this.#controller?.abort(reason);
      if (this.#finished) return;
      // Nothing may be written any more, so there is no grace period.
      this.#giveUp(reason, promptMs);
      return;
    }
    if (this.#reason !== undefined && !replacedBy[this.#reason.kind].includes(reason.kind)) return;
    const first = this.#reason === undefined;
    this.#reason = reason;
    // The job was claimed ahead of its slot and has not started, so there is no handler to wait for.
    if (!this.#started) {
      this.#end(undefined);
      return;
    }
    if (!first) return;
    this.#controller?.abort(reason);
    this.#grace = setTimeout(() => this.giveUp(), this.config.cancelGraceSeconds * 1000);
  }

  /** Requeues a job that was claimed ahead and never began. The attempt is not counted. */
  requeue(reason: string): void {
    if (this.#begun || this.#finished) return;
    this.#finish({ kind: 'requeue', reason });
  }

  /** Ends the grace period of a handler that was asked to stop. */
  giveUp(): void {
    // If the kill signal was read, the handler runs in a thread, which can be terminated.
    if (this.#reason !== undefined) this.#giveUp(this.#reason, this.#kill === undefined ? 0 : terminationMs);
  }

  check(): void {
    const { heartbeat } = this.#context;
    if (!heartbeat.isTrusted(this.leaseId)) heartbeat.check();
  }

  trustedUntilMs(): number {
    return monotonicMs() + this.#context.heartbeat.trustedForMs(this.leaseId);
  }

  startUntilMs(): number {
    return this.#context.heartbeat.startUntilMs(this.leaseId);
  }

  async readStopRequests(): Promise<void> {
    while (!this.signal.aborted) {
      try {
        return await readStopRequests(this.#context, this.tenant.schema, [this.leaseId]);
      } catch {
        // Unknown: the lease runs out, or a later read is answered.
        await delay(readAgainMs);
        this.check();
      }
    }
  }

  admit(children: NewJob[]): Promise<void> {
    const { registry, queueLimit } = this.#context;
    // The limit may have changed since the attempt started.
    return queueLimit.admit(registry.bySlug(this.tenant.slug) ?? this.tenant, children);
  }

  async #run(definition: JobDefinition | undefined): Promise<HandlerEnd> {
    let end: HandlerEnd;
    try {
      if (definition === undefined) throw new Error(`no handler for ${this.job.type}`);
      end = await withJobSpan(this.job, this.tenant.slug, () => runHandler(definition, this), failureOf);
    } catch (error) {
      end = { kind: 'failed', error: toJobError(error), recoverable: false };
    }
    this.#end(end);
    return end;
  }

  #giveUp(reason: StopReason, returnTimeoutMs: number): void {
    if (this.#finished) return;
    const handlerEnd = this.#handlerEnd;
    if (handlerEnd === undefined) {
      this.#end(undefined);
      return;
    }
    const outcome = decideOutcome(this.job, undefined, reason, Math.random());
    this.unresponsive = { reason, outcome, handlerEnd, returnTimeoutMs };
    this.#finish(outcome);
    this.#kill?.abort(reason);
  }

  #end(end: HandlerEnd | undefined): void {
    if (this.#finished) return;
    this.#finish(decideOutcome(this.job, end, this.#reason, Math.random()));
  }

  #finish(outcome: Outcome | undefined): void {
    this.#finished = true;
    this.endedAt = performance.now();
    this.outcome = outcome;
    clearTimeout(this.#grace);
    this.batch.onEnded(this);
  }

  get #timeoutSeconds(): number {
    return timeoutOf(this.job, this.tenant, this.config.jobTimeoutSeconds);
  }
}

function failureOf(end: HandlerEnd): string | undefined {
  return end.kind === 'failed' ? end.error.message : undefined;
}
