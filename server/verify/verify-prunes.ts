// Verifies blocks whose events were removed: a block may only be pruned if a later seal records it, and if it had
// reached the age that retention requires.
import type { Queryable } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import { type PruneRecord, parseRecord } from '../events/seals/seal-chain.ts';
import type { Violations } from './violation.ts';

interface PrunedRange {
  first: bigint;
  last: bigint;
  seal: string;
  record: PruneRecord;
}

/** Retention never removes younger events: RETENTION_EVENT_DAYS is at least 1. */
const minAgeSeconds = 86_400;

export class PruneRecords {
  #ranges: PrunedRange[] = [];
  /** False if an earlier version, which kept no records, wrote all seals. */
  hasBegun = false;

  /** The records are verified at their position in the chain. */
  static async read(tx: Queryable, schema: Schema): Promise<PruneRecords> {
    const records = new PruneRecords();
    const rows = await tx.query<{ number: string; record: string | null }>(
      `select number, record from ${schema}.event_seals where kind = 'prune' and length(hash) = 33 order by number`,
    );
    const [begun] = await tx.query(`select 1 from ${schema}.event_seals where length(hash) = 33 limit 1`);
    records.hasBegun = begun !== undefined;
    for (const { number, record: text } of rows) {
      const record = parseRecord(text ?? '');
      if (record?.kind !== 'prune') continue;
      for (const [first, last] of record.seals) {
        records.#ranges.push({ first: BigInt(first), last: BigInt(last), seal: number, record });
      }
    }
    records.#ranges.sort((a, b) => (a.first < b.first ? -1 : a.first > b.first ? 1 : 0));
    return records;
  }

  /** The record that lists the block. Ranges of honest records do not overlap. */
  find(seal: string): PrunedRange | undefined {
    const number = BigInt(seal);
    let [low, high] = [0, this.#ranges.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if ((this.#ranges[middle] as PrunedRange).first <= number) low = middle + 1;
      else high = middle;
    }
    const range = this.#ranges[low - 1];
    return range && range.last >= number ? range : undefined;
  }
}

/** A block that is marked as pruned. `sealedAt` in microseconds. */
export function verifyPruned(
  records: PruneRecords,
  block: { seal: string; sealedAt: string; isFormat2: boolean },
  violations: Violations,
): void {
  const { seal } = block;
  const pruned = records.find(seal);
  if (!pruned || BigInt(pruned.seal) <= BigInt(seal)) {
    if (!block.isFormat2 && !records.hasBegun) return;
    violations.add({
      kind: 'prune_unrecorded',
      seal,
      detail: 'is marked as pruned, but no seal records that it was',
    });
    return;
  }
  const age = pruned.record.older_than_seconds;
  if (age === null) {
    if (!block.isFormat2) return;
    const detail = `seal ${pruned.seal} records it as pruned by an earlier version, but this version sealed it`;
    violations.add({ kind: 'prune_unrecorded', seal, detail });
  } else if (BigInt(pruned.record.sealed_at) - BigInt(block.sealedAt) < BigInt(Math.floor(age)) * 1_000_000n) {
    violations.add({
      kind: 'prune_too_early',
      seal,
      detail: `was pruned by seal ${pruned.seal} before its age of ${age} s`,
    });
  }
}

/** The record itself, at its position in the chain. */
export function verifyPruneRecord(
  seal: string,
  record: PruneRecord,
  isFirstOfFormat2: boolean,
  now: string,
  violations: Violations,
): void {
  const wrong = (kind: 'prune_unrecorded' | 'prune_too_early', detail: string) =>
    violations.add({ kind, seal, detail });
  const age = record.older_than_seconds;
  if (age === null && !isFirstOfFormat2) {
    wrong(
      'prune_unrecorded',
      'records blocks that an earlier version pruned, but is not the first seal of this version',
    );
  } else if (age !== null && age < minAgeSeconds) {
    wrong('prune_too_early', `records a removal of events after ${age} s; retention keeps them for at least a day`);
  } else if (BigInt(record.sealed_at) > BigInt(now)) {
    wrong('prune_too_early', 'records a removal in the future');
  }
}
