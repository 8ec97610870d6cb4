// The chain of seals: the contents of a seal, its hash, and appending one.
// Format 2 hashes a text, the record, which stays when the block's events are pruned. Its hashes begin with the byte 2
// and have 33 bytes. A known hash (in the next seal, or an anchor) therefore fixes the format of a seal, and no seal
// can be presented as one of format 1, which proves less.
import { createHash } from 'node:crypto';
import { z } from 'zod';
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { statement, tenant } from '../../database/sql.ts';

export const sealsFollower = 'seals';

/** The end of the chain, stored with the follower, so that verification notices if seals at the end are removed. */
export interface ChainEnd {
  number?: string;
  /** Hexadecimal. */
  hash?: string;
}

const digits = z.string().regex(/^\d{1,19}$/);
/** Microseconds since 1970, up to the year 2286. */
const time = z.string().regex(/^\d{1,16}$/);
const count = z.int().min(0);

const eventsRecord = z.strictObject({
  kind: z.literal('events'),
  sealed_at: time,
  /** A snapshot in which every event of the block is visible. */
  snapshot: z.string(),
  /** Positions of the follower before and after the block. */
  from: z.string(),
  until: z.string(),
  /** The log was restored from a backup with other transaction ids, so `from` was in the future. */
  restart: z.literal(true).optional(),
  events: count,
  /** SHA-256 of keys, hashes and job hashes. */
  content: z.string(),
  /** The version of the hashes of events and jobs: see job-hash.ts. */
  job_hash: count,
});

const pruneRecord = z.strictObject({
  kind: z.literal('prune'),
  sealed_at: time,
  /** The blocks whose events were removed: first and last of each range. */
  seals: z.array(z.tuple([digits, digits])),
  events: count,
  /** Their minimum age. Null if they were removed by a version that kept no record. */
  older_than_seconds: z.number().min(0).nullable(),
});

export type EventsRecord = z.infer<typeof eventsRecord>;
export type PruneRecord = z.infer<typeof pruneRecord>;
export type SealRecord = EventsRecord | PruneRecord;

const sealRecord = z.discriminatedUnion('kind', [eventsRecord, pruneRecord]);

/** Undefined if the text is not a record. */
export function parseRecord(text: string): SealRecord | undefined {
  try {
    return sealRecord.safeParse(JSON.parse(text)).data;
  } catch {
    return undefined;
  }
}

export interface BlockContent {
  keys: readonly string[];
  hashes: Buffer;
  jobHashes: Buffer;
}

const noContent: BlockContent = { keys: [], hashes: Buffer.alloc(0), jobHashes: Buffer.alloc(0) };

export function hashContent({ keys, hashes, jobHashes }: BlockContent): string {
  return createHash('sha256')
    .update(JSON.stringify([keys, hashes.toString('hex'), jobHashes.toString('hex')]))
    .digest('hex');
}

const formatByte = Buffer.from([2]);

export function isFormat2(hash: Buffer): boolean {
  return hash.length === 33 && hash[0] === 2;
}

export function hashRecord(number: string, record: string, previousHash: Buffer): Buffer {
  const digest = createHash('sha256')
    .update(JSON.stringify(['leasehold seal 2', number, record]))
    .update(previousHash)
    .digest();
  return Buffer.concat([formatByte, digest]);
}

/** Format 1, which daemons of an earlier version write. */
export function hashBlock1(block: {
  number: string;
  snapshot: string;
  keys: readonly string[];
  hashes: Buffer;
  previousHash: Buffer;
}): Buffer {
  return createHash('sha256')
    .update(JSON.stringify([block.number, block.snapshot, block.keys, block.hashes.toString('hex')]))
    .update(block.previousHash)
    .digest();
}

/** No transaction is visible in it: the snapshot of a seal without events. */
const emptySnapshot = '1:1:';

const insertStatement = statement(`
  insert into ${tenant}.event_seals
    (number, kind, snapshot, event_keys, event_hashes, job_hashes, record, previous_hash, hash, sealed_at)
  values (:number, :kind, :snapshot, :keys, :hashes, :jobHashes, :record, :previousHash, :hash,
          timestamptz 'epoch' + :sealedAt::bigint * interval '1 microsecond')`);

/** Runs within a step of the seals follower, which excludes other daemons and stores the new end. */
export async function appendSeal(
  tx: Queryable,
  schema: Schema,
  end: ChainEnd,
  record: SealRecord,
  content: BlockContent = noContent,
): Promise<{ number: string; hash: string }> {
  const number = String(BigInt(end.number ?? '0') + 1n);
  const previousHash = Buffer.from(end.hash ?? '', 'hex');
  const text = JSON.stringify(record);
  const hash = hashRecord(number, text, previousHash);
  await insertStatement.query(tx, schema, {
    number,
    kind: record.kind,
    snapshot: record.kind === 'events' ? record.snapshot : emptySnapshot,
    keys: content.keys,
    hashes: content.hashes,
    jobHashes: content.jobHashes,
    record: text,
    previousHash,
    hash,
    sealedAt: record.sealed_at,
  });
  return { number, hash: hash.toString('hex') };
}

/** SQL: a time as text in records and hashes of jobs, independent of the session's time zone. */
export const microseconds = (column: string) => `round(extract(epoch from ${column}) * 1000000)::text`;

/**
 * A chain that an earlier version began may have pruned blocks without a record. The first seal of this format records
 * them once. From then on only records count.
 */
export async function recordFormerPrunes(tx: Queryable, schema: Schema, end: ChainEnd): Promise<ChainEnd> {
  if (end.hash === undefined || isFormat2(Buffer.from(end.hash, 'hex'))) return end;
  const [found] = await tx.query<{ recorded: boolean; now: string }>(
    `select exists (select 1 from ${schema}.event_seals where record is not null) as recorded, ${microseconds('now()')} as now`,
  );
  if (!found || found.recorded) return end;
  const ranges = await tx.query<{ first: string; last: string }>(
    `select min(number) as first, max(number) as last
       from (select number, number - row_number() over (order by number) as island
               from ${schema}.event_seals where pruned_at is not null) as pruned
      group by island order by 1`,
  );
  if (ranges.length === 0) return end;
  return appendSeal(tx, schema, end, {
    kind: 'prune',
    sealed_at: found.now,
    seals: ranges.map(({ first, last }) => [first, last]),
    events: 0,
    older_than_seconds: null,
  });
}
