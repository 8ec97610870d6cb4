// Seals: a follower that puts a hash of every committed event into a chain of blocks, off the hot path. Verification
// then finds every row that was edited, removed, swapped or inserted later.

import type { Database, Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { withoutInvalidRows } from '../../database/invalid-rows.ts';
import { isDataError } from '../../database/sql-errors.ts';
import { type Event, eventKey } from '../log/event.ts';
import { type FollowerStep, type FollowResult, runFollowerStep } from '../log/follower.ts';
import { formatPosition, type Position } from '../log/position.ts';
import { nextPosition, readStatement, readValues } from '../log/read-new-events.ts';
import { recordSetAside, type SetAside } from '../log/set-aside.ts';
import {
  type EventOfJob,
  encodeJobHashes,
  hashJobsOfEvents,
  hashLength,
  jobHashVersion,
  jobPart,
  type SealedJobHash,
} from './job-hash.ts';
import {
  appendSeal,
  type BlockContent,
  type ChainEnd,
  hashContent,
  microseconds,
  recordFormerPrunes,
  sealsFollower,
} from './seal-chain.ts';

// Large enough that blocks are few, small enough to be hashed in some 50 ms. An event's index in its block has two bytes.
const maxEventsPerBlock = 5000;

interface Row extends EventOfJob {
  xid: string;
  seq: string;
  hash: Buffer;
  /** Set in the header row, which has no event: how far this read goes. */
  until: string | null;
  moved: boolean;
  ahead: boolean;
  now: string;
}

/** Seals up to one block. Call again at once while `complete` is false. */
export async function sealEvents(db: Database, schema: Schema, options: SealOptions = {}): Promise<FollowResult> {
  try {
    return await sealReadable(db, schema, options);
  } catch (error) {
    if (!isDataError(error)) throw error;
    return sealWithUnreadable(db, schema, options);
  }
}

export interface SealOptions {
  /** The block ends when hashing its jobs has taken this long. */
  budgetMs?: number;
}

/** Fails if Postgres cannot hash an event or a job. */
async function sealReadable(db: Database, schema: Schema, { budgetMs }: SealOptions): Promise<FollowResult> {
  return runFollowerStep<ChainEnd>(db, schema, sealsFollower, startAt, async (tx, position, end) => {
    const read = await readBlock(tx, schema, position, rowHash);
    return sealBlock(
      tx,
      schema,
      read,
      await hashJobsOfEvents(tx, schema, read.events, { tolerant: false, budgetMs }),
      end,
    );
  });
}

/**
 * The chain cannot leave an event out: verification would report it as inserted. An event that cannot be hashed is
 * sealed with `noHash` instead, which proves its place in the log but not its content.
 */
async function sealWithUnreadable(db: Database, schema: Schema, { budgetMs }: SealOptions): Promise<FollowResult> {
  const setAside: SetAside[] = [];
  const followed = await runFollowerStep<ChainEnd>(db, schema, sealsFollower, startAt, async (tx, position, end) => {
    const read = await readBlock(tx, schema, position, 'null::bytea');
    const jobHashes = await hashJobsOfEvents(tx, schema, read.events, { tolerant: true, budgetMs });
    const { rows, unreadable } = await hashRows(tx, schema, read.events.slice(0, jobHashes.events));
    for (const [event, error] of unreadable) {
      setAside.push(await recordSetAside(tx, schema, sealsFollower, event, error));
    }
    const events = read.events.map((event) => ({ ...event, hash: rows.get(eventKey(event))?.hash ?? noHash }));
    return sealBlock(tx, schema, { ...read, events }, jobHashes, end);
  });
  return { ...followed, setAside };
}

const startAt = { startAt: 'beginning' } as const;

interface ReadBlock {
  position: Position;
  header: Row & { until: string };
  /** By transaction and number. */
  events: Row[];
}

async function readBlock(tx: Queryable, schema: Schema, position: Position, hash: string): Promise<ReadBlock> {
  const rows = await tx.query<Row>(
    `with log as materialized (${readStatement(schema)})
     select until, moved, ahead, xid, seq, ${hash} as hash, job_id, ${jobPart} as job_part, ${microseconds('now()')} as now
       from log e`,
    readValues(position, { limit: maxEventsPerBlock }),
  );
  const header = rows.find((row): row is ReadBlock['header'] => row.until !== null);
  if (header === undefined) throw new Error('a read of the event log returned no snapshot');
  return { position, header, events: rows.filter((row) => row.until === null) };
}

async function sealBlock(
  tx: Queryable,
  schema: Schema,
  { position, header, events: found }: ReadBlock,
  read: { hashes: SealedJobHash[]; events: number },
  end: ChainEnd,
): Promise<FollowerStep<ChainEnd>> {
  const events = found.slice(0, read.events);
  const complete = events.length < maxEventsPerBlock && events.length === found.length;
  const next = nextPosition(position, header.until, complete ? undefined : events.at(-1));
  const { ahead } = header;
  const step = { position: next, handled: events.length, complete, moved: events.length > 0 || header.moved, ahead };
  if (events.length === 0 && !ahead) return { ...step, state: end };
  const content: BlockContent = {
    keys: events.map(eventKey),
    hashes: Buffer.concat(events.map((event) => event.hash)),
    jobHashes: encodeJobHashes(read.hashes),
  };
  const state = await appendSeal(
    tx,
    schema,
    await recordFormerPrunes(tx, schema, end),
    {
      kind: 'events',
      sealed_at: header.now,
      snapshot: snapshotAfter(events),
      from: formatPosition(position),
      until: formatPosition(next),
      ...(ahead && { restart: true as const }),
      events: events.length,
      content: hashContent(content),
      job_hash: jobHashVersion,
    },
    content,
  );
  return { ...step, state };
}

/** In place of the hash of an event that could not be hashed. */
export const noHash = Buffer.alloc(hashLength);

/** SQL: a hash of all columns, as one unambiguous text; numbers as they are stored, not as JavaScript reads them. */
const rowHash = `substring(sha256(convert_to(jsonb_build_array(e.xid::text, e.seq,
  case when isfinite(e.at) then (extract(epoch from e.at) * 1000000)::bigint end,
  e.type, e.job_id, e.target_id, e.from_status, e.to_status, e.attempt, e.lease_id, e.actor, e.data)::text, 'UTF8')) from 1 for ${hashLength})`;

interface HashedRow extends EventOfJob {
  xid: string;
  seq: string;
  hash: Buffer;
}

export interface HashedRows {
  /** By `xid:seq`; rows that no longer exist are missing. */
  rows: Map<string, HashedRow>;
  /** Rows that Postgres cannot hash, with the error. */
  unreadable: Map<Pick<Event, 'xid' | 'seq'>, unknown>;
}

export async function hashRows(
  tx: Queryable,
  schema: Schema,
  events: readonly Pick<Event, 'xid' | 'seq'>[],
): Promise<HashedRows> {
  const unreadable: HashedRows['unreadable'] = new Map();
  const rows = await withoutInvalidRows(
    tx,
    events,
    (some) =>
      tx.query<HashedRow>(
        // LATERAL with its own limit: one probe of the primary key for each, never a scan of the whole log.
        `select e.xid, e.seq, ${rowHash} as hash, e.job_id, ${jobPart} as job_part
           from unnest($1::text[], $2::bigint[]) as k(xid, seq)
          cross join lateral (select * from ${schema}.events where xid = k.xid::xid8 and seq = k.seq limit 1) as e`,
        [some.map((event) => event.xid), some.map((event) => event.seq)],
      ),
    (event, error) => unreadable.set(event, error),
  );
  return { rows: new Map(rows.map((row) => [eventKey(row), row])), unreadable };
}

/** Every event of the block is visible in it: after the block is pruned, a reader that has seen less has missed events. */
function snapshotAfter(events: readonly Pick<Event, 'xid'>[]): string {
  let highest = 0n;
  for (const { xid } of events) if (BigInt(xid) > highest) highest = BigInt(xid);
  return `${highest + 1n}:${highest + 1n}:`;
}
