// The live feed of one tenant: one reader of the log for all its streams on this daemon. It runs while
// it has readers, woken by hints and by a slow poll, and says when it last had something to say.
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { Interval } from '../../kernel/interval.ts';
import type { Logger } from '../../kernel/logger.ts';
import { bySeq, type Event } from '../log/event.ts';
import { parseSnapshot, type Snapshot } from '../log/position.ts';
import { readNewEvents } from '../log/read-new-events.ts';
import { pingFrame, resetFrame } from './frames.ts';
import { StreamBatch } from './stream-batch.ts';
import { encodeStreamId, type StreamOwner } from './stream-id.ts';
import type { StreamReader } from './stream-reader.ts';

/** What a feed needs to know of its tenant. */
export interface FeedTenant extends StreamOwner {
  slug: string;
  schema: Schema;
}

export interface FeedOptions {
  pollMs: number;
  pingMs: number;
  /** The database's time, for pings. */
  now(): Date;
}

// Hints come with every commit of a busy tenant; they are gathered for as long as nobody notices.
const gatherMs = 25;
// Where something happens, more will: not every change comes with a hint.
const repollMs = 200;
const pageSize = 5000;
// Nobody follows more than this per read by eye or by code: whoever falls behind starts anew.
const maxEventsPerRead = 20_000;
// Between two slices, and some readers, the sockets drain and the rest of the daemon has its turn.
const sliceSize = 500;
const readersAtOnce = 100;

export class Feed {
  readonly tenant: FeedTenant;
  readonly readers = new Set<StreamReader>();
  #db: Queryable;
  #logger: Logger;
  #options: FeedOptions;
  #interval: Interval;
  #seen: { text: string; snapshot: Snapshot } | undefined;
  #running: Promise<void> | undefined;
  #next: Promise<void> | undefined;
  #gatherTimer: NodeJS.Timeout | undefined;
  #pingedAt = performance.now();
  #failing = false;
  #stopped = false;

  constructor(db: Queryable, tenant: FeedTenant, options: FeedOptions, logger: Logger) {
    this.#db = db;
    this.tenant = tenant;
    this.#options = options;
    this.#logger = logger;
    this.#interval = new Interval(`event-feed-${tenant.slug}`, options.pollMs, () => this.#poll(), logger);
  }

  /** What all live readers have been sent. */
  get seen(): { text: string; snapshot: Snapshot } {
    if (!this.#seen) throw new Error('the feed has not begun');
    return this.#seen;
  }

  async start(): Promise<void> {
    if (!this.#seen) await this.refresh();
    // Its only reader may have left meanwhile.
    if (!this.#stopped) await this.#interval.start();
  }

  async stop(): Promise<void> {
    this.#stopped = true;
    clearTimeout(this.#gatherTimer);
    this.#gatherTimer = undefined;
    await this.#interval.stop();
    await this.#running?.catch(() => {});
  }

  wake(): void {
    this.#pollIn(gatherMs);
  }

  #pollIn(ms: number): void {
    if (this.#stopped) return;
    this.#gatherTimer ??= setTimeout(() => {
      this.#gatherTimer = undefined;
      this.#interval.wake();
    }, ms);
  }

  /** Has read what was committed before the call; rejects if the database is away. */
  refresh(): Promise<void> {
    if (!this.#running) {
      this.#running = this.#read().finally(() => {
        this.#running = undefined;
      });
      return this.#running;
    }
    // The read under way may have begun before the caller's commit.
    this.#next ??= this.#running
      .catch(() => {})
      .then(() => {
        this.#next = undefined;
        return this.refresh();
      });
    return this.#next;
  }

  async #poll(): Promise<void> {
    try {
      await this.refresh();
      this.#failing = false;
    } catch (error) {
      // Once per outage: this runs every second.
      if (!this.#failing) this.#logger.warn({ err: error, tenant: this.tenant.slug }, 'events cannot be read');
      this.#failing = true;
    }
    if (performance.now() - this.#pingedAt < this.#options.pingMs) return;
    this.#pingedAt = performance.now();
    this.#ping();
  }

  async #read(): Promise<void> {
    const before = this.#seen;
    if (!before) return this.#skipToNow();
    const events: Event[] = [];
    let position: Parameters<typeof readNewEvents>[2] = { seen: before.text };
    for (;;) {
      const read = await readNewEvents(this.#db, this.tenant.schema, position, { limit: pageSize });
      for (const event of read.events) events.push(event);
      position = read.position;
      if (read.ahead || (!read.complete && events.length >= maxEventsPerRead)) return this.#reset();
      if (read.complete) break;
    }
    const after = { text: position.seen, snapshot: requireSnapshot(position.seen) };
    // Together: whoever joins from here on gets these events from its own look at the past.
    this.#seen = after;
    if (events.length > 0) this.#pollIn(repollMs);
    const readers = [...this.readers];
    await this.#publish(readers, before.snapshot, after.snapshot, events.sort(bySeq));
  }

  /** From now on, without the past. */
  async #skipToNow(): Promise<void> {
    const [row] = await this.#db.query<{ now: string }>('select pg_current_snapshot()::text as now');
    const text = row?.now ?? '';
    this.#seen = { text, snapshot: requireSnapshot(text) };
  }

  async #reset(): Promise<void> {
    await this.#skipToNow();
    const id = encodeStreamId(this.tenant, this.seen.snapshot);
    this.#sendToAll(resetFrame('too_far_behind', id));
  }

  async #publish(readers: StreamReader[], seen: Snapshot, until: Snapshot, events: Event[]): Promise<void> {
    if (readers.length === 0) return;
    for (let from = 0; from < events.length; from += sliceSize) {
      const batch = StreamBatch.ofEvents(this.tenant, seen, until, events.slice(from, from + sliceSize));
      for (const [i, reader] of readers.entries()) {
        if (i % readersAtOnce === 0) await new Promise((resolve) => setImmediate(resolve));
        reader.deliver(batch);
      }
    }
  }

  #sendToAll(frame: string): void {
    const batch = StreamBatch.toAll(frame);
    for (const reader of this.readers) reader.deliver(batch);
  }

  /** Carries an id too: a reader of a quiet job need not go back far when it returns. */
  #ping(): void {
    // In the middle of a read the id would claim what has not been sent.
    if (this.#running || !this.#seen) return;
    const id = encodeStreamId(this.tenant, this.#seen.snapshot);
    this.#sendToAll(pingFrame(id, this.#options.now().toISOString()));
    for (const reader of this.readers) reader.dropIfStalled();
  }
}

function requireSnapshot(text: string): Snapshot {
  const snapshot = parseSnapshot(text);
  if (!snapshot) throw new Error(`the database told no snapshot but ${JSON.stringify(text)}`);
  return snapshot;
}
