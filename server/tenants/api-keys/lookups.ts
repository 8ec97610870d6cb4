// Looks up what callers present: keys, sessions, links. Callers without a valid one share one statement at a time, and so
// one connection, however many requests they send. Ids that arrive meanwhile are read together by the next statement.
import { problem } from '../../kernel/errors.ts';

// Ids are random and never reused, so an unknown id stays unknown.
const unknownMs = 30_000;
// Bounds the memory that a flood of invented ids can take.
const maxCached = 10_000;
// At most fifty statements a second; the first after a pause is sent at once.
const pauseMs = 20;
const maxPerStatement = 500;
// Beyond this number the daemon is flooded, and answers would come too late.
const maxWaiting = 5000;

interface Entry<V> {
  found: Promise<V | undefined>;
  readAt: number;
}

interface Pending<V> {
  resolve(found: V | undefined): void;
  reject(error: unknown): void;
  found: Promise<V | undefined>;
}

/** Returns the valid ones of the ids. */
type ReadValid<V> = (ids: readonly string[]) => Promise<Map<string, V>>;

export class Lookups<V> {
  readonly #read: ReadValid<V>;
  readonly #validMs: number;
  /** Ids that were valid when they were last read. */
  readonly #valid = new Map<string, Entry<V>>();
  /** Ids that were not valid, and when they were read. Kept separately, so that a flood of them evicts no valid id. */
  readonly #unknown = new Map<string, number>();
  readonly #waiting = new Map<string, Pending<V>>();
  #isReading = false;
  #changes = 0;

  /** `validMs`: how long a valid id is not read again. */
  constructor(read: ReadValid<V>, validMs: number) {
    this.#read = read;
    this.#validMs = validMs;
  }

  async find(id: string): Promise<V | undefined> {
    const now = performance.now();
    const valid = this.#valid.get(id);
    if (valid && now - valid.readAt < this.#validMs) return valid.found;
    const unknownAt = this.#unknown.get(id);
    if (unknownAt !== undefined && now - unknownAt < unknownMs) return undefined;
    if (valid) return this.#refresh(id, now);
    const changes = this.#changes;
    const found = await this.#readWithOthers(id);
    // It may have been read just before it was revoked, so it is not cached.
    if (changes !== this.#changes) return found;
    if (found) remember(this.#valid, id, { found: Promise.resolve(found), readAt: now });
    else remember(this.#unknown, id, now);
    return found;
  }

  /** Drops what is cached of a valid id, or of all. */
  forget(id?: string): void {
    this.#changes += 1;
    if (id === undefined) this.#valid.clear();
    else this.#valid.delete(id);
  }

  /** An id that was valid a moment ago is read alone, not in the queue of unknown ids. */
  #refresh(id: string, now: number): Entry<V>['found'] {
    const entry: Entry<V> = { found: this.#readAgain(id), readAt: now };
    remember(this.#valid, id, entry);
    return entry.found;
  }

  async #readAgain(id: string): Entry<V>['found'] {
    try {
      const found = (await this.#read([id])).get(id);
      if (found) return found;
      remember(this.#unknown, id, performance.now());
    } catch (error) {
      this.#valid.delete(id);
      throw error;
    }
    this.#valid.delete(id);
    return undefined;
  }

  /** Callers that ask for the same id share the answer. */
  #readWithOthers(id: string): Promise<V | undefined> {
    const known = this.#waiting.get(id);
    if (known !== undefined) return known.found;
    if (this.#waiting.size >= maxWaiting) {
      throw problem('TOO_MANY_REQUESTS', 'Too many requests without a valid API key; try again in a few seconds.');
    }
    let callbacks: Pick<Pending<V>, 'resolve' | 'reject'> | undefined;
    const found = new Promise<V | undefined>((resolve, reject) => {
      callbacks = { resolve, reject };
    });
    this.#waiting.set(id, { ...(callbacks as Pick<Pending<V>, 'resolve' | 'reject'>), found });
    if (!this.#isReading) {
      this.#isReading = true;
      // Requests that arrive together share the first statement.
      setImmediate(() => void this.#readAll());
    }
    return found;
  }

  async #readAll(): Promise<void> {
    while (this.#waiting.size > 0) {
      const batch = [...this.#waiting].slice(0, maxPerStatement);
      for (const [id] of batch) this.#waiting.delete(id);
      await this.#readBatch(new Map(batch));
      await new Promise<void>((resolve) => setTimeout(resolve, pauseMs));
    }
    this.#isReading = false;
  }

  async #readBatch(batch: Map<string, Pending<V>>): Promise<void> {
    try {
      const found = await this.#read([...batch.keys()]);
      for (const [id, waiting] of batch) waiting.resolve(found.get(id));
    } catch (error) {
      for (const waiting of batch.values()) waiting.reject(error);
    }
  }
}

/** Deleting first moves the entry to the end, so that the first in the map is always the oldest. */
function remember<E>(cache: Map<string, E>, id: string, entry: E): void {
  cache.delete(id);
  cache.set(id, entry);
  if (cache.size > maxCached) cache.delete(cache.keys().next().value as string);
}
