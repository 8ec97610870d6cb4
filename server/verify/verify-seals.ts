// Verifies the log against its seals: the chain is complete, every sealed row is unchanged, each block begins where the
// one before it ended, and no row was inserted later. Reads in batches within the caller's transaction.
import type { Queryable } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import { runQuery } from '../database/sql.ts';
import { eventKey, fromKey } from '../events/log/event.ts';
import { continues, hasRead, parsePosition } from '../events/log/position.ts';
import { type HashVersion, hashVersion, isHashVersion } from '../events/seals/job-hash.ts';
import {
  type BlockContent,
  type ChainEnd,
  type EventsRecord,
  hashBlock1,
  hashContent,
  hashRecord,
  isFormat2,
  microseconds,
  parseRecord,
  sealsFollower,
} from '../events/seals/seal-chain.ts';
import { PruneRecords, verifyPruned, verifyPruneRecord } from './verify-prunes.ts';
import { findUnsealedEvents, SealedKeys, verifyEventRows, verifyJobRows } from './verify-rows.ts';
import type { Violations } from './violation.ts';

export interface SealReport {
  seals: number;
  prunedSeals: number;
  sealedEvents: number;
  unsealedEvents: number;
  /** Jobs whose row was compared with its sealed hash. */
  comparedJobs: number;
  /** Seals that an earlier version wrote: they do not cover jobs, positions and times. */
  formerSeals: number;
  /** Seals after which the log continued with other transaction ids, because a backup was restored. */
  restarts: string[];
  /** The last removal of events that was recorded. Time in microseconds since 1970. */
  lastPrune: { seal: string; at: string; olderThanSeconds: number | null } | undefined;
  /** Keep it outside the database as an anchor, because a rebuilt chain has another end. */
  end: { number: string; hash: string } | undefined;
}

export interface Anchor {
  number: string;
  /** Hexadecimal. */
  hash: string;
}

interface SealRow {
  number: string;
  kind: string;
  snapshot: string;
  event_keys: string[];
  event_hashes: Buffer;
  job_hashes: Buffer | null;
  record: string | null;
  previous_hash: Buffer;
  hash: Buffer;
  /** Microseconds; `Infinity` is possible. */
  sealed_at: string;
  pruned: boolean;
  now: string;
}

const sealsAtOnce = 20;

export async function verifySeals(
  tx: Queryable,
  schema: Schema,
  violations: Violations,
  anchor?: Anchor,
): Promise<SealReport> {
  const chain: Chain = {
    tx,
    schema,
    violations,
    anchor,
    prunes: await PruneRecords.read(tx, schema),
    keys: new SealedKeys(),
    until: undefined,
    hasFormat2: false,
    report: {
      seals: 0,
      prunedSeals: 0,
      sealedEvents: 0,
      unsealedEvents: 0,
      comparedJobs: 0,
      formerSeals: 0,
      restarts: [],
      lastPrune: undefined,
      end: undefined,
    },
  };
  for (;;) {
    const rows = await readSeals(tx, schema, chain.report.end?.number ?? '0');
    if (rows.length === 0) break;
    for (const row of rows) await verifySeal(chain, row);
  }
  await verifyEnd(chain);
  return chain.report;
}

interface Chain {
  tx: Queryable;
  schema: Schema;
  violations: Violations;
  anchor: Anchor | undefined;
  prunes: PruneRecords;
  keys: SealedKeys;
  /** The end of the last block; undefined if its format does not record it. */
  until: string | undefined;
  hasFormat2: boolean;
  report: SealReport;
}

function readSeals(tx: Queryable, schema: Schema, after: string): Promise<SealRow[]> {
  return runQuery<SealRow>(
    tx,
    `select number, kind, snapshot, event_keys, event_hashes, job_hashes, record, previous_hash, hash,
            ${microseconds('sealed_at')} as sealed_at, pruned_at is not null as pruned, ${microseconds('now()')} as now
       from ${schema}.event_seals where number > :after order by number limit :limit`,
    { after, limit: sealsAtOnce },
  );
}

const keyText = /^\d{1,19}:\d{1,18}$/;

async function verifySeal(chain: Chain, row: SealRow): Promise<void> {
  verifyLink(chain, row);
  if (!row.event_keys.every((key) => keyText.test(key))) {
    reportAltered(chain, row.number, 'contains invalid event keys');
    row.event_keys = [];
  }
  if (isFormat2(row.hash)) await verifyFormat2(chain, row);
  else await verifyFormat1(chain, row);
}

function reportAltered(chain: Chain, seal: string, detail: string): void {
  chain.violations.add({ kind: 'seal_altered', seal, detail });
}

function verifyLink(chain: Chain, row: SealRow): void {
  const { report, anchor } = chain;
  const seal = row.number;
  const before = report.end;
  const hash = row.hash.toString('hex');
  report.end = { number: seal, hash };
  const expected = String(BigInt(before?.number ?? '0') + 1n);
  if (seal !== expected) {
    const detail = `no seal between ${before?.number ?? 'the start'} and ${seal}`;
    chain.violations.add({ kind: 'seal_missing', seal: expected, detail });
  } else if (row.previous_hash.toString('hex') !== (before?.hash ?? '')) {
    reportAltered(chain, seal, 'does not continue the seal before it');
  }
  if (anchor?.number === seal && anchor.hash !== hash) {
    reportAltered(chain, seal, 'does not have the hash of the anchor: the chain was rebuilt');
  }
}

async function verifyFormat2(chain: Chain, row: SealRow): Promise<void> {
  const seal = row.number;
  const isFirst = !chain.hasFormat2;
  chain.hasFormat2 = true;
  const record = parseRecord(row.record ?? '');
  if (!record || !hashRecord(seal, row.record ?? '', row.previous_hash).equals(row.hash)) {
    reportAltered(chain, seal, 'its content does not give its hash');
    chain.until = undefined;
    if (!row.pruned) await verifyContent(chain, row, hashVersion, false);
    return;
  }
  if (record.kind !== row.kind || record.sealed_at !== row.sealed_at) {
    reportAltered(chain, seal, 'its kind or time is not what was sealed');
  }
  if (record.kind === 'prune') {
    verifyPruneRecord(seal, record, isFirst, row.now, chain.violations);
    const { sealed_at: at, older_than_seconds: olderThanSeconds } = record;
    chain.report.lastPrune = { seal, at, olderThanSeconds };
    return;
  }
  if (record.snapshot !== row.snapshot) reportAltered(chain, seal, 'its snapshot is not what was sealed');
  await verifyPositions(chain, row, record);
  if (record.restart) chain.report.restarts.push(seal);
  if (row.pruned) verifyPrunedBlock(chain, row, record.sealed_at);
  else {
    if (hashContent(toContent(row)) !== record.content)
      reportAltered(chain, seal, 'its content does not give its hash');
    const version = record.job_hash;
    if (isHashVersion(version)) return verifyContent(chain, row, version, true);
    reportAltered(chain, seal, 'its hashes are of a version that this program does not know');
    await verifyContent(chain, row, hashVersion, false);
  }
}

async function verifyFormat1(chain: Chain, row: SealRow): Promise<void> {
  chain.report.formerSeals++;
  // Format 1 does not record where the block ended.
  chain.until = undefined;
  if (row.pruned) return verifyPrunedBlock(chain, row, /^\d+$/.test(row.sealed_at) ? row.sealed_at : row.now);
  const { number, snapshot, event_keys: keys, event_hashes: hashes, previous_hash: previousHash } = row;
  if (!hashBlock1({ number, snapshot, keys, hashes, previousHash }).equals(row.hash)) {
    reportAltered(chain, number, 'its content does not give its hash');
  }
  await verifyContent(chain, row, 1, false);
}

function verifyPrunedBlock(chain: Chain, row: SealRow, sealedAt: string): void {
  chain.report.prunedSeals++;
  verifyPruned(chain.prunes, { seal: row.number, sealedAt, isFormat2: isFormat2(row.hash) }, chain.violations);
}

/** The block must begin at the end of the one before it, or later, and its events must lie between its positions. */
async function verifyPositions(chain: Chain, row: SealRow, record: EventsRecord): Promise<void> {
  const { tx, schema, violations, until } = chain;
  const seal = row.number;
  chain.until = record.until;
  if (record.restart) return;
  const events = row.event_keys.map(fromKey);
  const [isBefore, isWithin] = [hasRead(parsePosition(record.from)), hasRead(parsePosition(record.until))];
  const detail = 'does not lie between the positions of its seal';
  for (const event of events) {
    if (isBefore(event) || !isWithin(event))
      violations.add({ kind: 'event_inserted', event: eventKey(event), seal, detail });
  }
  if (until === undefined || continues(record.from, until)) return;
  violations.add({ kind: 'position_moved', seal, detail: 'does not begin where the seal before it ended' });
  const late = events.filter(hasRead(parsePosition(until)));
  const xids = late.map((event) => BigInt(event.xid)).sort((a, b) => (a < b ? -1 : 1));
  const [lowest, highest] = [xids[0], xids.at(-1)];
  if (lowest === undefined || highest === undefined) return;
  const sealed = await chain.keys.between(tx, schema, lowest, highest);
  for (const event of late.map(eventKey)) {
    if (sealed.has(event)) continue;
    violations.add({ kind: 'event_inserted', event, seal, detail: 'was sealed later than its transaction' });
  }
}

function toContent(row: SealRow): BlockContent {
  return { keys: row.event_keys, hashes: row.event_hashes, jobHashes: row.job_hashes ?? Buffer.alloc(0) };
}

async function verifyContent(chain: Chain, row: SealRow, version: HashVersion, withJobs: boolean): Promise<void> {
  const { tx, schema, violations, report } = chain;
  report.seals++;
  report.sealedEvents += row.event_keys.length;
  const prune = chain.prunes.find(row.number);
  if (prune) reportAltered(chain, row.number, `is not marked as pruned, but seal ${prune.seal} records that it was`);
  const intact = await verifyEventRows(tx, schema, row, version, violations);
  if (withJobs) report.comparedJobs += await verifyJobRows(tx, schema, row, intact, version, violations);
  chain.keys.add(row.number, row.event_keys);
}

/**
 * Compares the chain with the end that the follower has stored and with the anchor, and finds events after the last
 * seal.
 */
async function verifyEnd(chain: Chain): Promise<void> {
  const { tx, schema, violations, report, anchor, until } = chain;
  const [follower] = await runQuery<{ snapshot: string; state: ChainEnd | null }>(
    tx,
    `select snapshot, state from ${schema}.followers where name = :name`,
    { name: sealsFollower },
  );
  const last = report.end?.number ?? '0';
  const missing = (seal: string, detail: string) => violations.add({ kind: 'seal_missing', seal, detail });
  const position = follower && parsePosition(follower.snapshot);
  if (follower) {
    const { number = '0', hash } = follower.state ?? {};
    if (number !== last)
      missing(number, `the chain ends with seal ${last}, but seal ${number} was the last one written`);
    else if (hash !== report.end?.hash) reportAltered(chain, last, 'is not the seal that was written last');
    if (!position || (until !== undefined && !continues(follower.snapshot, until))) {
      violations.add({
        kind: 'position_moved',
        seal: last,
        detail: 'the position of the sealer is not where this seal ended',
      });
    }
  } else if (report.end) {
    reportAltered(chain, last, 'the sealer has no record of this chain');
  }
  if (anchor && BigInt(anchor.number) > BigInt(last)) missing(anchor.number, 'the seal of the anchor is not there');
  report.unsealedEvents = await findUnsealedEvents(
    tx,
    schema,
    follower && parsePosition(follower.snapshot),
    chain.keys,
    violations,
  );
}
