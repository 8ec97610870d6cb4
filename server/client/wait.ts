// Waits for the end of jobs: by the live stream of each job, or by asking again and again where there are too many.
import type { Job } from './api-types.ts';
import { JobFailedError, WaitTimeoutError } from './client-errors.ts';
import type { Events, StreamMessage } from './events.ts';
import { sleep } from './retry-delay.ts';
import type { CallOptions } from './transport.ts';

interface WaitRequest extends CallOptions {
  waitMs?: number | undefined;
  onError?: 'throw' | 'wait' | undefined;
}

// A browser has six connections to a host, and the other requests need some of them.
const maxStreams = 4;
const pollMs = { first: 100, max: 2000 };

export class Waits {
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

  /** Returns true once the job may have ended, false if there is no stream to be had. */
  async #nextChange(id: string, onError: 'throw' | 'wait', signal: AbortSignal): Promise<boolean> {
    this.#streams += 1;
    try {
      for await (const message of this.#events.stream({ job: id, snapshot: true, signal, retryForMs: 0 })) {
        if (mayHaveEnded(message, onError)) return true;
      }
      return true;
    } catch (error) {
      if (signal.aborted) throw error;
      // A lost connection, or too many streams: reading the job shows what is wrong, if anything is.
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
