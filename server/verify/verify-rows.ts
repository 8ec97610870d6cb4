// Compares rows with the seals. Events of a block, and jobs that started or ended with one of them, must be unchanged
// since they were sealed. A row of the log that is older than the last seal must be in one.
import type { Queryable } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import { withoutInvalidRows } from '../database/invalid-rows.ts';
import { presentEpoch } from '../database/log-epoch.ts';
import { runQuery, statement, tenant } from '../database/sql.ts';
import { eventKey, fromKey } from '../events/log/event.ts';
import { hasRead, isVisible, type Position, parseSnapshot } from '../events/log/position.ts';
import { currentSnapshot, epochOf } from '../events/log/transaction-ids.ts';
import { decodeJobHashes, type HashVersion, hashJobs, hashLength, type JobPlace } from '../events/seals/job-hash.ts';
import { hashRows, noHash } from '../events/seals/seal.ts';
import type { Violations } from './violation.ts';

export interface StoredBlock {
  number: string;
  event_keys: string[];
  event_hashes: Buffer;
  job_hashes: Buffer | null;
}

/** Returns the events that are as they were sealed. */
export async function verifyEventRows(
  tx: Queryable,
  schema: Schema,
  block: StoredBlock,
  version: HashVersion,
  violations: Violations,
): Promise<JobPlace[]> {
  const seal = block.number;
  const { rows, unreadable } = await hashRows(tx, schema, block.event_keys.map(fromKey), version);
  const without = new Set([...unreadable.keys()].map(eventKey));
  const intact: JobPlace[] = [];
  block.event_keys.forEach((event, place) => {
    const sealed = block.event_hashes.subarray(place * hashLength, (place + 1) * hashLength);
    const present = rows.get(event);
    if (!present && !without.has(event)) {
      violations.add({ kind: 'event_missing', event, seal, detail: 'was sealed, but does not exist' });
    } else if (sealed.equals(noHash)) {
      violations.add({
        kind: 'event_unreadable',
        event,
        seal,
        detail: 'could not be hashed when it was sealed',
      });
    } else if (!present?.hash.equals(sealed)) {
      violations.add({ kind: 'event_altered', event, seal, detail: 'is not what was sealed' });
    } else intact.push({ ...present, place });
  });
  return intact;
}

/**
 * Returns how many rows of jobs were compared. A missing row is checked by the replay of the job's events, which must
 * record its deletion.
 */
export async function verifyJobRows(
  tx: Queryable,
  schema: Schema,
  block: StoredBlock,
  intact: readonly JobPlace[],
  version: HashVersion,
  violations: Violations,
): Promise<number> {
  const jobHashes = decodeJobHashes(block.job_hashes ?? Buffer.alloc(0));
  const marked = new Map(intact.filter(({ place }) => jobHashes.has(place)).map((job) => [job.place, job]));
  const report = (place: number, detail: string) => {
    const jobId = marked.get(place)?.job_id;
    violations.add({
      kind: 'job_altered',
      event: block.event_keys[place] ?? '',
      ...(jobId != null && { jobId }),
      detail,
    });
  };
  const present = await withoutInvalidRows(
    tx,
    [...marked.values()],
    (jobs) => hashJobs(tx, schema, jobs, version),
    ({ place }) => report(place, 'its row cannot be hashed any more'),
  );
  for (const { place, hash } of present) {
    if (jobHashes.get(place)?.equals(hash)) continue;
    const job = marked.get(place);
    if (job !== undefined && (await wasReplacedLater(tx, schema, job, block.event_keys[place] ?? ''))) continue;
    report(place, 'its row is not what was sealed with this event');
  }
  return present.length;
}

const replacedStatement = statement(`
  select 1
    from ${tenant}.events
   where job_id = :jobId
     and type = 'job.replaced'
     and seq > :seq::bigint
   limit 1`);

/** The payload of a unique job was replaced; it is compared with the event of the last replacement. */
async function wasReplacedLater(tx: Queryable, schema: Schema, job: JobPlace, key: string): Promise<boolean> {
  if (job.job_part !== 'begin') return false;
  const { seq } = fromKey(key);
  return (await replacedStatement.query(tx, schema, { jobId: job.job_id, seq })).length > 0;
}

/** Consecutive blocks, so that unsealed events are found without all keys in memory. */
interface Span {
  first: string;
  last: string;
  lowest: bigint;
  highest: bigint;
  events: number;
}

const eventsPerSpan = 5000;
const eventsAtOnce = 10_000;

/** The keys of all sealed events, read from the blocks again when they are needed. */
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
      const rows = await runQuery<{ event_keys: string[] }>(
        tx,
        `select event_keys from ${schema}.event_seals where number between :first and :last`,
        { first: span.first, last: span.last },
      );
      for (const row of rows) for (const key of row.event_keys) keys.add(key);
    }
    return keys;
  }
}

const placesStatement = statement(`
  select xid, seq, xmin::text as written_by
    from ${tenant}.events
   where (xid, seq) > (:xid::xid8, :seq::bigint)
   order by xid, seq
   limit :limit`);

/**
 * Checks the place of every event in the log. Returns the number of those that are not sealed yet for a valid reason.
 */
export async function findUnsealedEvents(
  tx: Queryable,
  schema: Schema,
  position: Position | undefined,
  sealed: SealedKeys,
  violations: Violations,
): Promise<number> {
  const isDone = hasRead(position);
  const { hasEnded, epoch } = await readTransactions(tx, schema);
  let unsealed = 0;
  let after = { xid: '0', seq: '0' };
  for (;;) {
    const rows = await placesStatement.query<EventPlace>(tx, schema, {
      xid: after.xid,
      seq: after.seq,
      limit: eventsAtOnce,
    });
    const [first, last] = [rows[0], rows.at(-1)];
    if (!first || !last) return unsealed;
    const keys = await sealed.between(tx, schema, BigInt(first.xid), BigInt(last.xid));
    for (const row of rows) {
      const event = eventKey(row);
      if (isWrittenTooEarly(row, epoch)) {
        const detail = 'was written before its transaction began';
        violations.add({ kind: 'event_future', event, detail });
      } else if (keys.has(event)) continue;
      else if (isDone(row))
        violations.add({
          kind: 'event_inserted',
          event,
          detail: 'did not exist when its position in the log was sealed',
        });
      else if (!hasEnded(row.xid)) {
        violations.add({ kind: 'event_future', event, detail: 'exists, but its transaction has not committed' });
      } else unsealed++;
    }
    after = last;
  }
}

interface EventPlace {
  xid: string;
  seq: string;
  /** The transaction id in the row's system column, without its upper 32 bits. */
  written_by: string;
}

/**
 * True for an event that was written with the id of a later transaction. Its place in the log stays wrong after that
 * transaction has ended, and after it was sealed. A row of an earlier epoch is a copy, whose system column says
 * nothing.
 */
function isWrittenTooEarly({ xid, written_by }: EventPlace, epoch: number): boolean {
  if (epochOf(xid) !== epoch) return false;
  // Within a savepoint the row has a later id than its transaction. Ids of 32 bits are compared as Postgres does.
  return BigInt.asIntN(32, BigInt(written_by) - BigInt(xid)) < 0n;
}

/** Reads which transactions had ended when this one took its snapshot, on the node that has the tenant's tables. */
async function readTransactions(
  tx: Queryable,
  schema: Schema,
): Promise<{ hasEnded: (xid: string) => boolean; epoch: number }> {
  const [row] = await tx.query<{ snapshot: string; epoch: number }>(
    `select ${currentSnapshot(schema)}::text as snapshot, (${presentEpoch(schema)}) as epoch`,
  );
  const snapshot = parseSnapshot(row?.snapshot ?? '');
  if (!row || !snapshot) throw new Error('the database returned no snapshot');
  return { hasEnded: (xid) => isVisible(BigInt(xid), snapshot), epoch: row.epoch };
}
