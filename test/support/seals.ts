// The chain of seals in tests: sealed to the end, made older, or written as an earlier version wrote it. Each of them
// rebuilds all hashes, as somebody could who may write to the database.

import { fromKey } from '../../server/events/log/event.ts';
import { decodeJobHashes, encodeJobHashes, hashJobs } from '../../server/events/seals/job-hash.ts';
import { hashRows, sealEvents } from '../../server/events/seals/seal.ts';
import {
  hashBlock1,
  hashContent,
  hashRecord,
  parseRecord,
  type SealRecord,
  sealsFollower,
} from '../../server/events/seals/seal-chain.ts';
import type { TenantContext } from './postgres/database.ts';

type Where = Pick<TenantContext, 'db' | 'schema'>;

export async function sealAll({ db, schema }: Where): Promise<void> {
  while (!(await sealEvents(db, schema)).complete);
}

interface StoredSeal {
  number: string;
  snapshot: string;
  event_keys: string[];
  event_hashes: Buffer;
  job_hashes: Buffer | null;
  record: string | null;
}

/** The hashes of a block as an earlier version wrote them. */
async function hashAsBefore({ db, schema }: Where, { event_keys: keys, event_hashes, job_hashes }: StoredSeal) {
  const jobPlaces = decodeJobHashes(job_hashes ?? Buffer.alloc(0));
  return db.transaction(async (tx) => {
    const { rows } = await hashRows(tx, schema, keys.map(fromKey), 1);
    const found = keys.map((key, place) => ({ place, row: rows.get(key) }));
    const hashes = found.map(({ place, row }) => row?.hash ?? event_hashes.subarray(place * 16, place * 16 + 16));
    const jobs = found.flatMap(({ place, row }) => (row && jobPlaces.has(place) ? [{ ...row, place }] : []));
    const ofJobs = new Map((await hashJobs(tx, schema, jobs, 1)).map((one) => [one.place, one.hash]));
    const jobHashes = [...jobPlaces].map(([place, hash]) => ({ place, hash: ofJobs.get(place) ?? hash }));
    return { keys, hashes: Buffer.concat(hashes), jobHashes: encodeJobHashes(jobHashes) };
  });
}

/**
 * `change` gives the record of each seal; undefined makes it one of the first format. With another `job_hash` the
 * hashes are of that version.
 */
export async function rebuildChain(
  { db, schema }: Where,
  change: (record: SealRecord, number: number) => SealRecord | undefined,
): Promise<void> {
  const seals = await db.query<StoredSeal>(
    `select number, snapshot, event_keys, event_hashes, job_hashes, record from ${schema}.event_seals order by number`,
  );
  let previousHash = Buffer.alloc(0);
  for (const seal of seals) {
    const { number, snapshot, event_keys: keys, record: text } = seal;
    const before = text === null ? undefined : parseRecord(text);
    const record = before && change(before, Number(number));
    let content = { keys, hashes: seal.event_hashes, jobHashes: seal.job_hashes ?? Buffer.alloc(0) };
    if (before?.kind === 'events' && before.job_hash === 2 && (record?.kind !== 'events' || record.job_hash === 1)) {
      content = await hashAsBefore({ db, schema }, seal);
      if (record?.kind === 'events') record.content = hashContent(content);
    }
    const { hashes, jobHashes } = content;
    const stored = record ? JSON.stringify(record) : null;
    const hash: Buffer =
      stored === null
        ? hashBlock1({ number, snapshot, keys, hashes, previousHash })
        : hashRecord(number, stored, previousHash);
    await db.query(
      `update ${schema}.event_seals set record = $2, previous_hash = $3, hash = $4, sealed_at = case when $5::bigint is null
         then sealed_at else timestamptz 'epoch' + $5::bigint * interval '1 microsecond' end,
         event_hashes = $6, job_hashes = case when $2::text is null then null else $7::bytea end where number = $1`,
      [number, stored, previousHash, hash, record?.sealed_at ?? null, hashes, jobHashes],
    );
    previousHash = Buffer.from(hash);
    await db.query(`update ${schema}.followers set state = $2 where name = $1`, [
      sealsFollower,
      JSON.stringify({ number, hash: hash.toString('hex') }),
    ]);
  }
}

/** As if all of it had been sealed so many days earlier. */
export async function ageSeals(where: Where, days: number): Promise<void> {
  await rebuildChain(where, (record) => ({
    ...record,
    sealed_at: String(BigInt(record.sealed_at) - BigInt(days) * 86_400_000_000n),
  }));
}
