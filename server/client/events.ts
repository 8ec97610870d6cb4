// The event log as a list, and the live stream. The stream reconnects and continues after the last message, on any
// daemon, so that every event arrives once.

import { ConnectionError, ProblemError } from './client-errors.ts';
import type { EventListOptions } from './generated/api-options.ts';
import type { Event, EventReceipt, JobSummary } from './generated/api-types.ts';
import { idOf, type JobId } from './job-reference.ts';
import { type List, listAt } from './pages.ts';
import { backoffMs, type CallOptions, isTransient, randomKey, sleep, type Transport, toQuery } from './transport.ts';

/** `position` identifies this message: store it and pass it as `after` to continue after the message. */
export type StreamMessage =
  /** The stream is live: later events follow. Sent once, unless the stream begins with a snapshot. */
  | { kind: 'open'; position: string }
  | { kind: 'event'; position: string; event: Event }
  /** The unfinished jobs of the selection, or the one job, without the events that follow. */
  | { kind: 'snapshot'; position: string; jobs: JobSummary[]; complete: boolean }
  /** This reader has missed events, so its state may be out of date. */
  | { kind: 'reset'; position: string; reason: string };

export interface StreamOptions {
  job?: JobId | undefined;
  targetId?: string | undefined;
  /** Begins with the current jobs of the selection, also after a reset. */
  snapshot?: boolean | undefined;
  /** The `position` of the last message that was handled. */
  after?: string | undefined;
  signal?: AbortSignal | undefined;
  /**
   * After this many milliseconds without a byte the connection counts as lost; the daemon pings every 15 s. Default
   * 60,000.
   */
  idleTimeoutMs?: number | undefined;
  /** How long the stream tries to reconnect. The default is no limit. */
  retryForMs?: number | undefined;
}

export interface SendOptions extends CallOptions {
  /** Your name for this event. */
  id?: string | undefined;
}

export class Events {
  readonly #transport: Transport;

  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** Lists the log, newest first. */
  list(options: EventListOptions & CallOptions = {}): List<Event> {
    const { signal, timeoutMs, retryForMs, ...filter } = options;
    return listAt(this.#transport, '/api/events', 'events', filter, { signal, timeoutMs, retryForMs });
  }

  /**
   * Sends an event to the jobs that wait for it. An event with the same `id` is received once. Without an `id` the
   * client creates one, so that the request can be repeated.
   */
  async send(name: string, data?: unknown, options: SendOptions = {}): Promise<EventReceipt> {
    const { id = randomKey(), ...call } = options;
    const path = `/api/events/${encodeURIComponent(name)}`;
    const body = { id, ...(data !== undefined && { data }) };
    return (await this.#transport.request<EventReceipt>('POST', path, { ...call, body, repeatable: true })).body;
  }

  /** Ends with the reason of `signal`, or with a problem that repeating does not solve, such as a revoked key. */
  async *stream(options: StreamOptions = {}): AsyncGenerator<StreamMessage, never, undefined> {
    let position = options.after;
    let opened = position !== undefined;
    let failures = 0;
    let lostAt = performance.now();
    for (;;) {
      let retryAfterMs = 0;
      let error: unknown;
      try {
        for await (const message of this.#connect(options, position)) {
          failures = 0;
          lostAt = performance.now();
          position = message.id ?? position;
          const shown = toMessage(message, position ?? '', opened);
          if (shown !== undefined) yield shown;
          opened = true;
        }
      } catch (caught) {
        if (options.signal?.aborted) throw options.signal.reason;
        error = caught;
        retryAfterMs = retryMsOf(caught);
        if (!isRepeatable(caught, retryAfterMs)) throw caught;
      }
      failures += 1;
      const delayMs = backoffMs(failures, retryAfterMs);
      if (performance.now() - lostAt + delayMs > (options.retryForMs ?? Number.POSITIVE_INFINITY)) {
        throw error ?? new ConnectionError('The stream ended.', { mayHaveHappened: false, attempts: failures });
      }
      await sleep(delayMs, options.signal);
    }
  }

  async *#connect(options: StreamOptions, position: string | undefined): AsyncGenerator<SseMessage> {
    const { signal, targetId, snapshot } = options;
    if (signal?.aborted) throw signal.reason;
    const jobId = options.job === undefined ? undefined : idOf(options.job);
    const abort = new AbortController();
    const onAbort = () => abort.abort(signal?.reason);
    signal?.addEventListener('abort', onAbort, { once: true });
    const idleMs = options.idleTimeoutMs ?? 60_000;
    const silent = () =>
      abort.abort(new ConnectionError('The stream is silent.', { mayHaveHappened: false, attempts: 1 }));
    let timer = setTimeout(silent, idleMs);
    const onBytes = () => {
      clearTimeout(timer);
      timer = setTimeout(silent, idleMs);
    };
    try {
      const path = `/api/events/stream${toQuery({ jobId, targetId, snapshot })}`;
      const headers = { accept: 'text/event-stream', ...(position !== undefined && { 'last-event-id': position }) };
      const response = await this.#transport.open(path, headers, abort.signal);
      if (response.body !== null) yield* readMessages(response.body, onBytes);
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener('abort', onAbort);
      abort.abort();
    }
  }
}

function toMessage({ event, data }: SseMessage, position: string, opened: boolean): StreamMessage | undefined {
  if (event === 'ping') return opened ? undefined : { kind: 'open', position };
  if (event === 'closed') return undefined;
  const content = JSON.parse(data === '' ? 'null' : data);
  if (event === 'snapshot') return { kind: 'snapshot', position, ...content };
  if (event === 'reset') return { kind: 'reset', position, ...content };
  return { kind: 'event', position, event: content as Event };
}

/** True for a lost connection and for a daemon that drains or is overloaded, not for an invalid request. */
function isRepeatable(error: unknown, retryAfterMs: number): boolean {
  if (error instanceof ProblemError) return isTransient(error, retryAfterMs);
  return true;
}

function retryMsOf(error: unknown): number {
  const { retryAfterMs = 0 } = (error ?? {}) as { retryAfterMs?: number };
  return retryAfterMs;
}

// Parses server-sent events from the body of a response. Bytes may be cut anywhere.

interface SseMessage {
  id: string | undefined;
  event: string;
  data: string;
}

async function* readMessages(body: ReadableStream<Uint8Array>, onBytes: () => void): AsyncGenerator<SseMessage> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let text = '';
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      onBytes();
      text += decoder.decode(value, { stream: true });
      for (;;) {
        const end = /\r?\n\r?\n/.exec(text);
        if (end === null) break;
        const message = parse(text.slice(0, end.index));
        text = text.slice(end.index + end[0].length);
        if (message !== undefined) yield message;
      }
    }
  } finally {
    // Also when the consumer leaves the loop.
    void reader.cancel().catch(() => {});
  }
}

function parse(frame: string): SseMessage | undefined {
  let id: string | undefined;
  let event = 'message';
  const data: string[] = [];
  for (const line of frame.split(/\r?\n/)) {
    const colon = line.indexOf(':');
    if (colon === 0) continue;
    const field = colon === -1 ? line : line.slice(0, colon);
    const value = colon === -1 ? '' : line.slice(colon + 1).replace(/^ /, '');
    if (field === 'id') id = value;
    else if (field === 'event') event = value;
    else if (field === 'data') data.push(value);
  }
  return data.length === 0 && id === undefined ? undefined : { id, event, data: data.join('\n') };
}
