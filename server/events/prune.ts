// Retention of events: whole sealed blocks, from the oldest on, so that what retention removed can be
// told from what somebody removed. Each block in a transaction of its own: no long locks.
import type { Database, Queryable } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';

export interface Pruned {
  events: number;
  /** False: there are more old blocks; call again. */
  complete: boolean;
}

export interface PruneOptions {
  olderThanSeconds: number;
  /** Nothing behind this event: somebody has still to read it. */
  upTo?: { xid: string; seq: string };
  mostBlocks?: number;
}

export async function pruneEvents(db: Database, schema: Schema, options: PruneOptions): Promise<Pruned> {
  const { mostBlocks = 20 } = options;
  let events = 0;
  for (let i = 0; i < mostBlocks; i++) {
    const pruned = await db.transaction((tx) => pruneOldest(tx, schema, options));
    if (pruned === undefined) return { events, complete: true };
    events += pruned;
  }
  return { events, complete: false };
}

/** How many events the oldest block had; undefined if it may not go yet, or another daemon is at it. */
async function pruneOldest(
  tx: Queryable,
  schema: Schema,
  { olderThanSeconds, upTo }: PruneOptions,
): Promise<number | undefined> {
  const [oldest] = await tx.query<{ number: string; event_keys: string[]; next: string }>(
    `select number, event_keys, pg_snapshot_xmax(pg_current_snapshot())::text as next from ${schema}.event_seals
      where pruned_at is null and sealed_at < now() - $1::float8 * interval '1 second'
      order by number limit 1 for update skip locked`,
    [olderThanSeconds],
  );
  if (!oldest) return undefined;
  const xids = oldest.event_keys.map((key) => key.split(':')[0] ?? '0');
  const ordered = xids.map(BigInt).sort((a, b) => (a < b ? -1 : 1));
  if (upTo !== undefined && isBehind(oldest.event_keys, upTo, oldest.next)) return undefined;
  await markPruned(tx, schema, oldest.number);
  const rows = await tx.query(
    // The range keeps the join from reading the whole log.
    `delete from ${schema}.events e using unnest($1::text[], $2::bigint[]) as k(xid, seq)
      where e.xid = k.xid::xid8 and e.seq = k.seq and e.xid >= $3::text::xid8 and e.xid <= $4::text::xid8 returning e.seq`,
    [xids, oldest.event_keys.map((key) => key.split(':')[1]), String(ordered[0]), String(ordered.at(-1))],
  );
  return rows.length;
}

/** Numbers that are yet to come are of another history, from before a restore: nobody reads those. */
function isBehind(keys: readonly string[], upTo: { xid: string; seq: string }, next: string): boolean {
  const [lastXid, lastSeq, nextXid] = [BigInt(upTo.xid), BigInt(upTo.seq), BigInt(next)];
  return keys.some((key) => {
    const [xid = 0n, seq = 0n] = key.split(':').map(BigInt);
    return xid < nextXid && (xid > lastXid || (xid === lastXid && seq > lastSeq));
  });
}

/** The block's rows are (about to be) gone for a good reason: only its place in the chain stays. */
export async function markPruned(tx: Queryable, schema: Schema, number: string): Promise<void> {
  await tx.query(
    `update ${schema}.event_seals set pruned_at = now(), event_keys = '{}', event_hashes = '' where number = $1`,
    [number],
  );
}
