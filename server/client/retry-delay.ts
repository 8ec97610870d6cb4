// When a request is sent again: exponential delays with jitter, or what the server asked for.

const firstDelayMs = 100;
const maxDelayMs = 5000;

/** Between half and all of the delay, so that many clients do not return in the same moment. */
export function backoffMs(attempt: number, retryAfterMs = 0): number {
  const delayMs = Math.min(maxDelayMs, firstDelayMs * 2 ** (attempt - 1)) * (0.5 + Math.random() / 2);
  return retryAfterMs > 0 ? retryAfterMs + delayMs / 2 : delayMs;
}

/** `Retry-After` as milliseconds: a number of seconds or a date. 0 without one. */
export function retryAfterMs(headers: Headers): number {
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
