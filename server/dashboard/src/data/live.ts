// The event stream: one connection for the whole page, resumed after the last event if it breaks. Views subscribe; only
// the last id is kept here.
import { apiHeaders, apiUrl, sessionEnded } from './api.ts';
import { Store } from './store.ts';
import type { LiveEvent } from './types.ts';

type LiveState =
  | { kind: 'off' | 'connecting' | 'live' }
  | { kind: 'behind'; seconds: number }
  | { kind: 'lost'; since: number };

type Listener = (event: LiveEvent | 'reset') => void;

// The daemon pings every 15 s: two missed pings are a dead connection.
const silenceMs = 40_000;
const firstRetryMs = 500;
const maxRetryMs = 20_000;
// Events arrive within a second; a longer delay is shown.
const behindSeconds = 6;

class LiveStream {
  readonly state = new Store<LiveState>({ kind: 'off' });
  #listeners = new Set<Listener>();
  #lastId: string | undefined;
  #abort: AbortController | undefined;
  #retryMs = firstRetryMs;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #watchdog: ReturnType<typeof setTimeout> | undefined;
  /** A new stream resumes nothing, so its first ping has the position from which it sends. */
  #isNew = false;
  /** The daemon's clock minus ours. */
  #offsetMs = 0;

  subscribe(listener: Listener): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  start(): void {
    if (this.#abort === undefined) void this.#connect();
  }

  /** Forgets the last id, because the tenant changes or the person signs out. */
  stop(): void {
    this.#end();
    clearTimeout(this.#timer);
    this.#lastId = undefined;
    this.state.set({ kind: 'off' });
  }

  #end(): void {
    clearTimeout(this.#watchdog);
    this.#abort?.abort();
    this.#abort = undefined;
  }

  async #connect(): Promise<void> {
    clearTimeout(this.#timer);
    const abort = new AbortController();
    this.#abort = abort;
    if (this.state.value.kind !== 'lost') this.state.set({ kind: 'connecting' });
    try {
      const path = '/events/stream';
      this.#isNew = this.#lastId === undefined;
      const response = await fetch(apiUrl(path), {
        headers: {
          ...apiHeaders(path),
          Accept: 'text/event-stream',
          ...(this.#lastId !== undefined && { 'Last-Event-ID': this.#lastId }),
        },
        credentials: 'same-origin',
        signal: abort.signal,
      });
      if (response.status === 401) sessionEnded.set(true);
      if (!response.ok || response.body === null) throw new Error(`stream: ${response.status}`);
      this.state.set({ kind: 'live' });
      await this.#read(response.body, abort);
    } catch {
      // The next step shows the reason: a reconnect, or the sign-in.
    }
    if (this.#abort === abort) this.#retry();
  }

  #retry(): void {
    this.#end();
    if (this.state.value.kind !== 'lost') this.state.set({ kind: 'lost', since: Date.now() });
    const wait = this.#retryMs * (0.75 + Math.random() / 2);
    this.#retryMs = Math.min(this.#retryMs * 2, maxRetryMs);
    this.#timer = setTimeout(() => void this.#connect(), wait);
  }

  async #read(body: ReadableStream<Uint8Array<ArrayBuffer>>, abort: AbortController): Promise<void> {
    const reader = body.getReader();
    const decoder = new TextDecoder();
    let rest = '';
    for (;;) {
      clearTimeout(this.#watchdog);
      this.#watchdog = setTimeout(() => abort.abort(), silenceMs);
      const { value, done } = await reader.read();
      if (done) return;
      const frames = (rest + decoder.decode(value, { stream: true })).split('\n\n');
      rest = frames.pop() ?? '';
      for (const frame of frames) this.#take(frame);
    }
  }

  #take(frame: string): void {
    const fields: Record<string, string> = {};
    for (const line of frame.split('\n')) {
      const at = line.indexOf(':');
      if (at > 0) fields[line.slice(0, at)] = line.slice(at + 1).trimStart();
    }
    if (fields.id !== undefined) this.#lastId = fields.id;
    if (fields.event === undefined || fields.data === undefined) return;
    this.#retryMs = firstRetryMs;
    const data = JSON.parse(fields.data) as { at?: string };
    switch (fields.event) {
      case 'ping':
        if (data.at !== undefined) this.#offsetMs = Date.parse(data.at) - Date.now();
        this.state.set({ kind: 'live' });
        // Events between the first read of the views and the start of the stream would never be shown.
        if (this.#isNew) this.#publish('reset');
        this.#isNew = false;
        return;
      case 'reset':
        this.#publish('reset');
        return;
      case 'snapshot':
      case 'closed':
        return;
      default:
        this.#measure(data.at);
        this.#publish(data as LiveEvent);
    }
  }

  #measure(at: string | undefined): void {
    if (at === undefined) return;
    const seconds = Math.round((Date.now() + this.#offsetMs - Date.parse(at)) / 1000);
    const behind = seconds > behindSeconds;
    if (behind) this.state.set({ kind: 'behind', seconds });
    else if (this.state.value.kind !== 'live') this.state.set({ kind: 'live' });
  }

  #publish(event: LiveEvent | 'reset'): void {
    for (const listener of [...this.#listeners]) listener(event);
  }
}

export const live = new LiveStream();
