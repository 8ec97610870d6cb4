// A worker that claims jobs over HTTP. It stops the handler if the job is canceled or paused, and before its lease
// expires: the lease lasts for its ttl after the last answered heartbeat was sent.
import { assertComplete, type DurableParts } from '../durable/durable-functions.ts';
import { dispositionOf } from '../durable/handler-errors.ts';
import { toJobError } from '../durable/job-error.ts';
import { createWork } from './create-work.ts';
import { type HeldLease, holdLease, lose, loseIfExpired, marginOf, own, stop } from './held-lease.ts';
import { HttpEffects, usageToApi } from './http-effects.ts';
import { type Answer, messageOf, pause, SchedulerApi } from './scheduler-api.ts';
import { type Handler, type RemoteJob, Stopped, type WorkerOptions } from './work.ts';

// A handler that begins later than this after its stop requests were read reads them again. Most begin much sooner.
const startWithinMs = 500;
// After that many late answers the handler begins, because the server is slow.
const maxBeats = 3;

export class LeaseholdWorker {
  readonly workerId: string;
  #options: WorkerOptions;
  #handler: Handler;
  #draining = new AbortController();
  #leases = new LeasesOfSlots();
  #running = new Set<HeldLease>();
  readonly #api: SchedulerApi;

  constructor(options: WorkerOptions, handler: Handler) {
    this.#options = options;
    this.#handler = handler;
    this.#api = new SchedulerApi(options);
    this.workerId = options.workerId ?? `worker-${crypto.randomUUID()}`;
  }

  /** Runs until `drain()` was called and the last job has ended. */
  async run(): Promise<void> {
    await Promise.all(Array.from({ length: this.#options.concurrency ?? 1 }, () => this.#slot()));
  }

  /** Takes no more jobs. Running ones may finish, and are requeued after `drainSeconds`. Call it on SIGTERM. */
  drain(): void {
    if (this.#draining.signal.aborted) return;
    this.#draining.abort();
    const requeue = () => {
      for (const held of this.#running) stop(held, 'drain');
    };
    setTimeout(requeue, (this.#options.drainSeconds ?? 60) * 1000).unref();
  }

  async #slot(): Promise<void> {
    let failures = 0;
    while (!this.#draining.signal.aborted) {
      try {
        const job = await this.#claim();
        failures = 0;
        if (job) await this.#work(job);
      } catch (error) {
        if (this.#draining.signal.aborted) return;
        failures++;
        this.#log('cannot work for now', { error: messageOf(error), failures });
        // After a restart the server gets its workers back within seconds, but not all at one moment.
        await pause(Math.min(250 * 2 ** failures, 5000) * (0.5 + Math.random() / 2), this.#draining.signal);
      }
    }
  }

  async #claim(): Promise<RemoteJob | undefined> {
    const { queue, jobTypes, maxCostUnits, capabilities } = this.#options;
    const waitSeconds = 20;
    const answer = await this.#api.postAndWait(
      '/jobs/claim',
      {
        addon_id: queue,
        worker_id: this.workerId,
        accept_job_types: jobTypes ?? null,
        max_cost_units: maxCostUnits ?? null,
        constraints_capabilities: capabilities ?? null,
        wait_sec: waitSeconds,
      },
      waitSeconds * 1000,
      this.#draining.signal,
    );
    if (answer.status === 200) return answer.body.job;
    if (answer.status === 204) return undefined;
    throw new Error(`claim refused: ${answer.status} ${answer.body?.detail ?? ''}`);
  }

  async #work(job: RemoteJob): Promise<void> {
    // Optional, because the request for the lease shows whether this worker still has the job.
    const preparing = { state: 'PREPARING', worker_id: this.workerId };
    await this.#api.post(`/jobs/${job.job_id}/status`, preparing).catch(() => undefined);
    const held = await this.#lease(job);
    if (!held) return;
    this.#running.add(held);
    const beating = this.#beat(held);
    try {
      const outcome = await this.#attempt(held);
      if (outcome) await this.#release(held, outcome);
    } finally {
      held.ended.abort();
      this.#running.delete(held);
      await beating;
    }
  }

  /** Returns undefined if the claim is gone, or was released because we drain. */
  async #lease(job: RemoteJob): Promise<HeldLease | undefined> {
    const requestId = crypto.randomUUID();
    let answerLost = false;
    for (;;) {
      if (this.#draining.signal.aborted) {
        await this.#api.post(`/jobs/${job.job_id}/status`, { state: 'QUEUED', worker_id: this.workerId });
        return undefined;
      }
      const sentAt = performance.now();
      const request = {
        job_id: job.job_id,
        worker_id: this.workerId,
        request_id: requestId,
        ttl_sec: this.#options.ttlSeconds ?? 30,
      };
      const answer = await this.#api.post('/lease/request', request).catch(() => undefined);
      if (answer?.status === 200 && answer.body.approved) {
        const held = holdLease(job, this.workerId, answer.body.lease, sentAt);
        if (!this.#leases.take(held.leaseId)) return void this.#log('another slot has the lease', { job: job.job_id });
        await this.#confirm(held, answerLost ? Number.NEGATIVE_INFINITY : sentAt);
        if (performance.now() < held.deadline) return held;
        // The answer came too late to begin. The job is requeued if this worker still holds the lease.
        const unused = { status: 'CANCELED', error: 'the lease ran out before the start', requeue: true };
        await this.#api.post(`/lease/${held.leaseId}/release`, { ...own(held), ...unused }).catch(() => undefined);
        return undefined;
      }
      if (answer && answer.status !== 200)
        return void this.#log('claim lost', { job: job.job_id, status: answer.status });
      answerLost ||= answer === undefined;
      await pause(answer ? answer.body.retry_after_sec * 1000 : 500, this.#draining.signal);
    }
  }

  /**
   * Sends a heartbeat before the handler begins, if the request for the lease was sent too long ago: a stop may have
   * been requested since then. `sentAt` is -Infinity if the lease may be that of an earlier request whose answer was
   * lost.
   */
  async #confirm(held: HeldLease, sentAt: number): Promise<void> {
    let readAt = sentAt;
    for (let beats = 0; beats < maxBeats && performance.now() - readAt > startWithinMs; ) {
      if (performance.now() >= held.deadline) return;
      const beatAt = performance.now();
      const answer = await this.#sendBeat(held);
      if (answer === 'refused') return;
      if (answer === 'unanswered') await pause(250);
      else {
        readAt = beatAt;
        beats += 1;
      }
    }
  }

  async #beat(held: HeldLease): Promise<void> {
    let waitMs = held.ttlMs / 3;
    while (!held.ended.signal.aborted) {
      await pause(Math.min(waitMs, held.deadline - performance.now()), held.ended.signal);
      if (held.ended.signal.aborted) return;
      if (performance.now() >= held.deadline) return lose(held);
      const answer = await this.#sendBeat(held);
      if (answer === 'refused') return;
      // Without an answer the state is unknown, not lost: the worker tries again until the time is over.
      waitMs = answer === 'unanswered' ? Math.min(held.ttlMs / 12, 1000) : held.ttlMs / 3;
    }
  }

  async #sendBeat(held: HeldLease): Promise<'renewed' | 'refused' | 'unanswered'> {
    const sentAt = performance.now();
    try {
      const beat = { ...own(held), progress: held.progress, message: held.message, ...usageToApi(held) };
      const timeoutMs = Math.min(held.ttlMs / 3, held.deadline - sentAt);
      const answer = await this.#api.post(`/lease/${held.leaseId}/heartbeat`, beat, timeoutMs);
      if (answer.status !== 200) {
        // The attempt may have ended as WAITING. The answer to that request decides.
        if (!held.suspending) lose(held);
        return 'refused';
      }
      held.deadline = sentAt + held.ttlMs - marginOf(held.ttlMs);
      stopIfAsked(held, answer);
      return 'renewed';
    } catch {
      return 'unanswered';
    }
  }

  /** The handler's outcome; undefined if the lease was lost or has ended, so that nothing may be written. */
  async #attempt(held: HeldLease): Promise<object | undefined> {
    const started = performance.now();
    const effects = new HttpEffects(this.#api, held, (message, fields) => this.#log(message, fields));
    const parts: DurableParts = {
      stopping: { signal: held.stopCalls.signal, check: () => loseIfExpired(held) },
      releasesLane: this.#options.whileWaiting === 'release',
      effects: () => effects,
    };
    let outcome: object;
    try {
      held.stop.signal.throwIfAborted();
      const result = await this.#handler(createWork(held, parts));
      // The number of attempts before this one, from the claim.
      await assertComplete(parts, held.job.attempts === 0);
      outcome = { status: 'SUCCEEDED', result_data: result ?? null, close_questions: held.closesQuestions };
    } catch (error) {
      await parts.durable?.reopen(error).catch(() => {});
      outcome = failure(error, held.stop.signal);
    }
    if (held.waits) return undefined;
    if (held.lost) return void this.#log('lease lost', { job: held.job.job_id, lease: held.leaseId });
    return { ...outcome, metrics: { runtime_ms: Math.round(performance.now() - started) } };
  }

  async #release(held: HeldLease, outcome: object): Promise<void> {
    // A release can be repeated, because only the first has an effect.
    while (performance.now() < held.deadline) {
      try {
        const answer = await this.#api.post(`/lease/${held.leaseId}/release`, { ...own(held), ...outcome });
        if (answer.status !== 200) this.#log('release refused', { job: held.job.job_id, status: answer.status });
        return;
      } catch {
        await pause(250);
      }
    }
    this.#log('lease ran out before its release was answered', { job: held.job.job_id });
  }

  #log(message: string, fields: Record<string, unknown>): void {
    this.#options.log?.(message, { worker: this.workerId, ...fields });
  }
}

function stopIfAsked(held: HeldLease, { body }: Answer): void {
  if (body.budget_spent) stop(held, 'budget');
  else if (body.job.cancel_requested) stop(held, body.job.cancel_intent);
}

function failure(error: unknown, signal: AbortSignal): object {
  const stopped = signal.reason instanceof Stopped ? signal.reason.reason : undefined;
  const message = `stopped: ${stopped}`;
  switch (stopped) {
    case undefined:
      break;
    case 'timeout':
      return { status: 'TIMEOUT', error: 'A step did not end in time.' };
    default:
      return { status: 'CANCELED', error: message, requeue: stopped === 'drain' };
  }
  const { code, message: text, name, stack, details } = toJobError(error);
  const isFinal =
    dispositionOf(error) === 'fatal' ||
    (error instanceof Error && 'recoverable' in error && error.recoverable === false);
  return { status: 'FAILED', error: { code, message: text, name, stack, details }, recoverable: !isFinal };
}

// More than can be granted while an answer is in flight.
const maxKnownLeases = 10_000;

/**
 * One slot per lease. A request for a lease names the job and the worker, so if the claim of one slot expires while its
 * request is repeated, and another slot claims the job, both get the same lease.
 */
class LeasesOfSlots {
  #known = new Set<string>();

  /** False if another slot has, or had, this lease. */
  take(leaseId: string): boolean {
    if (this.#known.has(leaseId)) return false;
    for (const oldest of this.#known) {
      if (this.#known.size < maxKnownLeases) break;
      this.#known.delete(oldest);
    }
    this.#known.add(leaseId);
    return true;
  }
}
