// A worker that claims jobs over HTTP: fetch and timers, nothing else.
// It stops the handler when somebody cancels or pauses the job, and before its lease runs out:
// the time of the last heartbeat that was answered, taken when it was sent, plus the lease's ttl.
import { LeasesOfSlots } from './leases-of-slots.ts';
import {
  type Handler,
  type RemoteAnswer,
  type RemoteJob,
  type RemoteQuestion,
  Stopped,
  type WorkerOptions,
} from './work.ts';

/** No answer, or none that means anything: what was asked may or may not have happened. */
class Unreachable extends Error {}

// biome-ignore lint/suspicious/noExplicitAny: JSON from the server.
type Answer = { status: number; body: any };

interface Held {
  job: RemoteJob;
  leaseId: string;
  ttlMs: number;
  /** On performance.now(): until then the lease is surely ours. */
  deadline: number;
  lost: boolean;
  /** The job waits for a person: the lease has ended. */
  waits: boolean;
  stop: AbortController;
  ended: AbortController;
  progress?: number;
  message?: string;
}

const requestTimeoutMs = 10_000;

export class LeaseholdWorker {
  readonly workerId: string;
  #options: WorkerOptions;
  #handler: Handler;
  #draining = new AbortController();
  #running = new Set<Held>();
  #leases = new LeasesOfSlots();

  constructor(options: WorkerOptions, handler: Handler) {
    this.#options = options;
    this.#handler = handler;
    this.workerId = options.workerId ?? `worker-${crypto.randomUUID()}`;
  }

  /** Works until `drain()` was called and the last job has ended. */
  async run(): Promise<void> {
    await Promise.all(Array.from({ length: this.#options.concurrency ?? 1 }, () => this.#slot()));
  }

  /** Takes no more jobs; running ones may finish, and are requeued after `drainSeconds`. For SIGTERM. */
  drain(): void {
    if (this.#draining.signal.aborted) return;
    this.#draining.abort();
    const requeue = () => {
      for (const held of this.#running) held.stop.abort(new Stopped('drain'));
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
        // A server that restarts finds its workers again within seconds, and not all in one moment.
        await pause(Math.min(250 * 2 ** failures, 5000) * (0.5 + Math.random() / 2), this.#draining.signal);
      }
    }
  }

  async #claim(): Promise<RemoteJob | undefined> {
    const { queue, jobTypes, maxCostUnits, capabilities } = this.#options;
    const waitSeconds = 20;
    const answer = await this.#post(
      '/jobs/claim',
      {
        addon_id: queue,
        worker_id: this.workerId,
        accept_job_types: jobTypes ?? null,
        max_cost_units: maxCostUnits ?? null,
        constraints_capabilities: capabilities ?? null,
        wait_sec: waitSeconds,
      },
      waitSeconds * 1000 + requestTimeoutMs,
      this.#draining.signal,
    );
    if (answer.status === 200) return answer.body.job;
    if (answer.status === 204) return undefined;
    throw new Error(`claim refused: ${answer.status} ${answer.body?.detail ?? ''}`);
  }

  async #work(job: RemoteJob): Promise<void> {
    // A courtesy: whether the job is still ours shows when we ask for its lease.
    const preparing = { state: 'PREPARING', worker_id: this.workerId };
    await this.#post(`/jobs/${job.job_id}/status`, preparing).catch(() => undefined);
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

  /** Undefined: the claim is gone, or was released because we drain. */
  async #lease(job: RemoteJob): Promise<Held | undefined> {
    for (;;) {
      if (this.#draining.signal.aborted) {
        await this.#post(`/jobs/${job.job_id}/status`, { state: 'QUEUED', worker_id: this.workerId });
        return undefined;
      }
      const sentAt = performance.now();
      const request = { job_id: job.job_id, worker_id: this.workerId, ttl_sec: this.#options.ttlSeconds ?? 30 };
      const answer = await this.#post('/lease/request', request).catch(() => undefined);
      if (answer?.status === 200 && answer.body.approved) {
        const leaseId = answer.body.lease.lease_id;
        if (!this.#leases.take(leaseId)) return void this.#log('another slot has the lease', { job: job.job_id });
        const ttlMs = answer.body.lease.ttl_sec * 1000;
        const deadline = sentAt + ttlMs - marginOf(ttlMs);
        const signals = { stop: new AbortController(), ended: new AbortController() };
        const held = {
          job,
          leaseId,
          ttlMs,
          deadline,
          lost: false,
          waits: false,
          ...signals,
        };
        if (performance.now() < deadline) return held;
        // The answer came too late to begin: the job goes back, if the lease is still ours to give.
        const unused = { status: 'CANCELED', error: 'the lease ran out before the start', requeue: true };
        await this.#post(`/lease/${held.leaseId}/release`, { ...own(this, held), ...unused }).catch(() => undefined);
        return undefined;
      }
      if (answer && answer.status !== 200)
        return void this.#log('claim lost', { job: job.job_id, status: answer.status });
      await pause(answer ? answer.body.retry_after_sec * 1000 : 500, this.#draining.signal);
    }
  }

  async #beat(held: Held): Promise<void> {
    let waitMs = held.ttlMs / 3;
    while (!held.ended.signal.aborted) {
      await pause(Math.min(waitMs, held.deadline - performance.now()), held.ended.signal);
      if (held.ended.signal.aborted) return;
      const sentAt = performance.now();
      if (sentAt >= held.deadline) return lose(held);
      waitMs = held.ttlMs / 3;
      try {
        const beat = { ...own(this, held), progress: held.progress, message: held.message };
        const path = `/lease/${held.leaseId}/heartbeat`;
        const answer = await this.#post(path, beat, Math.min(waitMs, held.deadline - sentAt));
        if (answer.status !== 200) return lose(held);
        held.deadline = sentAt + held.ttlMs - marginOf(held.ttlMs);
        if (answer.body.job.cancel_requested) held.stop.abort(new Stopped(answer.body.job.cancel_intent));
      } catch {
        // Unknown, not lost: try again soon, until the time is over.
        waitMs = Math.min(waitMs / 4, 1000);
      }
    }
  }

  /** The handler's outcome; undefined if the lease was lost, for then nothing may be written. */
  async #attempt(held: Held): Promise<object | undefined> {
    const started = performance.now();
    let outcome: object;
    try {
      const report = (progress: number, message?: string) => Object.assign(held, { progress, message });
      const { job, leaseId } = held;
      const ask = (question: RemoteQuestion) => this.#ask(held, question);
      const result = await this.#handler({ job, leaseId, signal: held.stop.signal, report, ask });
      outcome = { status: 'SUCCEEDED', result_data: result ?? null };
    } catch (error) {
      outcome = failure(error, held.stop.signal);
    }
    if (held.waits) return undefined;
    if (held.lost) return void this.#log('lease lost', { job: held.job.job_id, lease: held.leaseId });
    return { ...outcome, metrics: { runtime_ms: Math.round(performance.now() - started) } };
  }

  async #ask(held: Held, question: RemoteQuestion): Promise<RemoteAnswer> {
    for (;;) {
      held.stop.signal.throwIfAborted();
      const answer = await this.#post(`/lease/${held.leaseId}/ask`, { ...own(this, held), ...question }).catch(
        () => undefined,
      );
      if (answer === undefined) {
        // May be repeated: the question is stored once.
        await pause(500, held.stop.signal);
        continue;
      }
      if (answer.status === 409) lose(held);
      held.stop.signal.throwIfAborted();
      if (answer.status !== 200) throw Object.assign(new Error(answer.body?.detail), { recoverable: false });
      const { status, answer: fields, action, error } = answer.body;
      if (status === 'answered') return action === null ? fields : { ...fields, action };
      if (status === 'failed') throw Object.assign(new Error(error.message), { code: error.code, recoverable: false });
      held.waits = true;
      held.ended.abort();
      held.stop.abort(new Stopped('waiting'));
      throw held.stop.signal.reason;
    }
  }

  async #release(held: Held, outcome: object): Promise<void> {
    // A release can be repeated: its first effect is its only one.
    while (performance.now() < held.deadline) {
      try {
        const answer = await this.#post(`/lease/${held.leaseId}/release`, { ...own(this, held), ...outcome });
        if (answer.status !== 200) this.#log('release refused', { job: held.job.job_id, status: answer.status });
        return;
      } catch {
        await pause(250);
      }
    }
    this.#log('lease ran out before its release was answered', { job: held.job.job_id });
  }

  async #post(path: string, body: object, timeoutMs = requestTimeoutMs, signal?: AbortSignal): Promise<Answer> {
    const signals = [AbortSignal.timeout(Math.max(1, Math.ceil(timeoutMs))), ...(signal ? [signal] : [])];
    try {
      const response = await (this.#options.fetch ?? fetch)(`${this.#options.url}/api/scheduler${path}`, {
        method: 'POST',
        headers: { authorization: `Bearer ${this.#options.key}`, 'content-type': 'application/json' },
        body: JSON.stringify(body),
        signal: AbortSignal.any(signals),
      });
      const text = await response.text();
      if (response.status >= 500 || response.status === 429) throw new Error(`answered ${response.status}`);
      return { status: response.status, body: text === '' ? undefined : JSON.parse(text) };
    } catch (error) {
      throw new Unreachable(messageOf(error));
    }
  }

  #log(message: string, fields: Record<string, unknown>): void {
    this.#options.log?.(message, { worker: this.workerId, ...fields });
  }
}

/** Nothing may be written any more, whatever was asked before. */
function lose(held: Held): void {
  held.lost = true;
  held.stop.abort(new Stopped('leaseLost'));
}

function own(worker: LeaseholdWorker, held: Held) {
  return { job_id: held.job.job_id, worker_id: worker.workerId };
}

function failure(error: unknown, signal: AbortSignal): object {
  const stopped = signal.reason instanceof Stopped ? signal.reason.reason : undefined;
  if (stopped !== undefined) return { status: 'CANCELED', error: `stopped: ${stopped}`, requeue: stopped === 'drain' };
  const code = error instanceof Error && 'code' in error ? String(error.code) : 'HANDLER_ERROR';
  const recoverable = !(error instanceof Error && 'recoverable' in error && error.recoverable === false);
  const trace = error instanceof Error ? { name: error.name, stack: error.stack } : {};
  return { status: 'FAILED', error: { code, message: messageOf(error), ...trace }, recoverable };
}

/** Time to notice and to stop before another worker may have the job. */
function marginOf(ttlMs: number): number {
  return Math.min(2000, ttlMs / 5);
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

function pause(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal?.aborted) return resolve();
    const end = () => {
      clearTimeout(timer);
      signal?.removeEventListener('abort', end);
      resolve();
    };
    const timer = setTimeout(end, Math.max(0, ms));
    signal?.addEventListener('abort', end);
  });
}
