// Waits for a condition instead of sleeping for luck.

export interface EventuallyOptions {
  /** The time that a busy machine may take. Only a check that never succeeds reaches it. */
  timeoutMs?: number;
  everyMs?: number;
}

/** Calls `check` until it neither throws nor rejects; then returns its value. Throws its last error. */
export async function eventually<T>(check: () => T | Promise<T>, options: EventuallyOptions = {}): Promise<T> {
  const { timeoutMs = 60_000, everyMs = 20 } = options;
  const deadline = performance.now() + timeoutMs;
  for (;;) {
    try {
      return await check();
    } catch (error) {
      if (performance.now() >= deadline) throw error;
    }
    await new Promise((resolve) => setTimeout(resolve, everyMs));
  }
}
