// Operations on existing jobs: read, list, wait and act.

import { JobFailedError, WaitTimeoutError } from './client-errors.ts';
import type { Events, StreamMessage } from './events.ts';
import type { JobListOptions } from './generated/api-options.ts';
import type { Event, Job, JobGraph, JobSummary, LogLine, Why } from './generated/api-types.ts';
import { idOf, type JobId } from './job-reference.ts';
import { type List, listAt } from './pages.ts';
import { type CallOptions, sleep, type Transport, toBody } from './transport.ts';

/** Stored in the event of the action, for readers of the history. */
export interface ActionOptions extends CallOptions {
  reason?: string | undefined;
  author?: string | undefined;
}

/** A job with the result type of its definition. */
export type JobWithResult<R> = Omit<Job, 'result'> & { result: R };

/** A job that was enqueued; `R` is the type of its result. */
export interface JobHandle<R = unknown> {
  readonly id: string;
  /** For the compiler only. */
  readonly types?: { readonly result: R };
}

export interface ResumeOptions extends ActionOptions {
  /** A new limit of tokens for the job. */
  tokenLimit?: number | undefined;
  /** New limits by unit, for a job that its budget holds. */
  budget?: Readonly<Record<string, number>> | undefined;
}

export interface WaitOptions extends CallOptions {
  /** After this time a WaitTimeoutError is thrown. The default is no limit. */
  waitMs?: number | undefined;
  /**
   * `throw` (default) throws a JobFailedError. `wait` waits until a person has resumed, resolved or skipped the failed
   * job.
   */
  onError?: 'throw' | 'wait' | undefined;
}

export class Jobs {
  readonly #transport: Transport;
  readonly #waits: Waits;

  constructor(transport: Transport, events: Events) {
    this.#transport = transport;
    this.#waits = new Waits((id, call) => this.get(id, call), events);
  }

  async get<R = unknown>(job: JobId | JobHandle<R>, call: CallOptions = {}): Promise<JobWithResult<R | null>> {
    const path = `/api/jobs/${encodeURIComponent(idOf(job))}`;
    const { body } = await this.#transport.request<Job>('GET', path, { ...call, repeatable: true });
    return body as JobWithResult<R | null>;
  }

  /** Lists jobs, newest first. */
  list(options: JobListOptions & CallOptions = {}): List<JobSummary> {
    const { signal, timeoutMs, retryForMs, ...filter } = options;
    return listAt(this.#transport, '/api/jobs', 'jobs', filter, { signal, timeoutMs, retryForMs });
  }

  /**
   * Waits until the job has succeeded and returns it with its result. Keeps waiting while the job is PAUSED. Survives
   * lost connections and restarts of the daemon.
   */
  wait<R = unknown>(job: JobHandle<R> | string, options: WaitOptions = {}): Promise<JobWithResult<R>> {
    return this.#waits.wait(idOf(job), options) as Promise<JobWithResult<R>>;
  }

  /** Ends a job. A running job is asked to stop, and `cancel_requested` is true until it has stopped. */
  cancel(job: JobId, options: ActionOptions = {}): Promise<Job> {
    return this.#act(job, 'cancel', options, true);
  }

  pause(job: JobId, options: ActionOptions = {}): Promise<Job> {
    return this.#act(job, 'pause', options, true);
  }

  /**
   * Runs a paused or failed job again. Not repeated after a lost answer, because the job may have run and failed again.
   */
  resume(job: JobId, options: ResumeOptions = {}): Promise<Job> {
    return this.#act(job, 'resume', options, false);
  }

  /** The same request as `resume`, for a job that failed. */
  retry(job: JobId, options: ActionOptions = {}): Promise<Job> {
    return this.resume(job, options);
  }

  /** Ends a paused or failed job as SUCCESS with this result. */
  resolve(job: JobId, options: ActionOptions & { result?: unknown } = {}): Promise<Job> {
    return this.#act(job, 'resolve', options, true);
  }

  /** Cancels the job that holds its lane, so that the lane continues. */
  skip(job: JobId, options: ActionOptions = {}): Promise<Job> {
    return this.#act(job, 'skip', options, true);
  }

  /** Explains why the job is not running, and what would release it. */
  async why(job: JobId, call: CallOptions = {}): Promise<Why> {
    const path = `/api/jobs/${encodeURIComponent(idOf(job))}/why`;
    return (await this.#transport.request<Why>('GET', path, { ...call, repeatable: true })).body;
  }

  /** Returns the jobs it waits for, the jobs that wait for it, and the jobs connected with them. */
  async graph(job: JobId, { limit = 200, ...call }: CallOptions & { limit?: number } = {}): Promise<JobGraph> {
    const path = `/api/jobs/${encodeURIComponent(idOf(job))}/graph?limit=${limit}`;
    return (await this.#transport.request<JobGraph>('GET', path, { ...call, repeatable: true })).body;
  }

  /** The history of a job, oldest first. */
  events(job: JobId, call: CallOptions = {}): List<Event> {
    return listAt(this.#transport, `/api/jobs/${encodeURIComponent(idOf(job))}/events`, 'events', {}, call);
  }

  /** Lists the log lines of its handler so far, oldest first. */
  async *logs(job: JobId, call: CallOptions = {}): AsyncGenerator<LogLine, void, undefined> {
    const list = this.logPages(job, call);
    let cursor: string | undefined;
    for (;;) {
      const { items, nextCursor } = await list.page(cursor);
      yield* items;
      if (items.length === 0 || nextCursor === null) return;
      cursor = nextCursor;
    }
  }

  /** Follows a running job: the cursor after its last line stays valid. */
  logPages(job: JobId, call: CallOptions = {}): List<LogLine> {
    return listAt(this.#transport, `/api/jobs/${encodeURIComponent(idOf(job))}/logs`, 'lines', {}, call);
  }

  async #act(job: JobId, verb: string, options: ActionOptions, repeatable: boolean): Promise<Job> {
    const { signal, timeoutMs, retryForMs, ...body } = options;
    const path = `/api/jobs/${encodeURIComponent(idOf(job))}/${verb}`;
    const call = { signal, timeoutMs, retryForMs, repeatable };
    return (await this.#transport.request<Job>('POST', path, { ...call, body: toBody(body) })).body;
  }
}

// Waits for the ends of jobs, with the live stream of each job, or by polling if there are too many.

interface WaitRequest extends CallOptions {
  waitMs?: number | undefined;
  onError?: 'throw' | 'wait' | undefined;
}

// A browser has six connections to a host, and the other requests need some of them.
const maxStreams = 4;
const pollMs = { first: 100, max: 2000 };

class Waits {
  readonly #read: (id: string, call: CallOptions) => Promise<Job>;
  readonly #events: Events;
  #streams = 0;

  constructor(read: (id: string, call: CallOptions) => Promise<Job>, events: Events) {
    this.#read = read;
    this.#events = events;
  }

  async wait(id: string, { waitMs, onError = 'throw', ...call }: WaitRequest): Promise<Job> {
    const over = new AbortController();
    const onAbort = () => over.abort(call.signal?.reason);
    if (call.signal?.aborted) throw call.signal.reason;
    call.signal?.addEventListener('abort', onAbort, { once: true });
    const expire = () => over.abort(new WaitTimeoutError(`Job ${id} has not ended within ${waitMs} ms.`));
    const timer = waitMs === undefined ? undefined : setTimeout(expire, waitMs);
    try {
      return await this.#untilEnd(id, onError, { ...call, signal: over.signal });
    } finally {
      clearTimeout(timer);
      call.signal?.removeEventListener('abort', onAbort);
    }
  }

  async #untilEnd(id: string, onError: 'throw' | 'wait', call: CallOptions & { signal: AbortSignal }): Promise<Job> {
    let polls = 0;
    for (;;) {
      const job = await this.#read(id, call);
      if (job.status === 'SUCCESS' || job.status === 'PARTIAL') return job;
      if (job.status === 'CANCELED' || (job.status === 'ERROR' && onError === 'throw')) throw new JobFailedError(job);
      if (this.#streams < maxStreams && (await this.#nextChange(id, onError, call.signal))) continue;
      const delayMs = Math.min(pollMs.max, pollMs.first * 1.5 ** polls) * (0.75 + Math.random() / 2);
      polls += 1;
      await sleep(delayMs, call.signal);
    }
  }

  /** Returns true once the job may have ended, false if no stream can be opened. */
  async #nextChange(id: string, onError: 'throw' | 'wait', signal: AbortSignal): Promise<boolean> {
    this.#streams += 1;
    try {
      for await (const message of this.#events.stream({ job: id, snapshot: true, signal, retryForMs: 0 })) {
        if (mayHaveEnded(message, onError)) return true;
      }
      return true;
    } catch (error) {
      if (signal.aborted) throw error;
      // A lost connection, or too many streams: the read of the job that follows reports a real error.
      return false;
    } finally {
      this.#streams -= 1;
    }
  }
}

function mayHaveEnded(message: StreamMessage, onError: 'throw' | 'wait'): boolean {
  const ends = (status: string | null) =>
    status === 'SUCCESS' ||
    status === 'PARTIAL' ||
    status === 'CANCELED' ||
    (status === 'ERROR' && onError === 'throw');
  if (message.kind === 'event') return ends(message.event.to);
  if (message.kind === 'snapshot') return message.jobs.length === 0 || message.jobs.some((job) => ends(job.status));
  return message.kind === 'reset';
}
