// Retention of events: removes whole sealed blocks, oldest first. A seal records the removal in the same transaction,
// so that verification can distinguish it from tampering. Transactions are small, so locks are short.
import type { Database, Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { runQuery, statement, tenant } from '../../database/sql.ts';
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
  event_keys: string[];
  next: string;
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
      events: blocks.reduce((sum, block) => sum + block.event_keys.length, 0),
      older_than_seconds: options.olderThanSeconds,
    });
    await markPruned(tx, schema, blocks, record.number);
    const handled = await deleteEvents(
      tx,
      schema,
      blocks.flatMap((block) => block.event_keys),
    );
    return { position, state: record, handled, complete: false, moved: true, ahead: false };
  });
}

const oldestStatement = statement(`
  with oldest as (
    select number,
           event_keys,
           sealed_at < now() - :olderThanSeconds::float8 * interval '1 second' as due
      from ${tenant}.event_seals
     where pruned_at is null
       and kind = 'events'
     order by number
     limit :blocks
  ),
  counted as (
    select *, sum(cardinality(event_keys)) over (order by number) - cardinality(event_keys) as before
      from oldest
  )
  select number,
         event_keys,
         due,
         pg_snapshot_xmax(${currentSnapshot(tenant)})::text as next,
         ${microseconds('now()')} as now
    from counted
   where before < :events
   order by number`);

/** Selects the oldest blocks, up to the first that is too recent or not read yet. */
async function readOldest(
  tx: Queryable,
  schema: Schema,
  { olderThanSeconds, upTo }: PruneOptions,
): Promise<OldBlock[]> {
  const rows = await oldestStatement.query<OldBlock & { due: boolean }>(tx, schema, {
    olderThanSeconds,
    blocks: blocksPerStep,
    events: eventsPerStep,
  });
  const end = rows.findIndex((row) => !row.due || (upTo !== undefined && isBehind(row.event_keys, upTo, row.next)));
  return end === -1 ? rows : rows.slice(0, end);
}

/** A restore can leave transaction ids of the future. No follower reads those events. */
function isBehind(keys: readonly string[], upTo: { xid: string; seq: string }, next: string): boolean {
  const [lastXid, lastSeq, nextXid] = [BigInt(upTo.xid), BigInt(upTo.seq), BigInt(next)];
  return keys.some((key) => {
    const [xid = 0n, seq = 0n] = key.split(':').map(BigInt);
    return xid < nextXid && (xid > lastXid || (xid === lastXid && seq > lastSeq));
  });
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

/** Keeps only the positions of the blocks in the chain, and their records. */
async function markPruned(tx: Queryable, schema: Schema, blocks: readonly OldBlock[], by: string): Promise<void> {
  await runQuery(
    tx,
    `update ${schema}.event_seals set pruned_at = now(), pruned_by = :prunedBy, event_keys = '{}', event_hashes = '', job_hashes = null
      where number = any(:numbers::bigint[])`,
    { numbers: blocks.map((block) => block.number), prunedBy: by },
  );
}

// The range keeps the join from reading the whole log.
const deleteStatement = statement(`
  delete from ${tenant}.events e
   using unnest(:xids::text[], :seqs::bigint[]) as k(xid, seq)
   where e.xid = k.xid::xid8
     and e.seq = k.seq
     and e.xid >= :firstXid::text::xid8
     and e.xid <= :lastXid::text::xid8
  returning e.seq`);

async function deleteEvents(tx: Queryable, schema: Schema, keys: readonly string[]): Promise<number> {
  if (keys.length === 0) return 0;
  const xids = keys.map((key) => key.split(':')[0] ?? '0');
  const ordered = xids.map(BigInt).sort((a, b) => (a < b ? -1 : 1));
  const rows = await deleteStatement.query(tx, schema, {
    xids,
    seqs: keys.map((key) => key.split(':')[1]),
    firstXid: String(ordered[0]),
    lastXid: String(ordered.at(-1)),
  });
  return rows.length;
}
