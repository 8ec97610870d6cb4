// Compares rows with what a block says of them: its events, and the jobs that began or ended with one of them.

import type { Queryable } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import { withoutInvalidRows } from '../database/invalid-rows.ts';
import { type Event, eventKey } from '../events/log/event.ts';
import { decodeJobHashes, hashJobs, hashLength, type JobPlace } from '../events/seals/job-hash.ts';
import { hashRows, noHash } from '../events/seals/seal.ts';
import type { Violations } from './violation.ts';

export interface StoredBlock {
  number: string;
  event_keys: string[];
  event_hashes: Buffer;
  job_hashes: Buffer | null;
}

export function fromKey(key: string): Pick<Event, 'xid' | 'seq'> {
  const [xid = '0', seq = '0'] = key.split(':');
  return { xid, seq };
}

/** The events that are as they were sealed. */
export async function verifyEventRows(
  tx: Queryable,
  schema: Schema,
  block: StoredBlock,
  violations: Violations,
): Promise<JobPlace[]> {
  const seal = block.number;
  const { rows, unreadable } = await hashRows(tx, schema, block.event_keys.map(fromKey));
  const without = new Set([...unreadable.keys()].map(eventKey));
  const intact: JobPlace[] = [];
  block.event_keys.forEach((event, place) => {
    const sealed = block.event_hashes.subarray(place * hashLength, (place + 1) * hashLength);
    const present = rows.get(event);
    if (!present && !without.has(event)) {
      violations.add({ kind: 'event_missing', event, seal, detail: 'was sealed and is gone' });
    } else if (sealed.equals(noHash)) {
      violations.add({
        kind: 'event_unreadable',
        event,
        seal,
        detail: 'no hash could be made of it when it was sealed',
      });
    } else if (!present?.hash.equals(sealed)) {
      violations.add({ kind: 'event_altered', event, seal, detail: 'is not what was sealed' });
    } else intact.push({ ...present, place });
  });
  return intact;
}

/**
 * How many job rows were compared. A job that is gone was deleted by retention, or its history is found to lack a
 * deletion.
 */
export async function verifyJobRows(
  tx: Queryable,
  schema: Schema,
  block: StoredBlock,
  intact: readonly JobPlace[],
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
    (jobs) => hashJobs(tx, schema, jobs),
    ({ place }) => report(place, 'no hash can be made of its row any more'),
  );
  for (const { place, hash } of present) {
    if (!jobHashes.get(place)?.equals(hash)) report(place, 'its row is not what was sealed with this event');
  }
  return present.length;
}
