// A reader of a tenant's live stream that reconnects with its last id, to any daemon, and logs what it gets.
import type { TestDaemon } from '../daemons.ts';
import { machineMs, type RunLog } from '../run-log.ts';

export interface StreamRecord {
  event: string;
  /** The event's number in the log of the tenant. */
  seq?: string;
  job?: string | null;
  target?: string | null;
  from?: string | null;
  to?: string | null;
  at: number;
}

// A frozen daemon sends nothing: pings come more often than this.
const silenceMs = 6_000;
const retryMs = 100;

export class StreamFollower {
  readonly #log: RunLog;
  readonly #file: string;
  readonly #apiKey: string;
  readonly #daemons: () => TestDaemon;
  readonly #abort = new AbortController();
  readonly #done: Promise<void>;
  #lastId: string | undefined;
  readonly seen = new Set<string>();
  isLive = false;

  /** `daemons` chooses the daemon for the next connection. */
  constructor(log: RunLog, file: string, apiKey: string, daemons: () => TestDaemon) {
    this.#log = log;
    this.#file = file;
    this.#apiKey = apiKey;
    this.#daemons = daemons;
    this.#done = this.#follow();
  }

  async stop(): Promise<void> {
    this.#abort.abort();
    await this.#done;
  }

  async #follow(): Promise<void> {
    while (!this.#abort.signal.aborted) {
      await this.#readOnce().catch(() => {});
      if (!this.#abort.signal.aborted) await new Promise((resolve) => setTimeout(resolve, retryMs));
    }
  }

  async #readOnce(): Promise<void> {
    const silence = new AbortController();
    let timer = setTimeout(() => silence.abort(), silenceMs);
    try {
      const headers: Record<string, string> = { authorization: `Bearer ${this.#apiKey}` };
      if (this.#lastId !== undefined) headers['last-event-id'] = this.#lastId;
      const signal = AbortSignal.any([this.#abort.signal, silence.signal]);
      const response = await fetch(`${this.#daemons().url}/api/events/stream`, { headers, signal });
      if (!response.ok || response.body === null) return;
      let text = '';
      const decoder = new TextDecoder();
      for await (const chunk of response.body as unknown as AsyncIterable<Uint8Array>) {
        clearTimeout(timer);
        timer = setTimeout(() => silence.abort(), silenceMs);
        const frames = (text + decoder.decode(chunk, { stream: true })).split('\n\n');
        text = frames.pop() ?? '';
        for (const frame of frames) this.#onFrame(frame);
      }
    } finally {
      clearTimeout(timer);
    }
  }

  #onFrame(frame: string): void {
    const fields = new Map(
      frame.split('\n').flatMap((line) => {
        const at = line.indexOf(': ');
        return at < 0 ? [] : [[line.slice(0, at), line.slice(at + 2)] as const];
      }),
    );
    this.#lastId = fields.get('id') ?? this.#lastId;
    this.isLive = true;
    const event = fields.get('event') ?? '';
    if (event === 'ping' || event === 'closed' || event === 'snapshot') return;
    const data = JSON.parse(fields.get('data') ?? '{}') as {
      id?: string;
      job_id?: string | null;
      target_id?: string | null;
      from?: string | null;
      to?: string | null;
    };
    const record: StreamRecord = { event, at: machineMs() };
    if (data.id !== undefined) {
      Object.assign(record, { seq: data.id, job: data.job_id, target: data.target_id, from: data.from, to: data.to });
      this.seen.add(data.id);
    }
    this.#log.append(this.#file, record);
  }
}
