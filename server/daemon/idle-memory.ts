// Returns memory to the system while the daemon is idle. A start, or a burst of requests, leaves tens of megabytes of
// garbage and of space for new objects. V8 frees them when the program allocates more, which an idle daemon does not.
import { performance } from 'node:perf_hooks';
import { getHeapStatistics, setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

const firstMs = 2000;
// V8 reduces the space for new objects only if little was allocated in the last five seconds, up to the collection
// before.
const everyMs = 6000;
// The share of the time for which the event loop was busy. The polls of an idle daemon take less than a hundredth.
const defaultMaxUtilization = 0.1;
const worthwhileBytes = 8 * 1_048_576;
// To collect a larger heap would block the event loop for more than about 50 ms.
const defaultMaxUsedBytes = 64 * 1_048_576;
const maxTries = 3;

type Collection = 'minor' | 'major';

export class IdleMemory {
  #seen = performance.eventLoopUtilization();
  /** The size of the heap when it could not be reduced further. */
  #floorBytes = 0;
  #tries = 0;
  readonly #limits: { maxUsedBytes: number; maxUtilization: number };

  constructor(limits: { maxUsedBytes?: number; maxUtilization?: number } = {}) {
    this.#limits = { maxUsedBytes: defaultMaxUsedBytes, maxUtilization: defaultMaxUtilization, ...limits };
  }

  start(): void {
    this.#schedule(firstMs);
  }

  #schedule(ms: number): void {
    setTimeout(() => {
      this.collectIfIdle();
      this.#schedule(everyMs);
    }, ms).unref();
  }

  /** Collects garbage if the event loop was idle since the last call and the heap has grown. */
  collectIfIdle(): Collection | 'none' {
    const now = performance.eventLoopUtilization();
    const { utilization } = performance.eventLoopUtilization(now, this.#seen);
    this.#seen = now;
    const { total_heap_size: before, used_heap_size: used } = getHeapStatistics();
    if (before < this.#floorBytes + worthwhileBytes) return 'none';
    // The first one takes a moment, and only starts the measurement of what is allocated until the next.
    const type = this.#tries === 0 ? 'minor' : 'major';
    if (type === 'major' && (utilization > this.#limits.maxUtilization || used > this.#limits.maxUsedBytes))
      return 'none';
    collectGarbage(type);
    const after = getHeapStatistics().total_heap_size;
    this.#tries += 1;
    if (before - after >= worthwhileBytes || this.#tries > maxTries) {
      this.#floorBytes = after;
      this.#tries = 0;
    }
    return type;
  }
}

/** V8 offers its collector only to contexts that are created while this flag is set. */
function collectGarbage(type: Collection): void {
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc') as (options?: { type: 'minor' }) => void;
  setFlagsFromString('--no-expose-gc');
  // With any other type, V8 of Node 20 makes a minor one too.
  type === 'minor' ? collect({ type }) : collect();
}
