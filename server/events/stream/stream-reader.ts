// One reader of a live stream: its filter, the writing to it, and when it is dropped.
import type { ServerResponse } from 'node:http';
import type { StreamBatch, StreamFilter } from './frames.ts';

export interface ReaderOptions {
  filter: StreamFilter;
  /** Bytes that may be buffered for a slow reader. */
  bufferBytes: number;
  /** How long a reader may accept no bytes while some are buffered for it. */
  stallMs: number;
  /** Whether its key may still read this stream. Rejects if that cannot be checked now. */
  stillAllowed(): Promise<boolean>;
}

export class StreamReader {
  readonly filter: StreamFilter;
  readonly stillAllowed: () => Promise<boolean>;
  #response: ServerResponse;
  #options: ReaderOptions;
  /** Batches that arrived while the reader was still reading its backlog. */
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

  /** The backlog was sent: from here on batches are written at once. */
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

  /** Drops a reader that accepts nothing: it can resume with its last id. */
  dropIfStalled(): void {
    if (this.#stalledAt !== undefined && performance.now() - this.#stalledAt > this.#options.stallMs) this.drop();
  }

  drop(): void {
    this.#response.destroy();
  }

  end(finalFrame: string): void {
    if (this.closed) return;
    // A reader that accepts nothing would keep `end` waiting for ever.
    if (this.#stalledAt !== undefined) this.drop();
    else this.#response.end(finalFrame);
  }
}
