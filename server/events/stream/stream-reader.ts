// One reader of a live stream: what it wants, how it is written to, and when it is given up.
import type { ServerResponse } from 'node:http';
import type { StreamBatch, StreamFilter } from './stream-batch.ts';

export interface ReaderOptions {
  filter: StreamFilter;
  /** Bytes that may wait for a slow reader. */
  bufferBytes: number;
  /** How long a reader may take nothing while something waits for it. */
  stallMs: number;
  /** Whether its key still opens this stream. Rejects when that cannot be said now. */
  stillAllowed(): Promise<boolean>;
}

export class StreamReader {
  readonly filter: StreamFilter;
  readonly stillAllowed: () => Promise<boolean>;
  #response: ServerResponse;
  #options: ReaderOptions;
  /** Batches that came while the reader was still catching up. */
  #waiting: StreamBatch[] | undefined = [];
  #waitingBytes = 0;
  #stalledAt: number | undefined;

  constructor(response: ServerResponse, options: ReaderOptions) {
    this.filter = options.filter;
    this.stillAllowed = options.stillAllowed;
    this.#response = response;
    this.#options = options;
    response.on('drain', () => {
      this.#stalledAt = undefined;
    });
  }

  get closed(): boolean {
    return this.#response.destroyed || this.#response.writableEnded;
  }

  deliver(batch: StreamBatch): void {
    if (this.#waiting) {
      this.#waiting.push(batch);
      this.#waitingBytes += batch.whole.length;
      if (this.#waitingBytes > this.#options.bufferBytes) this.drop();
      return;
    }
    this.send(batch.select(this.filter));
  }

  /** The past was sent: from here on the reader is live. */
  goLive(): void {
    const waiting = this.#waiting ?? [];
    this.#waiting = undefined;
    for (const batch of waiting) this.deliver(batch);
  }

  send(frames: Buffer | string): void {
    if (this.closed || frames.length === 0) return;
    if (this.#response.writableLength > this.#options.bufferBytes) this.drop();
    else if (!this.#response.write(frames)) this.#stalledAt ??= performance.now();
  }

  /** Gives up a reader that takes nothing: it can come back with its last id. */
  dropIfStalled(): void {
    if (this.#stalledAt !== undefined && performance.now() - this.#stalledAt > this.#options.stallMs) this.drop();
  }

  drop(): void {
    this.#response.destroy();
  }

  end(lastWords: string): void {
    if (this.closed) return;
    // A reader that does not read would keep a polite end waiting for ever.
    if (this.#stalledAt !== undefined) this.drop();
    else this.#response.end(lastWords);
  }
}
