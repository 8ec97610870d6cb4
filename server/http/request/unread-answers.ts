// Answers that their clients do not read. An answer stays in memory until the client's system has taken it, so a tenant
// whose clients ask and never read could use up the memory of the daemon.
import type { ServerResponse } from 'node:http';
import { problem } from '../../kernel/errors.ts';

export interface UnreadAnswersOptions {
  /** A holder with more unread bytes gets no further answers. */
  limitBytes: number;
  /** How long a client may take nothing of an answer. */
  stallMs?: number;
}

// As long as a reader of a live stream may take nothing.
const defaultStallMs = 30_000;
// Smaller answers wait in the buffers of the system, which stops reading requests of a client that does not read.
const countedFrom = 4096;

export class UnreadAnswers {
  readonly #limitBytes: number;
  readonly #stallMs: number;
  readonly #byHolder = new Map<string, number>();

  constructor({ limitBytes, stallMs = defaultStallMs }: UnreadAnswersOptions) {
    this.#limitBytes = limitBytes;
    this.#stallMs = stallMs;
  }

  bytesOf(holder: string): number {
    return this.#byHolder.get(holder) ?? 0;
  }

  /** Throws while the holder has too many unread answers. */
  admit(holder: string): void {
    if (this.bytesOf(holder) <= this.#limitBytes) return;
    throw problem('TOO_MANY_REQUESTS', 'Too many answers of this tenant wait to be read; read them first.', {
      scope: 'tenant',
    });
  }

  /** To be called after an answer, or the first part of a stream, was written. */
  wrote(response: ServerResponse, holder: string): void {
    const bytes = response.writableLength;
    if (bytes < countedFrom || response.destroyed) return;
    this.#add(holder, bytes);
    let isReleased = false;
    const release = () => {
      if (isReleased) return;
      isReleased = true;
      this.#add(holder, -bytes);
    };
    response.once('close', release);
    if (!response.writableEnded) response.once('drain', release);
    // Any progress starts the time anew. A stream stays open without any, and drops its reader itself.
    else response.setTimeout(this.#stallMs, () => void response.destroy());
  }

  #add(holder: string, bytes: number): void {
    const left = this.bytesOf(holder) + bytes;
    if (left > 0) this.#byHolder.set(holder, left);
    else this.#byHolder.delete(holder);
  }
}
