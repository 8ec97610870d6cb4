// The leases that the main thread holds, in memory that the heartbeat thread reads at each beat. Most leases end before
// the next beat: a message for each would wake the thread twice per job for nothing.

/**
 * The words of a shared buffer: `pulse` grows while the main event loop runs; `asleep` is 1 while the thread has no
 * timer.
 */
export const flags = { pulse: 0, asleep: 1 };

// Each lease is its tenant's number, from one, and the four words of its id. A free entry has the number zero.
const wordsPerLease = 5;
const firstCapacity = 256;

/** Written by the main thread only. */
export class SharedLeases {
  #words = new Int32Array(new SharedArrayBuffer((1 + firstCapacity * wordsPerLease) * 4));
  readonly #positions = new Map<string, number>();
  #free: number[] = [];
  #used = 0;

  /** Another one after `add` returned true. */
  get buffer(): SharedArrayBuffer {
    return this.#words.buffer as SharedArrayBuffer;
  }

  /** True if the memory was full: the thread must get the new buffer. */
  add(leaseId: string, tenant: number): boolean {
    const known = this.#positions.get(leaseId);
    const position = known ?? this.#free.pop() ?? this.#used++;
    const isFull = offsetOf(position) + wordsPerLease > this.#words.length;
    if (isFull) this.#grow();
    this.#positions.set(leaseId, position);
    const offset = offsetOf(position);
    for (const [n, word] of toWords(leaseId).entries()) Atomics.store(this.#words, offset + 1 + n, word);
    // Last: from now on the entry is read.
    Atomics.store(this.#words, offset, tenant);
    if (known === undefined) Atomics.add(this.#words, 0, 1);
    return isFull;
  }

  remove(leaseId: string): void {
    const position = this.#positions.get(leaseId);
    if (position === undefined) return;
    this.#positions.delete(leaseId);
    this.#free.push(position);
    Atomics.store(this.#words, offsetOf(position), 0);
    Atomics.sub(this.#words, 0, 1);
  }

  #grow(): void {
    const words = new Int32Array(new SharedArrayBuffer((1 + this.#used * 2 * wordsPerLease) * 4));
    words.set(this.#words);
    this.#words = words;
  }
}

export function hasLeases(buffer: SharedArrayBuffer): boolean {
  return Atomics.load(new Int32Array(buffer), 0) > 0;
}

/**
 * Tenant → lease ids. Of an entry that is replaced during the read, parts of both ids may be read: no lease has such an
 * id, and its renewal finds no row. The new lease is read at the next beat.
 */
export function readLeases(buffer: SharedArrayBuffer): Map<number, string[]> {
  const words = new Int32Array(buffer);
  const found = new Map<number, string[]>();
  for (let offset = 1; offset < words.length; offset += wordsPerLease) {
    const tenant = Atomics.load(words, offset);
    if (tenant === 0) continue;
    const ids = found.get(tenant);
    const id = toLeaseId(words, offset + 1);
    if (ids === undefined) found.set(tenant, [id]);
    else ids.push(id);
  }
  return found;
}

function offsetOf(position: number): number {
  return 1 + position * wordsPerLease;
}

function toWords(leaseId: string): number[] {
  const digits = leaseId.replaceAll('-', '');
  return [0, 8, 16, 24].map((start) => Number.parseInt(digits.slice(start, start + 8), 16) | 0);
}

function toLeaseId(words: Int32Array, offset: number): string {
  const digits = [0, 1, 2, 3]
    .map((n) => (Atomics.load(words, offset + n) >>> 0).toString(16).padStart(8, '0'))
    .join('');
  return [
    [0, 8],
    [8, 12],
    [12, 16],
    [16, 20],
    [20, 32],
  ]
    .map(([start, end]) => digits.slice(start, end))
    .join('-');
}
