// Reads from the API in a component: once at first, again when a matching event arrives. Reads are rate limited however
// many events arrive, and stop while the page is hidden.
import { useCallback, useEffect, useRef, useState } from 'preact/hooks';
import { ApiError } from './api.ts';
import { live } from './live.ts';
import type { LiveEvent } from './types.ts';

export interface Query<T> {
  data: T | undefined;
  error: ApiError | undefined;
  loading: boolean;
  refresh(): void;
}

interface QueryOptions {
  /** True if an event may have changed the result. Without it the result is read once. */
  on?: (event: LiveEvent) => boolean;
  /** Also read again after this time, while the page is visible. */
  everyMs?: number;
}

// Small enough to feel live, large enough that fifty events a second cost one request every other second.
const gapMs = 2000;
const firstWaitMs = 250;
const maxKept = 40;
const kept = new Map<string, unknown>();

export function forgetAnswers(): void {
  kept.clear();
}

export function useQuery<T>(
  key: string | undefined,
  load: (signal: AbortSignal) => Promise<T>,
  options: QueryOptions = {},
): Query<T> {
  const [state, setState] = useState<{ key: string | undefined; data?: T | undefined; error?: ApiError | undefined }>({
    key,
    data: key === undefined ? undefined : (kept.get(key) as T | undefined),
  });
  const latest = useRef({ load, options });
  latest.current = { load, options };
  const reader = useRef<Reader | undefined>(undefined);

  useEffect(() => {
    if (key === undefined) return;
    setState({ key, data: kept.get(key) as T | undefined });
    const current = new Reader(async (signal) => {
      try {
        const data = await latest.current.load(signal);
        if (signal.aborted) return;
        keep(key, data);
        setState({ key, data });
      } catch (error) {
        if (signal.aborted) return;
        const problem = error instanceof ApiError ? error : new ApiError(0, { detail: String(error) });
        setState((before) => ({ key, data: before.key === key ? before.data : undefined, error: problem }));
      }
    });
    reader.current = current;
    current.now();
    const stopEvents = live.subscribe((event) => {
      const { on } = latest.current.options;
      if (event === 'reset' || on?.(event)) current.soon();
    });
    const { everyMs } = latest.current.options;
    const timer = everyMs === undefined ? undefined : setInterval(() => current.soon(), everyMs);
    return () => {
      stopEvents();
      clearInterval(timer);
      current.stop();
    };
  }, [key]);

  const refresh = useCallback(() => reader.current?.now(), []);
  const own = state.key === key ? state : { data: undefined, error: undefined };
  return { data: own.data, error: own.error, loading: own.data === undefined && own.error === undefined, refresh };
}

/** One read at a time; further requests are combined and spaced out. */
class Reader {
  #read: (signal: AbortSignal) => Promise<void>;
  #abort = new AbortController();
  #timer: ReturnType<typeof setTimeout> | undefined;
  #busy = false;
  #again = false;
  #waitsForLook = false;
  #lastAt = 0;
  #tookMs = 0;

  constructor(read: (signal: AbortSignal) => Promise<void>) {
    this.#read = read;
    document.addEventListener('visibilitychange', this.#onLook);
  }

  now(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    void this.#run();
  }

  soon(): void {
    if (document.hidden) {
      this.#waitsForLook = true;
      return;
    }
    if (this.#timer !== undefined) return;
    // A slow request is repeated less often.
    const gap = Math.max(gapMs, this.#tookMs * 5);
    const wait = Math.max(firstWaitMs, this.#lastAt + gap - performance.now());
    this.#timer = setTimeout(() => {
      this.#timer = undefined;
      void this.#run();
    }, wait);
  }

  stop(): void {
    clearTimeout(this.#timer);
    document.removeEventListener('visibilitychange', this.#onLook);
    this.#abort.abort();
  }

  #onLook = () => {
    if (document.hidden || !this.#waitsForLook) return;
    this.#waitsForLook = false;
    this.soon();
  };

  async #run(): Promise<void> {
    if (this.#abort.signal.aborted) return;
    if (this.#busy) {
      this.#again = true;
      return;
    }
    this.#busy = true;
    const began = performance.now();
    await this.#read(this.#abort.signal);
    this.#lastAt = performance.now();
    this.#tookMs = this.#lastAt - began;
    this.#busy = false;
    if (this.#again) {
      this.#again = false;
      this.soon();
    }
  }
}

function keep(key: string, data: unknown): void {
  kept.delete(key);
  kept.set(key, data);
  if (kept.size > maxKept) kept.delete(kept.keys().next().value as string);
}
