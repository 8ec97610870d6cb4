// The heartbeat thread of daemons inside the test's process, compiled once per run: loading it from TypeScript costs every
// daemon two threads and a compiler. Threads of handlers still start from source, with the loader that users have.
import { syncBuiltinESMExports } from 'node:module';
import { join } from 'node:path';
import threads, { type WorkerOptions } from 'node:worker_threads';
import { inject } from 'vitest';

/** In the directory of the run; global-setup.ts compiles it. */
export const heartbeatFile = 'heartbeat-thread.mjs';

/** In each process of the run, once. */
export function useCompiledThreads(): void {
  const known = globalThis as { leaseholdThreads?: boolean };
  if (known.leaseholdThreads) return;
  known.leaseholdThreads = true;
  const compiled = join(inject('runDirectory'), heartbeatFile);
  const Original = threads.Worker;
  threads.Worker = class extends Original {
    constructor(code: string | URL, options: WorkerOptions = {}) {
      const isHeartbeat = options.eval === true && String(code).includes('/heartbeat/heartbeat-thread.ts');
      super(isHeartbeat ? compiled : code, isHeartbeat ? { ...options, eval: false } : options);
    }
  };
  // Named imports of a built-in are bindings of their own until told otherwise.
  syncBuiltinESMExports();
}
