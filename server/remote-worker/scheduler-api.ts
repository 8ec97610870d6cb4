// Requests to the scheduler API: fetch and timers, nothing else.
import type { WorkerOptions } from './work.ts';

/** There was no usable answer, so the request may or may not have taken effect. */
export class Unreachable extends Error {
  /** The status of the answer, if there was one. */
  readonly status: number | undefined;
  constructor(message: string, status?: number) {
    super(message);
    this.status = status;
  }
}

// biome-ignore lint/suspicious/noExplicitAny: JSON from the server.
export type Answer = { status: number; body: any };

const requestTimeoutMs = 10_000;

export class SchedulerApi {
  readonly #options: Pick<WorkerOptions, 'url' | 'key' | 'fetch'>;

  constructor(options: Pick<WorkerOptions, 'url' | 'key' | 'fetch'>) {
    this.#options = options;
  }

  /** Like `post`, for a request that the server may answer only after `waitMs`. */
  postAndWait(path: string, body: object, waitMs: number, signal: AbortSignal): Promise<Answer> {
    return this.post(path, body, waitMs + requestTimeoutMs, signal);
  }

  async post(path: string, body: object, timeoutMs = requestTimeoutMs, signal?: AbortSignal): Promise<Answer> {
    const signals = [AbortSignal.timeout(Math.max(1, Math.ceil(timeoutMs))), ...(signal ? [signal] : [])];
    try {
      const response = await (this.#options.fetch ?? fetch)(`${this.#options.url}/api/scheduler${path}`, {
        method: 'POST',
        headers: { authorization: `Bearer ${this.#options.key}`, 'content-type': 'application/json' },
        body: JSON.stringify(body),
        signal: AbortSignal.any(signals),
      });
      const text = await response.text();
      const answer = { status: response.status, body: parse(text) };
      const isFull = response.status === 429 && answer.body?.code === 'QUEUE_FULL';
      if (response.status >= 500 || (response.status === 429 && !isFull)) {
        throw new Unreachable(`answered ${response.status}`, response.status);
      }
      return answer;
    } catch (error) {
      throw error instanceof Unreachable ? error : new Unreachable(messageOf(error));
    }
  }
}

function parse(text: string): Answer['body'] {
  return text === '' ? undefined : JSON.parse(text);
}

export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

export function pause(ms: number, signal?: AbortSignal): Promise<void> {
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
