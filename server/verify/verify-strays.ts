// Finds rows of the log that are in no seal although their time was sealed, or whose transaction does not exist yet.
import type { Queryable } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import { eventKey } from '../events/log/event.ts';
import { hasRead, isVisible, type Position, parseSnapshot } from '../events/log/position.ts';
import type { Violations } from './violation.ts';

/** Blocks that belong together in the log, so that strays can be looked for without all keys in memory. */
interface Span {
  first: string;
  last: string;
  lowest: bigint;
  highest: bigint;
  events: number;
}

const eventsPerSpan = 5000;
const eventsAtOnce = 10_000;

/** The keys of all sealed events, read again from the blocks where they are needed. */
export class SealedKeys {
  #spans: Span[] = [];

  add(seal: string, keys: readonly string[]): void {
    const xids = keys.map((key) => BigInt(key.split(':')[0] ?? '0'));
    const [first] = xids;
    if (first === undefined) return;
    let lowest = first;
    let highest = first;
    for (const xid of xids) {
      if (xid < lowest) lowest = xid;
      if (xid > highest) highest = xid;
    }
    const last = this.#spans.at(-1);
    if (!last || last.events + xids.length > eventsPerSpan) {
      this.#spans.push({ first: seal, last: seal, lowest, highest, events: xids.length });
      return;
    }
    last.last = seal;
    last.events += xids.length;
    if (lowest < last.lowest) last.lowest = lowest;
    if (highest > last.highest) last.highest = highest;
  }

  async between(tx: Queryable, schema: Schema, lowest: bigint, highest: bigint): Promise<Set<string>> {
    const keys = new Set<string>();
    for (const span of this.#spans) {
      if (span.highest < lowest || span.lowest > highest) continue;
      const rows = await tx.query<{ event_keys: string[] }>(
        `select event_keys from ${schema}.event_seals where number between $1 and $2`,
        [span.first, span.last],
      );
      for (const row of rows) for (const key of row.event_keys) keys.add(key);
    }
    return keys;
  }
}

/** How many events are honestly not yet sealed. */
export async function findUnsealedEvents(
  tx: Queryable,
  schema: Schema,
  position: Position | undefined,
  sealed: SealedKeys,
  violations: Violations,
): Promise<number> {
  const isDone = hasRead(position);
  const isOver = await readTransactions(tx, schema);
  let unsealed = 0;
  let after = { xid: '0', seq: '0' };
  for (;;) {
    const rows = await tx.query<{ xid: string; seq: string }>(
      `select xid, seq from ${schema}.events where (xid, seq) > ($1::xid8, $2::bigint) order by xid, seq limit $3`,
      [after.xid, after.seq, eventsAtOnce],
    );
    const [first, last] = [rows[0], rows.at(-1)];
    if (!first || !last) return unsealed;
    const keys = await sealed.between(tx, schema, BigInt(first.xid), BigInt(last.xid));
    for (const row of rows) {
      const event = eventKey(row);
      if (keys.has(event)) continue;
      if (isDone(row))
        violations.add({ kind: 'event_inserted', event, detail: 'was not there when its time was sealed' });
      else if (!isOver(row.xid)) {
        violations.add({ kind: 'event_future', event, detail: 'is there, but its transaction has not been committed' });
      } else unsealed++;
    }
    after = last;
  }
}

/** Whether a transaction was over when this one took its snapshot. Asked where the tenant's tables are. */
async function readTransactions(tx: Queryable, schema: Schema): Promise<(xid: string) => boolean> {
  const [row] = await tx.query<{ snapshot: string }>(
    `select coalesce((select pg_current_snapshot() from ${schema}.followers limit 1), pg_current_snapshot())::text as snapshot`,
  );
  const snapshot = parseSnapshot(row?.snapshot ?? '');
  if (!snapshot) throw new Error('the database told no snapshot');
  return (xid) => isVisible(BigInt(xid), snapshot);
}
