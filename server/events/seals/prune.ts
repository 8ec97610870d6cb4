// Retention of events: removes whole sealed blocks, oldest first. A seal records the removal in the same transaction,
// so that verification can distinguish it from tampering. Transactions are small, so locks are short.
import type { Database, Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { statement, tenant } from '../../database/sql.ts';
import { runFollowerStep } from '../log/follower.ts';
import { currentSnapshot } from '../log/transaction-ids.ts';
import { sealEvents } from './seal.ts';
import { appendSeal, type ChainEnd, microseconds, recordFormerPrunes, sealsFollower } from './seal-chain.ts';

export interface Pruned {
  events: number;
  /** False if there are more old blocks; call again. */
  complete: boolean;
}

export interface PruneOptions {
  olderThanSeconds: number;
  /** Nothing after this event is removed, because a follower has not read it. */
  upTo?: { xid: string; seq: string };
  maxSteps?: number;
}

// One transaction takes about 50 ms of deletes, and has few enough blocks for one record.
const eventsPerStep = 5000;
const blocksPerStep = 100;

export async function pruneEvents(db: Database, schema: Schema, options: PruneOptions): Promise<Pruned> {
  const { maxSteps = 20 } = options;
  let events = 0;
  for (let i = 0; i < maxSteps; i++) {
    const pruned = await pruneOldest(db, schema, options);
    events += pruned.handled;
    // Another daemon seals or prunes. The next run continues.
    if (pruned.complete || pruned.busy) return { events, complete: true };
  }
  // Successive steps hold the chain most of the time, and a daemon that finds it locked tries again seconds later. New
  // events must not wait until all old ones are gone.
  await sealEvents(db, schema);
  return { events, complete: false };
}

interface OldBlock {
  number: string;
  events: number;
  now: string;
}

/** A step of the seals follower, so nothing else is appended to the chain meanwhile. Its position does not change. */
function pruneOldest(db: Database, schema: Schema, options: PruneOptions) {
  return runFollowerStep<ChainEnd>(db, schema, sealsFollower, { startAt: 'beginning' }, async (tx, position, end) => {
    const blocks = await readOldest(tx, schema, options);
    const [first] = blocks;
    if (!first) return { position, state: end, handled: 0, complete: true, moved: false, ahead: false };
    const chain = await recordFormerPrunes(tx, schema, end);
    const record = await appendSeal(tx, schema, chain, {
      kind: 'prune',
      sealed_at: first.now,
      seals: toRanges(blocks.map((block) => BigInt(block.number))),
      events: blocks.reduce((sum, block) => sum + block.events, 0),
      older_than_seconds: options.olderThanSeconds,
    });
    const numbers = blocks.map((block) => block.number);
    const [deleted] = await deleteStatement.query<{ events: number }>(tx, schema, { numbers });
    await markStatement.query(tx, schema, { numbers, prunedBy: record.number });
    const handled = deleted?.events ?? 0;
    return { position, state: record, handled, complete: false, moved: true, ahead: false };
  });
}

/**
 * The events of a seal, from its keys `xid:seq`. Keys are read in the database, because splitting them costs a daemon more
 * than deleting their events costs Postgres.
 */
const keysOf = (keys: string) => `(
        select split_part(key, ':', 1)::xid8 as xid, split_part(key, ':', 2)::bigint as seq
          from unnest(${keys}) as key) as k`;

/**
 * SQL: block `c` has an event that the follower has not read. The keys of a block are in the order of the log, so the last
 * one decides; but a restore can leave transaction ids of the future, which no follower reads.
 */
const isBehind = `case
             when split_part(c.last, ':', 1)::xid8 < next.xid
             then (split_part(c.last, ':', 1)::xid8, split_part(c.last, ':', 2)::bigint)
                    > (:readToXid::text::xid8, :readToSeq::bigint)
             else exists (
               select 1
                 from ${keysOf('c.event_keys')}
                where k.xid < next.xid
                  and (k.xid, k.seq) > (:readToXid::text::xid8, :readToSeq::bigint))
           end`;

const oldestStatement = statement(`
  with oldest as (
    select number,
           event_keys,
           event_keys[cardinality(event_keys)] as last,
           cardinality(event_keys) as events,
           sealed_at < now() - :olderThanSeconds::float8 * interval '1 second' as due
      from ${tenant}.event_seals
     where pruned_at is null
       and kind = 'events'
     order by number
     limit :blocks
  ),
  counted as (
    select *, sum(events) over (order by number) - events as before
      from oldest
  ),
  next as materialized (
    select pg_snapshot_xmax(${currentSnapshot(tenant)}) as xid
  )
  select c.number,
         c.events,
         c.due and (:readToXid::text is null or not ${isBehind}) as due,
         ${microseconds('now()')} as now
    from counted c
   cross join next
   where c.before < :events
   order by c.number`);

/** Selects the oldest blocks, up to the first that is too recent or not read yet. */
async function readOldest(
  tx: Queryable,
  schema: Schema,
  { olderThanSeconds, upTo }: PruneOptions,
): Promise<OldBlock[]> {
  const rows = await oldestStatement.query<OldBlock & { due: boolean }>(tx, schema, {
    olderThanSeconds,
    readToXid: upTo?.xid ?? null,
    readToSeq: upTo?.seq ?? null,
    blocks: blocksPerStep,
    events: eventsPerStep,
  });
  const end = rows.findIndex((row) => !row.due);
  return end === -1 ? rows : rows.slice(0, end);
}

/** The numbers must be in ascending order. */
function toRanges(numbers: readonly bigint[]): [string, string][] {
  const ranges: [bigint, bigint][] = [];
  for (const number of numbers) {
    const last = ranges.at(-1);
    if (last && last[1] + 1n === number) last[1] = number;
    else ranges.push([number, number]);
  }
  return ranges.map(([first, last]) => [String(first), String(last)]);
}

// The range keeps the join from reading the whole log.
const deleteStatement = statement(`
  with keys as materialized (
    select k.*
      from ${tenant}.event_seals s
     cross join lateral ${keysOf('s.event_keys')}
     where s.number = any(:numbers::bigint[])
  ),
  deleted as (
    delete from ${tenant}.events e
     using keys k
     where e.xid = k.xid
       and e.seq = k.seq
       and e.xid >= (select xid from keys order by xid limit 1)
       and e.xid <= (select xid from keys order by xid desc limit 1)
    returning 1
  )
  select count(*)::int as events
    from deleted`);

/** Keeps only the positions of the blocks in the chain, and their records. */
const markStatement = statement(`
  update ${tenant}.event_seals
     set pruned_at = now(),
         pruned_by = :prunedBy,
         event_keys = '{}',
         event_hashes = '',
         job_hashes = null
   where number = any(:numbers::bigint[])`);
