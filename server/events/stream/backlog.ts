// The events that a resuming reader has missed: everything between its last id and the feed, once.
import type { Queryable } from '../../database/database.ts';
import { runQuery } from '../../database/sql.ts';
import type { Event } from '../log/event.ts';
import { covers, formatSnapshot, isVisible, requireSnapshot, type Snapshot } from '../log/position.ts';
import { readNewEvents } from '../log/read-new-events.ts';
import { currentSnapshot } from '../log/transaction-ids.ts';
import type { Feed } from './feed.ts';
import { type ResetReason, StreamBatch, type StreamFilter } from './frames.ts';
import type { StreamPosition } from './stream-id.ts';

// Beyond this number, reading the current state again is faster.
const maxMissed = 10_000;
// Readers of one tenant usually reconnect together and from the same id, so up to this many events are read once for
// all.
const maxShared = 2000;

export class Backlog {
  #db: Queryable;
  #feed: Feed;
  #shared = new Map<string, Promise<Event[] | undefined>>();

  constructor(db: Queryable, feed: Feed) {
    this.#db = db;
    this.#feed = feed;
  }

  /** Returns why a reader cannot resume after `from`; undefined if it can. Afterwards the feed has reached `from`. */
  async checkResumable(from: StreamPosition): Promise<ResetReason | undefined> {
    const last = from.batch?.until ?? from.seen;
    // The id may come from another daemon whose feed is ahead of ours, but not ahead of a new read.
    if (!covers(this.#feed.seen.snapshot, last)) await this.#feed.refresh();
    // Ids of earlier versions can be beyond the last event, and so beyond a feed.
    if (!covers(this.#feed.seen.snapshot, last) && !covers(await this.#readPresent(), last)) return 'unknown_id';
    return (await this.#isPruned(from.seen)) ? 'history_gone' : undefined;
  }

  /**
   * Yields batches up to `until`, the feed's position when the reader joined it; undefined if there are too many
   * events.
   */
  async read(from: StreamPosition, until: Snapshot, filter: StreamFilter): Promise<StreamBatch[] | undefined> {
    const events = (await this.#readShared(from.seen, until)) ?? (await this.#readOwn(from.seen, until, filter));
    if (!events) return undefined;
    const { tenant } = this.#feed;
    const { batch } = from;
    if (!batch) return [StreamBatch.ofEvents(tenant, from.seen, until, events)];
    // First the remaining events of the batch in which the reader was cut off, with the ids of that batch.
    const isOfBatch = (event: Event) => isVisible(BigInt(event.xid), batch.until);
    const missed = events.filter((event) => isOfBatch(event) && BigInt(event.seq) > batch.seq);
    const later = events.filter((event) => !isOfBatch(event));
    return [
      StreamBatch.ofEvents(tenant, from.seen, batch.until, missed),
      StreamBatch.ofEvents(tenant, batch.until, until, later),
    ];
  }

  #readShared(seen: Snapshot, until: Snapshot): Promise<Event[] | undefined> {
    const key = `${formatSnapshot(seen)} ${formatSnapshot(until)}`;
    let reading = this.#shared.get(key);
    if (!reading) {
      reading = this.#readBetween(seen, until, {}, maxShared).finally(() => this.#shared.delete(key));
      this.#shared.set(key, reading);
    }
    return reading;
  }

  #readOwn(seen: Snapshot, until: Snapshot, filter: StreamFilter): Promise<Event[] | undefined> {
    return this.#readBetween(seen, until, filter, maxMissed);
  }

  async #readBetween(seen: Snapshot, until: Snapshot, filter: StreamFilter, limit: number) {
    const position = {
      seen: formatSnapshot(seen),
      page: { until: formatSnapshot(until), xid: '0', seq: '0' },
    };
    const read = await readNewEvents(this.#db, this.#feed.tenant.schema, position, { ...filter, limit });
    return read.complete ? read.events : undefined;
  }

  async #readPresent(): Promise<Snapshot> {
    const { schema } = this.#feed.tenant;
    const [row] = await this.#db.query<{ now: string }>(`select ${currentSnapshot(schema)}::text as now`);
    return requireSnapshot(row?.now ?? '');
  }

  /** True if retention has removed events that this reader needs. */
  async #isPruned(seen: Snapshot): Promise<boolean> {
    const [row] = await runQuery<{ gone: boolean }>(
      this.#db,
      `select pg_snapshot_xmax(snapshot::pg_snapshot) > :xmin::text::xid8 as gone from ${this.#feed.tenant.schema}.event_seals
        where pruned_at is not null order by number desc limit 1`,
      { xmin: String(seen.xmin) },
    );
    return row?.gone ?? false;
  }
}
