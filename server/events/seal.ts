// Seals: a follower that puts a hash of every committed event into a chain of blocks, off the hot path.
// Whoever later edits, removes, swaps or inserts a sealed row is found and the row is named.
import { createHash } from 'node:crypto';
import { isDataError, withoutFaulty } from '../database/data-error.ts';
import type { Database, Queryable } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import { type Event, eventKey } from './event.ts';
import { goOn, readNewEvents, readStatement, readValues } from './follow.ts';
import { type Followed, followInSteps } from './follower.ts';
import { recordSetAside, type SetAside } from './set-aside.ts';

export const sealsFollower = 'seals';

/** Where the chain ends, kept beside the follower's position: a cut-off end is noticed. */
export interface ChainEnd {
  number?: string;
  /** Hexadecimal. */
  hash?: string;
}

// Large enough that blocks are few, small enough to be hashed in some 50 ms.
const mostPerBlock = 5000;

interface SealedEvent {
  xid: string;
  seq: string;
  hash: Buffer;
}

interface Row extends SealedEvent {
  /** The first row has no event: it tells how far this read goes. */
  until: string | null;
  moved: boolean;
  ahead: boolean;
}

/** Seals up to one block. Call again at once while `complete` is false. */
export async function sealEvents(db: Database, schema: Schema): Promise<Followed> {
  try {
    return await sealReadable(db, schema);
  } catch (error) {
    if (!isDataError(error)) throw error;
    return sealAround(db, schema);
  }
}

/** Fails if there is an event of which Postgres cannot make a hash. */
async function sealReadable(db: Database, schema: Schema): Promise<Followed> {
  return followInSteps<ChainEnd>(db, schema, sealsFollower, { startAt: 'beginning' }, async (tx, position, end) => {
    const rows = await tx.query<Row>(
      `with log as materialized (${readStatement(schema)})
       select until, moved, ahead, xid, seq, ${rowHash} as hash from log e`,
      readValues(position, { limit: mostPerBlock }),
    );
    const header = rows.find((row) => row.until !== null);
    if (header?.until == null) throw new Error('a read of the event log told no snapshot');
    const events = rows.filter((row) => row.until === null);
    const complete = events.length < mostPerBlock;
    return {
      position: goOn(position, header.until, complete ? undefined : events.at(-1)),
      state: events.length === 0 ? end : await sealBlock(tx, schema, events, end),
      handled: events.length,
      complete,
      moved: events.length > 0 || header.moved,
      ahead: header.ahead,
    };
  });
}

/**
 * The chain cannot leave an event out: verification would take it for one that was slipped in. An event without a
 * hash is sealed with a mark instead, which keeps its place in the log and says that nothing vouches for its content.
 */
async function sealAround(db: Database, schema: Schema): Promise<Followed> {
  const setAside: SetAside[] = [];
  const followed = await followInSteps<ChainEnd>(db, schema, sealsFollower, {}, async (tx, position, end) => {
    const read = await readNewEvents(tx, schema, position, { limit: mostPerBlock });
    const { hashes, unreadable } = await hashRows(tx, schema, read.events);
    for (const [event, error] of unreadable)
      setAside.push(await recordSetAside(tx, schema, sealsFollower, event, error));
    const sealed = read.events.map((event) => ({ ...event, hash: hashes.get(eventKey(event)) ?? noHash }));
    const state = sealed.length === 0 ? end : await sealBlock(tx, schema, sealed, end);
    return { ...read, state, handled: sealed.length };
  });
  return { ...followed, setAside };
}

async function sealBlock(tx: Queryable, schema: Schema, events: SealedEvent[], end: ChainEnd): Promise<ChainEnd> {
  const block: Block = {
    number: String(BigInt(end.number ?? '0') + 1n),
    snapshot: snapshotBehind(events),
    keys: events.map(eventKey),
    hashes: Buffer.concat(events.map((event) => event.hash)),
    previousHash: Buffer.from(end.hash ?? '', 'hex'),
  };
  const hash = hashBlock(block);
  await tx.query(
    `insert into ${schema}.event_seals (number, snapshot, event_keys, event_hashes, previous_hash, hash)
     values ($1, $2, $3, $4, $5, $6)`,
    [block.number, block.snapshot, block.keys, block.hashes, block.previousHash, hash],
  );
  return { number: block.number, hash: hash.toString('hex') };
}

export const hashLength = 16;
/** In place of the hash of an event that had none when it was sealed. */
export const noHash = Buffer.alloc(hashLength);

/** All that the row says, in one text that means nothing else: numbers as they are stored, not as JavaScript reads them. */
const rowHash = `substring(sha256(convert_to(jsonb_build_array(e.xid::text, e.seq, (extract(epoch from e.at) * 1000000)::bigint,
  e.type, e.job_id, e.target_id, e.from_status, e.to_status, e.attempt, e.lease_id, e.actor, e.data)::text, 'UTF8')) from 1 for ${hashLength})`;

export interface RowHashes {
  /** By `xid:seq`; those that are gone are missing. */
  hashes: Map<string, Buffer>;
  /** Postgres cannot make a hash of these. */
  unreadable: Map<Pick<Event, 'xid' | 'seq'>, unknown>;
}

export async function hashRows(
  tx: Queryable,
  schema: Schema,
  events: readonly Pick<Event, 'xid' | 'seq'>[],
): Promise<RowHashes> {
  const unreadable: RowHashes['unreadable'] = new Map();
  const rows = await withoutFaulty(
    tx,
    events,
    (some) =>
      tx.query<{ xid: string; seq: string; hash: Buffer }>(
        // LATERAL with its own limit: one probe of the primary key for each, never a scan of the whole log.
        `select e.xid, e.seq, ${rowHash} as hash from unnest($1::text[], $2::bigint[]) as k(xid, seq)
          cross join lateral (select * from ${schema}.events where xid = k.xid::xid8 and seq = k.seq limit 1) as e`,
        [some.map((event) => event.xid), some.map((event) => event.seq)],
      ),
    (event, error) => unreadable.set(event, error),
  );
  return { hashes: new Map(rows.map((row) => [eventKey(row), row.hash])), unreadable };
}

export interface Block {
  number: string;
  snapshot: string;
  keys: readonly string[];
  hashes: Buffer;
  previousHash: Buffer;
}

export function hashBlock(block: Block): Buffer {
  return createHash('sha256')
    .update(JSON.stringify([block.number, block.snapshot, block.keys, block.hashes.toString('hex')]))
    .update(block.previousHash)
    .digest();
}

/** Every event of the block is visible in it: when the block is pruned, who has seen less has lost something. */
function snapshotBehind(events: readonly Pick<Event, 'xid'>[]): string {
  let highest = 0n;
  for (const { xid } of events) if (BigInt(xid) > highest) highest = BigInt(xid);
  return `${highest + 1n}:${highest + 1n}:`;
}
