// Listeners of a program that embeds the daemon. They get the events of all tenants and daemons from the log, from
// about the time of their registration until the daemon stops. Each event comes once, in the order of its job and
// target.
import type { Database } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { presentEpoch } from '../../database/log-epoch.ts';
import { runQuery } from '../../database/sql.ts';
import type { Logger } from '../../kernel/logger.ts';
import type { Event } from './event.ts';
import type { EventListener, LeaseholdEvent } from './leasehold-event.ts';
import { formatSnapshot, type Position, parseSnapshot, type Snapshot } from './position.ts';
import { readNewEvents } from './read-new-events.ts';
import { durableSnapshot, toLogXid, trimmedSnapshot } from './transaction-ids.ts';

const anyType = '*';
const pageSize = 500;

/** The time of the first registration, by the database. */
interface Moment {
  snapshot: string;
  at: string;
}

export class EventListeners {
  readonly #db: Pick<Database, 'query' | 'sharded' | 'forTenant'>;
  readonly #logger: Logger;
  readonly #listeners = new Map<string, Set<EventListener>>();
  readonly #positions = new Map<Schema, Position>();
  #start: Promise<Moment> | undefined;

  constructor(db: Pick<Database, 'query' | 'sharded' | 'forTenant'>, logger: Logger) {
    this.#db = db;
    this.#logger = logger;
  }

  get isUsed(): boolean {
    return this.#listeners.size > 0;
  }

  /** `*` matches every type. Returns a function that removes the listener. */
  on(type: string, listener: EventListener): () => void {
    if (!this.isUsed) this.#beginNow();
    const known = this.#listeners.get(type) ?? new Set();
    this.#listeners.set(type, known.add(listener));
    return () => {
      known.delete(listener);
      if (known.size === 0) this.#listeners.delete(type);
    };
  }

  /** Delivers the new events of one tenant. Returns true if there are more. */
  async deliver({ slug, schema }: { slug: string; schema: Schema }): Promise<boolean> {
    if (!this.isUsed) return false;
    const position = this.#positions.get(schema) ?? (await this.#startOf(schema));
    const types = this.#listeners.has(anyType) ? undefined : [...this.#listeners.keys()];
    const read = await readNewEvents(this.#db.forTenant(schema), schema, position, { limit: pageSize, types });
    this.#positions.set(schema, read.position);
    for (const event of read.events) await this.#call(toDelivered(slug, event));
    return !read.complete;
  }

  #beginNow(): void {
    this.#positions.clear();
    this.#start = this.#readMoment();
    // The event is read again with the next delivery.
    this.#start.catch(() => {});
  }

  /** Returns the snapshot of the registration in the ids of this tenant's log, up to its last event of that time. */
  async #startOf(schema: Schema): Promise<Position> {
    const { snapshot, at } = await this.#startMoment();
    const start = parseSnapshot(snapshot);
    const db = this.#db.forTenant(schema);
    const [row] = await db.query<{ epoch: number; now: string }>(
      `select (${presentEpoch(schema)}) as epoch, ${durableSnapshot(schema)}::text as now`,
    );
    if (start === undefined || row === undefined) throw new Error('there is no snapshot');
    const present = this.#db.sharded ? row.now : shiftedBy(row.epoch, start);
    // In a cluster the registration has no transaction ids of the tenant's node, so its time decides. Elsewhere ids of
    // the snapshot may have been assigned again after a crash of the server; see `durableSnapshot`.
    const [trimmed] = await runQuery<{ seen: string }>(
      db,
      `select ${trimmedSnapshot(schema, ':snapshot::pg_snapshot', `'1'::xid8`, 'e.at <= :at::timestamptz')}::text as seen`,
      { snapshot: present, at },
    );
    if (trimmed === undefined) throw new Error('there is no snapshot');
    return trimmed;
  }

  async #startMoment(): Promise<Moment> {
    try {
      this.#start ??= this.#readMoment();
      return await this.#start;
    } catch (error) {
      this.#start = undefined;
      throw error;
    }
  }

  async #readMoment(): Promise<Moment> {
    // The time is read after the snapshot, so no event in the snapshot is later.
    const [row] = await this.#db.query<Moment>(
      'select pg_current_snapshot()::text as snapshot, clock_timestamp()::text as at',
    );
    if (row === undefined) throw new Error('there is no snapshot');
    return row;
  }

  async #call(event: LeaseholdEvent): Promise<void> {
    const listeners = [...(this.#listeners.get(event.type) ?? []), ...(this.#listeners.get(anyType) ?? [])];
    for (const listener of listeners) {
      try {
        await listener(event);
      } catch (error) {
        this.#logger.error({ err: error, type: event.type, jobId: event.jobId }, 'event listener failed');
      }
    }
  }
}

function shiftedBy(epoch: number, { xmin, xmax, xip }: Snapshot): string {
  const shift = (xid: bigint) => BigInt(toLogXid(String(xid), epoch));
  return formatSnapshot({ xmin: shift(xmin), xmax: shift(xmax), xip: new Set([...xip].map(shift)) });
}

function toDelivered(tenant: string, event: Event): LeaseholdEvent {
  const { seq, type, at, jobId, targetId, fromStatus, toStatus, attempt, actor, data } = event;
  return { id: seq, tenant, type, at, jobId, targetId, from: fromStatus, to: toStatus, attempt, actor, data };
}
