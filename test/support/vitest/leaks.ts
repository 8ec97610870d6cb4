// Fails a test file that leaves something running: database clients, timers, servers, sockets,
// child processes or worker threads. Run before every file, so its afterAll runs last. A process runs many files: what is
// patched is patched once, and every file counts from what it found.
import { syncBuiltinESMExports } from 'node:module';
import threads, { type Worker } from 'node:worker_threads';
import pg from 'pg';
import { afterAll } from 'vitest';
import { endChildrenWithRun } from './children.ts';
import { useCompiledThreads } from './threads.ts';

const watchedResources = new Set(['TCPServerWrap', 'TCPSocketWrap', 'ProcessWrap']);

interface Alive {
  clients: Set<pg.Client>;
  timers: Map<NodeJS.Timeout, string>;
  workers: Set<Worker>;
}

endChildrenWithRun();
useCompiledThreads();
const known = globalThis as { leaseholdAlive?: Alive };
known.leaseholdAlive ??= watch();
const { clients, timers, workers } = known.leaseholdAlive;
const atStart = countResources();

afterAll(async () => {
  // Closed resources may need a moment to disappear; leaks stay.
  const deadline = performance.now() + 30_000;
  let leaks = findLeaks();
  while (leaks.length > 0 && performance.now() < deadline) {
    await new Promise((resolve) => setTimeout(resolve, 50));
    leaks = findLeaks();
  }
  // Leftovers of this file do not count for the next one.
  for (const one of [clients, timers, workers]) one.clear();
  if (leaks.length > 0) throw new Error(`still alive at the end of the file:\n  ${leaks.join('\n  ')}`);
});

function findLeaks(): string[] {
  const leaks: string[] = [];
  if (clients.size > 0) leaks.push(`${clients.size} database client(s): close the pool`);
  if (workers.size > 0) leaks.push(`${workers.size} worker thread(s)`);
  for (const [timer, place] of timers) {
    if (isPending(timer)) leaks.push(`timer ${place}`);
    else timers.delete(timer);
  }
  const now = countResources();
  for (const [kind, count] of now) {
    const more = count - (atStart.get(kind) ?? 0);
    if (more > 0) leaks.push(`${more} ${kind}`);
  }
  return leaks;
}

function countResources(): Map<string, number> {
  const counts = new Map<string, number>();
  for (const kind of process.getActiveResourcesInfo()) {
    if (watchedResources.has(kind)) counts.set(kind, (counts.get(kind) ?? 0) + 1);
  }
  return counts;
}

function watch(): Alive {
  const alive: Alive = { clients: new Set(), timers: new Map(), workers: new Set() };
  watchClients(alive);
  watchTimers(alive);
  watchWorkers(alive);
  return alive;
}

function watchClients({ clients }: Alive): void {
  const prototype = pg.Client.prototype as unknown as { connect: (...args: unknown[]) => unknown };
  const connect = prototype.connect;
  prototype.connect = function (this: pg.Client, ...args: unknown[]) {
    clients.add(this);
    this.once('end', () => clients.delete(this));
    return connect.apply(this, args);
  };
}

function watchWorkers({ workers }: Alive): void {
  const Original = threads.Worker;
  threads.Worker = class extends Original {
    constructor(...args: ConstructorParameters<typeof Original>) {
      super(...args);
      // Those of the TypeScript loader live as long as the process.
      if (callSite() === undefined) return;
      workers.add(this);
      this.once('exit', () => workers.delete(this));
    }
  };
  // Named imports of a built-in are bindings of their own until told otherwise.
  syncBuiltinESMExports();
}

// Only timers that the product's or a test's own code set: libraries keep theirs to themselves.
function watchTimers({ timers }: Alive): void {
  for (const name of ['setTimeout', 'setInterval'] as const) {
    const original = globalThis[name] as (...args: unknown[]) => NodeJS.Timeout;
    const watched = (...args: unknown[]) => {
      const timer = original(...args);
      const place = callSite();
      if (place) timers.set(timer, place);
      return timer;
    };
    // util.promisify(setTimeout) looks for its own variant here.
    Object.defineProperties(watched, Object.getOwnPropertyDescriptors(original));
    Object.assign(globalThis, { [name]: watched });
  }
}

function callSite(): string | undefined {
  // [0] Error, [1] callSite, [2] the watched timer, [3] the caller.
  const line = new Error().stack?.split('\n')[3]?.trim();
  return line && /[\\/](server|test)[\\/]/.test(line) && !/node_modules|test[\\/]support/.test(line) ? line : undefined;
}

function isPending(timer: NodeJS.Timeout): boolean {
  return !(timer as unknown as { _destroyed: boolean })._destroyed && timer.hasRef();
}
