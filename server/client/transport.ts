// Sends requests and repeats those that are safe to repeat. It handles HTTP, keys and time, and has no code for jobs.
import { ConnectionError, ProblemError } from './client-errors.ts';

export interface ClientOptions {
  /** The address of the daemon, or of a balancer in front of several: `http://127.0.0.1:8080`. */
  url: string;
  /** The key, or a function that returns the current one, e.g. for keys that are rotated. */
  apiKey: string | (() => string | Promise<string>);
  /** Replaces the global `fetch`, for example with one that uses a proxy or an agent. */
  fetch?: typeof fetch;
  /** The time limit of one attempt, until its answer is complete. Default 30,000. */
  timeoutMs?: number;
  /** How long a request is repeated before its error is thrown. Default 60,000; 0 sends everything once. */
  retryForMs?: number;
  /** Sent with every request. */
  headers?: Readonly<Record<string, string>>;
}

export interface CallOptions {
  signal?: AbortSignal | undefined;
  timeoutMs?: number | undefined;
  retryForMs?: number | undefined;
}

export interface RequestOptions extends CallOptions {
  /** Sent as JSON; a string is sent unchanged. */
  body?: unknown;
  headers?: Readonly<Record<string, string>> | undefined;
  /** True if sending it twice has the same effect as sending it once. Otherwise only refusals are repeated. */
  repeatable?: boolean;
}

export interface Answer<T> {
  status: number;
  body: T;
}

const defaults = { timeoutMs: 30_000, retryForMs: 60_000 };
// Problems that the daemon returns before it has done anything.
const nothingDone = new Set(['TOO_MANY_REQUESTS', 'DRAINING', 'OVERLOADED', 'TARGET_LOCKED', 'QUEUE_FULL']);
// Errors of Node's fetch before a connection existed.
const neverSent = new Set(['ECONNREFUSED', 'ENOTFOUND', 'EAI_AGAIN', 'EHOSTUNREACH', 'ENETUNREACH']);

/** The end of an attempt without an answer. */
interface Failure {
  error: ProblemError | ConnectionError;
  transient: boolean;
  mayHaveHappened: boolean;
  retryAfterMs: number;
}

export class Transport {
  readonly #options: ClientOptions;
  readonly #base: string;
  readonly #fetch: typeof fetch;

  constructor(options: ClientOptions) {
    if (!URL.canParse(options.url)) throw new TypeError(`url must be an address, not ${JSON.stringify(options.url)}`);
    if (typeof options.apiKey === 'string' && !/^[\x21-\x7e]+$/.test(options.apiKey)) {
      throw new TypeError('apiKey must be the text of a key: printable characters without spaces');
    }
    this.#options = options;
    this.#base = options.url.replace(/\/+$/, '');
    // Browsers refuse a fetch that is called as the method of another object.
    this.#fetch = options.fetch ?? ((input, init) => fetch(input, init));
  }

  /**
   * Repeats the request until it is answered. If a repetition gets 404, an earlier attempt succeeded and its answer was
   * lost.
   */
  async delete(path: string, call: CallOptions): Promise<void> {
    try {
      await this.request('DELETE', path, { ...call, repeatable: true });
    } catch (error) {
      if (!(error instanceof ProblemError && error.status === 404 && error.attempts > 1)) throw error;
    }
  }

  async request<T>(method: string, path: string, options: RequestOptions = {}): Promise<Answer<T>> {
    const { body, signal } = options;
    const init = { method, body: body === undefined || typeof body === 'string' ? body : JSON.stringify(body) };
    const retryForMs = options.retryForMs ?? this.#options.retryForMs ?? defaults.retryForMs;
    const startedAt = performance.now();
    for (let attempt = 1; ; attempt++) {
      const outcome = await this.#attempt<T>(path, init, options, attempt);
      if (!('error' in outcome)) return outcome;
      if (!outcome.transient || (outcome.mayHaveHappened && options.repeatable !== true)) throw outcome.error;
      const delayMs = backoffMs(attempt, outcome.retryAfterMs);
      if (performance.now() - startedAt + delayMs > retryForMs) throw outcome.error;
      await sleep(delayMs, signal);
    }
  }

  /** Returns a response whose body the caller reads. Not repeated. The caller ends it with the signal. */
  async open(path: string, headers: Record<string, string>, signal: AbortSignal): Promise<Response> {
    let response: Response;
    try {
      response = await this.#fetch(this.#base + path, { headers: await this.#headers(headers, false), signal });
    } catch (error) {
      if (signal.aborted) throw signal.reason;
      throw connectionFailure(error, 1).error;
    }
    if (response.ok) return response;
    const body = parseProblem(await response.text().catch(() => ''));
    throw Object.assign(new ProblemError(response.status, body), { retryAfterMs: retryAfterMs(response.headers) });
  }

  async #attempt<T>(
    path: string,
    { method, body }: { method: string; body: string | undefined },
    options: RequestOptions,
    attempt: number,
  ): Promise<Answer<T> | Failure> {
    const { signal } = options;
    if (signal?.aborted) throw signal.reason;
    try {
      const limitMs = options.timeoutMs ?? this.#options.timeoutMs ?? defaults.timeoutMs;
      const { response, text } = await within(limitMs, this.#exchange(path, method, body, options));
      if (!response.ok) return refusal(response, text, attempt);
      return { status: response.status, body: (text === '' ? undefined : JSON.parse(text)) as T };
    } catch (error) {
      if (signal?.aborted) throw signal.reason;
      return connectionFailure(error, attempt);
    }
  }

  async #exchange(path: string, method: string, body: string | undefined, { headers, signal }: RequestOptions) {
    const init: RequestInit = { method, headers: await this.#headers(headers, body !== undefined) };
    if (body !== undefined) init.body = body;
    // Each signal that fetch watches has a cost, so only the caller's is given.
    if (signal !== undefined) init.signal = signal;
    const response = await this.#fetch(this.#base + path, init);
    return { response, text: await response.text() };
  }

  async #headers(
    given: Readonly<Record<string, string>> | undefined,
    hasBody: boolean,
  ): Promise<Record<string, string>> {
    const { apiKey } = this.#options;
    const headers: Record<string, string> = {
      authorization: `Bearer ${typeof apiKey === 'string' ? apiKey : await apiKey()}`,
      ...this.#options.headers,
      ...given,
    };
    if (hasBody) headers['content-type'] = 'application/json';
    return headers;
  }
}

/** True if the same request may succeed later. For a full queue, only with a `Retry-After`. */
export function isTransient(error: ProblemError, retryMs: number): boolean {
  if (error.code === 'QUEUE_FULL') return retryMs > 0;
  return error.status === 429 || (error.status >= 502 && error.status <= 504);
}

function refusal(response: Response, text: string, attempt: number): Failure {
  const error = new ProblemError(response.status, parseProblem(text), attempt);
  const retryMs = retryAfterMs(response.headers);
  const mayHaveHappened = response.status >= 500 && !nothingDone.has(error.code);
  return { error, transient: isTransient(error, retryMs), mayHaveHappened, retryAfterMs: retryMs };
}

function connectionFailure(cause: unknown, attempts: number): Failure {
  const mayHaveHappened = !neverSent.has(codeOf(cause));
  const what = cause instanceof TooLate ? 'did not answer in time' : 'cannot be reached, or did not answer completely';
  const error = new ConnectionError(`The server ${what}: ${messageOf(cause)}`, { cause, mayHaveHappened, attempts });
  return { error, transient: true, mayHaveHappened, retryAfterMs: 0 };
}

class TooLate extends Error {}

/** A later answer is dropped; the request may still have taken effect. */
function within<T>(ms: number, answer: Promise<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new TooLate(`no answer within ${ms} ms`)), ms);
    answer.then(resolve, reject).finally(() => clearTimeout(timer));
  });
}

function parseProblem(text: string): Record<string, unknown> {
  try {
    const body: unknown = JSON.parse(text);
    if (typeof body === 'object' && body !== null) return body as Record<string, unknown>;
  } catch {
    // The page of a proxy, of which only the status is known.
  }
  return {};
}

/** Node's fetch has the reason in the cause. */
function codeOf(error: unknown): string {
  const { code, cause } = (error ?? {}) as { code?: unknown; cause?: unknown };
  if (typeof code === 'string') return code;
  return cause === undefined || cause === error ? '' : codeOf(cause);
}

/** The message is just `fetch failed`; the cause has the reason. */
function messageOf(error: unknown): string {
  const { cause } = (error ?? {}) as { cause?: unknown };
  const inner = error instanceof TypeError && cause instanceof Error ? cause : error;
  // Several addresses failed, so the error has a code and no message.
  return (inner instanceof Error ? inner.message : String(inner)) || codeOf(inner) || 'no reason was given';
}

// The time at which a request is sent again: exponential delays with jitter, or the time that the server requested.

const firstDelayMs = 100;
const maxDelayMs = 5000;

/** Between half and all of the delay, so that many clients do not return at the same moment. */
export function backoffMs(attempt: number, retryAfterMs = 0): number {
  const delayMs = Math.min(maxDelayMs, firstDelayMs * 2 ** (attempt - 1)) * (0.5 + Math.random() / 2);
  return retryAfterMs > 0 ? retryAfterMs + delayMs / 2 : delayMs;
}

/** `Retry-After` as milliseconds: a number of seconds or a date. 0 without one. */
function retryAfterMs(headers: Headers): number {
  const text = headers.get('retry-after');
  if (text === null) return 0;
  const ms = /^\d+$/.test(text.trim()) ? Number(text) * 1000 : Date.parse(text) - Date.now();
  return Number.isFinite(ms) && ms > 0 ? ms : 0;
}

/** Rejects with the reason of the signal. */
export function sleep(ms: number, signal: AbortSignal | undefined): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason);
    const onAbort = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener('abort', onAbort);
      resolve();
    }, ms);
    signal?.addEventListener('abort', onAbort, { once: true });
  });
}

// Converts options in camel case to the API's format: fields in snake case, times as text, lists in queries with
// commas.

/** Content of the user, whose keys are sent unchanged. */
const opaque = new Set(['payload', 'result', 'constraints', 'labels']);
const names = new Map<string, string>();

export function toBody(options: object): Record<string, unknown> {
  const body: Record<string, unknown> = {};
  for (const [key, value] of Object.entries(options)) {
    if (value !== undefined) body[snakeCase(key)] = opaque.has(key) ? value : toValue(value);
  }
  return body;
}

function toValue(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(toValue);
  if (typeof value !== 'object' || value === null || value instanceof Date) return value;
  return toBody(value);
}

/** `?status=ERROR,PAUSED&limit=50`, or an empty text. */
export function toQuery(options: object): string {
  const parts: string[] = [];
  for (const [key, value] of Object.entries(options)) {
    if (value === undefined) continue;
    const text = value instanceof Date ? value.toISOString() : String(value);
    parts.push(`${snakeCase(key)}=${encodeURIComponent(text)}`);
  }
  return parts.length === 0 ? '' : `?${parts.join('&')}`;
}

function snakeCase(name: string): string {
  let known = names.get(name);
  if (known === undefined) {
    known = name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
    names.set(name, known);
  }
  return known;
}

/** Creates an id for requests that may be repeated. */
export function randomKey(): string {
  // Missing on pages that were loaded without TLS.
  if (typeof crypto.randomUUID === 'function') return crypto.randomUUID();
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('');
}
