// Proves the log against its seals: the chain is whole, every sealed row is there as it was sealed, and
// no row was slipped in among them. Reads in batches inside the caller's transaction.
import type { Queryable } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import { type Event, eventKey } from './event.ts';
import type { Faults } from './fault.ts';
import { type Position, parsePosition } from './position.ts';
import { type Block, type ChainEnd, hashBlock, hashLength, hashRows, noHash, sealsFollower } from './seal.ts';
import { isVisible, parseSnapshot } from './snapshot.ts';

export interface SealReport {
  seals: number;
  prunedSeals: number;
  sealedEvents: number;
  unsealedEvents: number;
  /** To be kept outside of the database: a chain that was made anew has another. */
  end: { number: string; hash: string } | undefined;
}

interface SealRow {
  number: string;
  snapshot: string;
  event_keys: string[];
  event_hashes: Buffer;
  previous_hash: Buffer;
  hash: Buffer;
  pruned_at: string | null;
}

/** Blocks that belong together in the log, so that strays can be looked for without all keys in memory. */
interface Span {
  first: string;
  last: string;
  lowest: bigint;
  highest: bigint;
  events: number;
}

const sealsAtOnce = 20;
const eventsPerSpan = 5000;
const eventsAtOnce = 10_000;

export async function verifySeals(
  tx: Queryable,
  schema: Schema,
  faults: Faults,
  anchor?: { number: string; hash: string },
): Promise<SealReport> {
  const report: SealReport = { seals: 0, prunedSeals: 0, sealedEvents: 0, unsealedEvents: 0, end: undefined };
  const spans: Span[] = [];
  for (;;) {
    const rows = await readSeals(tx, schema, report.end?.number ?? '0');
    if (rows.length === 0) break;
    for (const row of rows) await verifySeal(tx, schema, row, report, spans, faults, anchor);
  }
  const follower = await readFollower(tx, schema);
  if (follower && (follower.end.number ?? '0') !== (report.end?.number ?? '0')) {
    const detail = `the chain ends with seal ${report.end?.number ?? 'none'}, but ${follower.end.number ?? 'none'} was written last`;
    faults.add({ kind: 'seal_missing', seal: follower.end.number ?? '0', detail });
  }
  if (anchor && BigInt(anchor.number) > BigInt(report.end?.number ?? '0')) {
    faults.add({ kind: 'seal_missing', seal: anchor.number, detail: 'the seal of the anchor is not there' });
  }
  await findStrays(tx, schema, follower?.position, spans, report, faults);
  return report;
}

function readSeals(tx: Queryable, schema: Schema, after: string): Promise<SealRow[]> {
  return tx.query<SealRow>(
    `select number, snapshot, event_keys, event_hashes, previous_hash, hash, pruned_at
       from ${schema}.event_seals where number > $1 order by number limit $2`,
    [after, sealsAtOnce],
  );
}

async function readFollower(tx: Queryable, schema: Schema) {
  const [row] = await tx.query<{ snapshot: string; state: ChainEnd }>(
    `select snapshot, state from ${schema}.followers where name = $1`,
    [sealsFollower],
  );
  return row && { position: parsePosition(row.snapshot), end: row.state };
}

async function verifySeal(
  tx: Queryable,
  schema: Schema,
  row: SealRow,
  report: SealReport,
  spans: Span[],
  faults: Faults,
  anchor: { number: string; hash: string } | undefined,
): Promise<void> {
  const seal = row.number;
  const before = report.end;
  const hash = row.hash.toString('hex');
  report.end = { number: seal, hash };
  const expected = String(BigInt(before?.number ?? '0') + 1n);
  if (seal !== expected)
    faults.add({
      kind: 'seal_missing',
      seal: expected,
      detail: `no seal between ${before?.number ?? 'the start'} and ${seal}`,
    });
  else if (row.previous_hash.toString('hex') !== (before?.hash ?? '')) {
    faults.add({ kind: 'seal_altered', seal, detail: 'does not continue the seal before it' });
  }
  if (anchor?.number === seal && anchor.hash !== hash) {
    faults.add({ kind: 'seal_altered', seal, detail: `has not the hash of the anchor: the chain was made anew` });
  }
  if (row.pruned_at !== null) {
    if (report.seals > 0)
      faults.add({ kind: 'seal_altered', seal, detail: 'is marked as pruned behind one that is not' });
    report.prunedSeals++;
    return;
  }
  report.seals++;
  report.sealedEvents += row.event_keys.length;
  if (!hashBlock(toBlock(row)).equals(row.hash))
    faults.add({ kind: 'seal_altered', seal, detail: 'its content does not give its hash' });
  await verifyRows(tx, schema, row, faults);
  addSpan(spans, row);
}

function toBlock(row: SealRow): Block {
  return {
    number: row.number,
    snapshot: row.snapshot,
    keys: row.event_keys,
    hashes: row.event_hashes,
    previousHash: row.previous_hash,
  };
}

async function verifyRows(tx: Queryable, schema: Schema, row: SealRow, faults: Faults): Promise<void> {
  const { hashes, unreadable } = await hashRows(tx, schema, row.event_keys.map(fromKey));
  const without = new Set([...unreadable.keys()].map(eventKey));
  row.event_keys.forEach((event, i) => {
    const sealed = row.event_hashes.subarray(i * hashLength, (i + 1) * hashLength);
    const present = hashes.get(event);
    const seal = row.number;
    if (!present && !without.has(event)) {
      faults.add({ kind: 'event_missing', event, seal, detail: 'was sealed and is gone' });
    } else if (sealed.equals(noHash)) {
      faults.add({ kind: 'event_unreadable', event, seal, detail: 'no hash could be made of it when it was sealed' });
    } else if (!present?.equals(sealed)) {
      faults.add({ kind: 'event_altered', event, seal, detail: 'is not what was sealed' });
    }
  });
}

function fromKey(key: string): Pick<Event, 'xid' | 'seq'> {
  const [xid = '0', seq = '0'] = key.split(':');
  return { xid, seq };
}

function addSpan(spans: Span[], row: SealRow): void {
  const xids = row.event_keys.map((key) => BigInt(fromKey(key).xid));
  let lowest = xids[0] ?? 0n;
  let highest = lowest;
  for (const xid of xids) {
    if (xid < lowest) lowest = xid;
    if (xid > highest) highest = xid;
  }
  const last = spans.at(-1);
  if (!last || last.events + xids.length > eventsPerSpan) {
    spans.push({ first: row.number, last: row.number, lowest, highest, events: xids.length });
    return;
  }
  last.last = row.number;
  last.events += xids.length;
  if (lowest < last.lowest) last.lowest = lowest;
  if (highest > last.highest) last.highest = highest;
}

/** Rows of transactions that were sealed, without a seal of their own. */
async function findStrays(
  tx: Queryable,
  schema: Schema,
  position: Position | undefined,
  spans: readonly Span[],
  report: SealReport,
  faults: Faults,
): Promise<void> {
  const isDone = sealedBy(position);
  let after = { xid: '0', seq: '0' };
  for (;;) {
    const rows = await tx.query<{ xid: string; seq: string }>(
      `select xid, seq from ${schema}.events where (xid, seq) > ($1::xid8, $2::bigint) order by xid, seq limit $3`,
      [after.xid, after.seq, eventsAtOnce],
    );
    const [first, last] = [rows[0], rows.at(-1)];
    if (!first || !last) return;
    const keys = await keysBetween(tx, schema, spans, BigInt(first.xid), BigInt(last.xid));
    for (const row of rows) {
      const event = eventKey(row);
      if (keys.has(event)) continue;
      if (isDone(row)) faults.add({ kind: 'event_inserted', event, detail: 'was not there when its time was sealed' });
      else report.unsealedEvents++;
    }
    after = last;
  }
}

/** Whether the follower has been past an event. */
function sealedBy(position: Position | undefined): (event: { xid: string; seq: string }) => boolean {
  const seen = position && parseSnapshot(position.seen);
  if (!seen) return () => false;
  const { page } = position;
  const until = page && parseSnapshot(page.until);
  return ({ xid, seq }) => {
    const number = BigInt(xid);
    if (isVisible(number, seen)) return true;
    if (!page || !until || !isVisible(number, until)) return false;
    const [pageXid, pageSeq] = [BigInt(page.xid), BigInt(page.seq)];
    return number < pageXid || (number === pageXid && BigInt(seq) <= pageSeq);
  };
}

async function keysBetween(
  tx: Queryable,
  schema: Schema,
  spans: readonly Span[],
  lowest: bigint,
  highest: bigint,
): Promise<Set<string>> {
  const keys = new Set<string>();
  for (const span of spans) {
    if (span.highest < lowest || span.lowest > highest) continue;
    const rows = await tx.query<{ event_keys: string[] }>(
      `select event_keys from ${schema}.event_seals where number between $1 and $2`,
      [span.first, span.last],
    );
    for (const row of rows) for (const key of row.event_keys) keys.add(key);
  }
  return keys;
}
