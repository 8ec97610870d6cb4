// Seals: a follower that adds a hash of every committed event to a chain of blocks, off the hot path. Verification then
// finds every row that was edited, removed, swapped or inserted later.

import type { Database, Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { withoutInvalidRows } from '../../database/invalid-rows.ts';
import { runQuery, statement, tenant } from '../../database/sql.ts';
import { isDataError } from '../../database/sql-errors.ts';
import { type Event, eventKey, fromKey } from '../log/event.ts';
import { type FollowerStep, type FollowResult, runFollowerStep } from '../log/follower.ts';
import { formatPosition, type Position } from '../log/position.ts';
import { nextPosition, readParameters, selectNewEvents } from '../log/read-new-events.ts';
import { recordSetAside, type SetAside } from '../log/set-aside.ts';
import {
  decodeJobHashes,
  type EventOfJob,
  encodeJobHashes,
  type HashVersion,
  hashLength,
  hashReadableJobs,
  hashVersion,
  jobPart,
  partHash,
  rowHash2,
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

// Large enough that blocks are few, and small enough to be hashed in about 50 ms. An event's index in its block has two
// bytes.
const maxEventsPerBlock = 5000;
// Bytes of payloads and results in a block. They are hashed in about a second, well below the statement timeout.
const maxBytesPerBlock = 64 * 1024 * 1024;

/** Seals up to one block. Call again at once while `complete` is false. */
export async function sealEvents(db: Database, schema: Schema, options: SealOptions = {}): Promise<FollowResult> {
  try {
    return await sealReadable(db, schema, options);
  } catch (error) {
    if (!isDataError(error)) throw error;
    return sealWithUnreadable(db, schema);
  }
}

export interface SealOptions {
  /** The block ends before the event whose job would make it larger. */
  maxBytes?: number;
}

/** Fails if Postgres cannot hash an event or a job. */
async function sealReadable(
  db: Database,
  schema: Schema,
  { maxBytes = maxBytesPerBlock }: SealOptions,
): Promise<FollowResult> {
  return runFollowerStep<ChainEnd>(db, schema, sealsFollower, startAt, async (tx, position, end) => {
    return sealBlock(tx, schema, position, await readBlock(tx, schema, position, maxBytes), end);
  });
}

/**
 * The chain cannot omit an event, because verification would report it as inserted. An event that cannot be hashed is
 * sealed with `noHash` instead, which proves its position in the log but not its content.
 */
async function sealWithUnreadable(db: Database, schema: Schema): Promise<FollowResult> {
  const setAside: SetAside[] = [];
  const followed = await runFollowerStep<ChainEnd>(db, schema, sealsFollower, startAt, async (tx, position, end) => {
    const { header, events } = await readUnhashed(tx, schema, position);
    const { rows, unreadable } = await hashRows(tx, schema, events, hashVersion);
    for (const [event, error] of unreadable) {
      setAside.push(await recordSetAside(tx, schema, sealsFollower, event, error));
    }
    const content: BlockContent = {
      keys: events.map(eventKey),
      hashes: Buffer.concat(events.map((event) => rows.get(eventKey(event))?.hash ?? noHash)),
      jobHashes: encodeJobHashes(await hashReadableJobs(tx, schema, events)),
    };
    return sealBlock(tx, schema, position, { header, content, isCut: false }, end);
  });
  return { ...followed, setAside };
}

const startAt = { startAt: 'beginning' } as const;

interface Header {
  /** The end of the read. */
  until: string;
  moved: boolean;
  ahead: boolean;
  now: string;
}

interface ReadBlock {
  header: Header;
  content: BlockContent;
  /** The block ends before the last event that was read, because of its bytes. */
  isCut: boolean;
}

/**
 * SQL: an upper bound of a document's text size, without reading it; a compressed document may be this many times
 * larger.
 */
const likelyBytes = (column: string) =>
  `coalesce(pg_column_size(${column}) * case when pg_column_compression(${column}) is null then 1 else 20 end, 0)`;

/** The sum over the events up to and including this one. */
const bytes = `sum(${likelyBytes('j.payload')} + ${likelyBytes('j.result')}) over (rows unbounded preceding)`;

const blockStatement = statement(`
  with log as materialized (${selectNewEvents}
  ),
  numbered as materialized (
    select (row_number() over (order by xid, seq))::int - 1 as place,
           e.*,
           ${jobPart} as part
      from log e
     where until is null
  ),
  hashed as materialized (
    select e.place,
           e.xid || ':' || e.seq as key,
           case when ${bytes} <= :maxBytes or e.place = 0 then ${eventHash(2)} end as hash,
           case
             when j.id is not null and (${bytes} <= :maxBytes or e.place = 0)
             then int2send(e.place::int2) || ${partHash('e.part', hashVersion)}
           end as job_hash
      from numbered e
      left join lateral (
        select *
          from ${tenant}.jobs
         where id = e.job_id
           and e.part is not null
         limit 1
      ) as j on true
  )
  select until, moved, ahead, ${microseconds('now()')} as now, b.*
    from log
   cross join (
     select coalesce(array_agg(key order by place), '{}') as keys,
            coalesce(string_agg(hash, '' order by place), '') as hashes,
            coalesce(string_agg(job_hash, '' order by place), '') as job_hashes,
            min(place) filter (where hash is null) as cut
       from hashed
   ) as b
   where until is not null`);

type BlockRow = Header & { keys: string[]; hashes: Buffer; job_hashes: Buffer; cut: number | null };

/**
 * Reads and hashes a block in one pass and returns one row, because a row for each event would cost the daemon as much
 * as the hashes cost Postgres. The sum has no ORDER BY, so that the rows are not sorted with their payloads. They come
 * in order; if they did not, the block would only end sooner.
 */
async function readBlock(tx: Queryable, schema: Schema, position: Position, maxBytes: number): Promise<ReadBlock> {
  const [row] = await blockStatement.query<BlockRow>(tx, schema, {
    ...readParameters(position, { limit: maxEventsPerBlock }),
    maxBytes,
  });
  if (row === undefined) throw new Error('a read of the event log returned no snapshot');
  const { keys, hashes, job_hashes: jobHashes, cut, ...header } = row;
  if (cut === null) return { header, content: { keys, hashes, jobHashes }, isCut: false };
  const kept = [...decodeJobHashes(jobHashes)].filter(([place]) => place < cut);
  return {
    header,
    content: {
      keys: keys.slice(0, cut),
      hashes: hashes.subarray(0, cut * hashLength),
      jobHashes: encodeJobHashes(kept.map(([place, hash]) => ({ place, hash }))),
    },
    isCut: true,
  };
}

const unhashedStatement = statement(`
  with log as materialized (${selectNewEvents}
  )
  select until, moved, ahead, xid, seq, job_id, ${jobPart} as job_part, ${microseconds('now()')} as now
    from log e`);

type UnhashedRow = Omit<Header, 'until'> & { until: string | null; xid: string; seq: string } & EventOfJob;

async function readUnhashed(tx: Queryable, schema: Schema, position: Position) {
  const parameters = readParameters(position, { limit: maxEventsPerBlock });
  const rows = await unhashedStatement.query<UnhashedRow>(tx, schema, parameters);
  const header = rows.find((row): row is typeof row & { until: string } => row.until !== null);
  if (header === undefined) throw new Error('a read of the event log returned no snapshot');
  return { header, events: rows.filter((row) => row.until === null) };
}

async function sealBlock(
  tx: Queryable,
  schema: Schema,
  position: Position,
  { header, content, isCut }: ReadBlock,
  end: ChainEnd,
): Promise<FollowerStep<ChainEnd>> {
  const { keys } = content;
  const last = keys.at(-1);
  const complete = keys.length < maxEventsPerBlock && !isCut;
  const next = nextPosition(position, header.until, complete || last === undefined ? undefined : fromKey(last));
  const { ahead } = header;
  const step = { position: next, handled: keys.length, complete, moved: keys.length > 0 || header.moved, ahead };
  if (keys.length === 0 && !ahead) return { ...step, state: end };
  const state = await appendSeal(
    tx,
    schema,
    await recordFormerPrunes(tx, schema, end),
    {
      kind: 'events',
      sealed_at: header.now,
      snapshot: snapshotAfter(last),
      from: formatPosition(position),
      until: formatPosition(next),
      ...(ahead && { restart: true as const }),
      events: keys.length,
      content: hashContent(content),
      job_hash: hashVersion,
    },
    content,
  );
  return { ...step, state };
}

/** Replaces the hash of an event that could not be hashed. */
export const noHash = Buffer.alloc(hashLength);

/** SQL: a hash of all columns of event `e`, with numbers as they are stored, not as JavaScript reads them. */
function eventHash(version: HashVersion): string {
  const rest = `e.type, e.job_id, e.target_id, e.from_status, e.to_status, e.attempt, e.lease_id, e.actor, e.data`;
  if (version === 2) return rowHash2(`e.xid, e.seq, e.at, ${rest}`);
  return `substring(sha256(convert_to(jsonb_build_array(e.xid::text, e.seq,
    case when isfinite(e.at) then (extract(epoch from e.at) * 1000000)::bigint end, ${rest})::text, 'UTF8')) from 1 for ${hashLength})`;
}

interface HashedRow extends EventOfJob {
  xid: string;
  seq: string;
  hash: Buffer;
}

export interface HashedRows {
  /** Hashes by `xid:seq`. Rows that no longer exist are missing. */
  rows: Map<string, HashedRow>;
  /** Rows that Postgres cannot hash, with the error. */
  unreadable: Map<Pick<Event, 'xid' | 'seq'>, unknown>;
}

export async function hashRows(
  tx: Queryable,
  schema: Schema,
  events: readonly Pick<Event, 'xid' | 'seq'>[],
  version: HashVersion,
): Promise<HashedRows> {
  const unreadable: HashedRows['unreadable'] = new Map();
  const rows = await withoutInvalidRows(
    tx,
    events,
    (some) =>
      // LATERAL with its own limit: one probe of the primary key for each, never a scan of the whole log.
      runQuery<HashedRow>(
        tx,
        `select e.xid, e.seq, ${eventHash(version)} as hash, e.job_id, ${jobPart} as job_part
           from unnest(:xids::text[], :seqs::bigint[]) as k(xid, seq)
          cross join lateral (select * from ${schema}.events where xid = k.xid::xid8 and seq = k.seq limit 1) as e`,
        { xids: some.map((event) => event.xid), seqs: some.map((event) => event.seq) },
      ),
    (event, error) => unreadable.set(event, error),
  );
  return { rows: new Map(rows.map((row) => [eventKey(row), row])), unreadable };
}

/**
 * Every event of the block is visible in this snapshot. After the block is pruned, a reader that has seen less has
 * missed events. The last event has the highest transaction id.
 */
function snapshotAfter(last: string | undefined): string {
  const highest = last === undefined ? 0n : BigInt(fromKey(last).xid);
  return `${highest + 1n}:${highest + 1n}:`;
}
