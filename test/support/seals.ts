// The chain of seals in tests: sealed to the end, made older, or written as an earlier version wrote it. Each of them
// rebuilds all hashes, as somebody could who may write to the database.

import { sealEvents } from '../../server/events/seals/seal.ts';
import {
  hashBlock1,
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
  record: string | null;
}

/** `change` gives the record of each seal; undefined makes it one of the first format. */
export async function rebuildChain(
  { db, schema }: Where,
  change: (record: SealRecord, number: number) => SealRecord | undefined,
): Promise<void> {
  const seals = await db.query<StoredSeal>(
    `select number, snapshot, event_keys, event_hashes, record from ${schema}.event_seals order by number`,
  );
  let previousHash = Buffer.alloc(0);
  for (const { number, snapshot, event_keys: keys, event_hashes: hashes, record: text } of seals) {
    const before = text === null ? undefined : parseRecord(text);
    const record = before && change(before, Number(number));
    const stored = record ? JSON.stringify(record) : null;
    const hash: Buffer =
      stored === null
        ? hashBlock1({ number, snapshot, keys, hashes, previousHash })
        : hashRecord(number, stored, previousHash);
    await db.query(
      `update ${schema}.event_seals set record = $2, previous_hash = $3, hash = $4, sealed_at = case when $5::bigint is null
         then sealed_at else timestamptz 'epoch' + $5::bigint * interval '1 microsecond' end,
         job_hashes = case when $2::text is null then null else job_hashes end where number = $1`,
      [number, stored, previousHash, hash, record?.sealed_at ?? null],
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
