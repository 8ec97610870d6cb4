// The live feed of one tenant: reads the log once for all its streams on this daemon, while there are any. Signals and
// a slow poll wake it. It sends pings while there are no events.
import type { ServerResponse } from 'node:http';
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import type { Logger } from '../../kernel/logger.ts';
import { Interval } from '../../kernel/service.ts';
import { bySeq, type Event } from '../log/event.ts';
import { requireSnapshot, type Snapshot } from '../log/position.ts';
import { readNewEvents } from '../log/read-new-events.ts';
import { durableSnapshot } from '../log/transaction-ids.ts';
import { pingFrame, resetFrame, StreamBatch, type StreamFilter } from './frames.ts';
import { encodeStreamId, type StreamOwner } from './stream-id.ts';

/** The fields of a tenant that a feed needs. */
export interface FeedTenant extends StreamOwner {
  slug: string;
  schema: Schema;
}

interface FeedOptions {
  pollMs: number;
  pingMs: number;
  /** The database's time, for pings. */
  now(): Date;
}

// A busy tenant causes a signal with every commit; one read handles the signals within this time.
const gatherMs = 25;
// After events, more are likely, and not every change causes a signal.
const repollMs = 200;
const pageSize = 5000;
// Readers that are further behind are reset instead.
const maxEventsPerRead = 20_000;
// Between slices, and between groups of readers, sockets drain and other work of the process runs.
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

  /** The position up to which all live readers have been sent events. */
  get seen(): { text: string; snapshot: Snapshot } {
    if (!this.#seen) throw new Error('the feed has not been started');
    return this.#seen;
  }

  async start(): Promise<void> {
    if (!this.#seen) await this.refresh();
    // The only reader may have disconnected meanwhile.
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

  /** Resolves when everything committed before the call has been read; rejects if the database is unavailable. */
  refresh(): Promise<void> {
    if (!this.#running) {
      this.#running = this.#read().finally(() => {
        this.#running = undefined;
      });
      return this.#running;
    }
    // The read in progress may have started before the caller's commit.
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
      // Logged once per outage, because this runs every second.
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
    // In one step: a reader that joins from here on gets these events from its backlog.
    this.#seen = after;
    if (events.length > 0) this.#pollIn(repollMs);
    const readers = [...this.readers];
    await this.#publish(readers, before.snapshot, after.snapshot, events.sort(bySeq));
  }

  /** Continues from now, without reading earlier events. */
  async #skipToNow(): Promise<void> {
    const [row] = await this.#db.query<{ now: string }>(`select ${durableSnapshot(this.tenant.schema)}::text as now`);
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

  /** The ping has an id, so that a reader without matching events resumes from here instead of from its last event. */
  #ping(): void {
    // During a read the id would cover events that have not been sent.
    if (this.#running || !this.#seen) return;
    const id = encodeStreamId(this.tenant, this.#seen.snapshot);
    this.#sendToAll(pingFrame(id, this.#options.now().toISOString()));
    for (const reader of this.readers) reader.dropIfStalled();
  }
}

// One reader of a live stream: its filter, writing to it, and dropping it.

interface ReaderOptions {
  filter: StreamFilter;
  /** Bytes that may be buffered for a slow reader. */
  bufferBytes: number;
  /** How long a reader may accept no bytes while some are buffered for it. */
  stallMs: number;
  /** True if its key may still read this stream. Rejects if that cannot be checked now. */
  stillAllowed(): Promise<boolean>;
}

export class StreamReader {
  readonly filter: StreamFilter;
  readonly stillAllowed: () => Promise<boolean>;
  #response: ServerResponse;
  #options: ReaderOptions;
  /** Batches that arrived while the reader was still reading its backlog. */
  #waiting: StreamBatch[] | undefined = [];
  #waitingBytes = 0;
  #stalledAt: number | undefined;

  constructor(response: ServerResponse, options: ReaderOptions) {
    this.filter = options.filter;
    this.stillAllowed = options.stillAllowed;
    this.#response = response;
    this.#options = options;
    response.on('drain', () => {
      this.#stalledAt = undefined;
    });
  }

  get closed(): boolean {
    return this.#response.destroyed || this.#response.writableEnded;
  }

  deliver(batch: StreamBatch): void {
    if (this.#waiting) {
      this.#waiting.push(batch);
      this.#waitingBytes += batch.whole.length;
      if (this.#waitingBytes > this.#options.bufferBytes) this.drop();
      return;
    }
    this.send(batch.select(this.filter));
  }

  /** The backlog was sent. From here on batches are written at once. */
  goLive(): void {
    const waiting = this.#waiting ?? [];
    this.#waiting = undefined;
    for (const batch of waiting) this.deliver(batch);
  }

  send(frames: Buffer | string): void {
    if (this.closed || frames.length === 0) return;
    if (this.#response.writableLength > this.#options.bufferBytes) this.drop();
    else if (!this.#response.write(frames)) this.#stalledAt ??= performance.now();
  }

  /** Drops a reader that accepts nothing. It can resume with its last id. */
  dropIfStalled(): void {
    if (this.#stalledAt !== undefined && performance.now() - this.#stalledAt > this.#options.stallMs) this.drop();
  }

  drop(): void {
    this.#response.destroy();
  }

  end(finalFrame: string): void {
    if (this.closed) return;
    // A reader that accepts nothing would keep `end` waiting for ever.
    if (this.#stalledAt !== undefined) this.drop();
    else this.#response.end(finalFrame);
  }
}
