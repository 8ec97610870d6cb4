// Hashes of the columns of a job that no longer change: those of the enqueue, sealed with its event, and those of the
// outcome, sealed with the event that ended the job. Postgres computes them over the stored values.

import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { withoutInvalidRows } from '../../database/invalid-rows.ts';
import { statementVariants, tenant } from '../../database/sql.ts';
import { microseconds } from './seal-chain.ts';

/**
 * The version of the hashes of a seal. Version 1 hashes JSON text, version 2 the binary form of the values, which takes
 * Postgres a third of the time. Verification supports both.
 */
export type HashVersion = 1 | 2;
export const hashVersion: HashVersion = 2;

export function isHashVersion(version: number): version is HashVersion {
  return version === 1 || version === 2;
}

export const hashLength = 16;
const entryLength = 2 + hashLength;

/** SQL: the part of its job that event `e` seals; null for none. */
export const jobPart = `case when e.job_id is null then null
  when e.from_status is null and e.to_status is not null or e.type = 'job.replaced' then 'begin'
  when e.from_status is distinct from e.to_status and e.to_status in ('SUCCESS','PARTIAL','CANCELED') then 'end' end`;

/** SQL: a hash of the values. The binary form of a row has the type and length of each. */
export const rowHash2 = (values: string) => `substring(sha256(record_send(row(${values}))) from 1 for ${hashLength})`;

/** Columns that only a request that replaces the payload of a unique job changes after the insert. */
const begin = (at: (column: string) => string) =>
  `j.id, ${at('j.created_at')}, j.type, j.queue, j.target_id, j.priority, j.payload, j.author, j.on_error,
  j.max_attempts, j.constraints, j.webhook_url, j.client_request_id, j.parent_id, j.schedule_id`;

/** Columns that do not change after a job has ended for good. */
const end = (at: (column: string) => string) =>
  `j.id, j.result, j.error, j.attempt, ${at('j.started_at')}, ${at('j.finished_at')}`;

/** SQL. Written as JSON text, not built as jsonb first, because a payload can be large. */
const rowHash1 = (values: string) =>
  `substring(sha256(convert_to(json_build_array(${values})::text, 'UTF8')) from 1 for ${hashLength})`;

/** SQL: the hash of a part of job `j`. */
export function partHash(part: string, version: HashVersion): string {
  const of = (values: typeof begin) =>
    version === 1 ? rowHash1(values(microseconds)) : rowHash2(values((column) => column));
  return `case ${part} when 'begin' then ${of(begin)} when 'end' then ${of(end)} end`;
}

export interface SealedJobHash {
  /** The event's position in its block. */
  place: number;
  hash: Buffer;
}

export function encodeJobHashes(hashes: readonly SealedJobHash[]): Buffer {
  const bytes = Buffer.alloc(hashes.length * entryLength);
  hashes.forEach(({ place, hash }, i) => {
    bytes.writeUInt16BE(place, i * entryLength);
    hash.copy(bytes, i * entryLength + 2);
  });
  return bytes;
}

/** Hashes by the event's position in its block. */
export function decodeJobHashes(bytes: Buffer): Map<number, Buffer> {
  const hashes = new Map<number, Buffer>();
  for (let at = 0; at + entryLength <= bytes.length; at += entryLength) {
    hashes.set(bytes.readUInt16BE(at), bytes.subarray(at + 2, at + entryLength));
  }
  return hashes;
}

const jobsPerQuery = 500;

export interface EventOfJob {
  job_id: string | null;
  job_part: 'begin' | 'end' | null;
}

/** Returns the job hashes of a block's events, without jobs that Postgres cannot hash. */
export async function hashReadableJobs(
  tx: Queryable,
  schema: Schema,
  events: readonly EventOfJob[],
): Promise<SealedJobHash[]> {
  const hashes: SealedJobHash[] = [];
  const places = events.flatMap((event, place) => (event.job_part === null ? [] : [{ ...event, place }]));
  for (let first = 0; first < places.length; first += jobsPerQuery) {
    const batch = places.slice(first, first + jobsPerQuery);
    const read = (some: readonly JobPlace[]) => hashJobs(tx, schema, some, hashVersion);
    hashes.push(...(await withoutInvalidRows(tx, batch, read, () => {})));
  }
  return hashes;
}

export type JobPlace = EventOfJob & { place: number };

// LATERAL with its own limit: one probe of the primary key for each, never a scan of all jobs.
const hashStatement = statementVariants<{ version: HashVersion }>(
  ({ version }) => `
  select k.place, ${partHash('k.part', version)} as hash
    from unnest(:ids::uuid[], :parts::text[], :places::int[]) as k(id, part, place)
   cross join lateral (select * from ${tenant}.jobs where id = k.id limit 1) as j
   order by k.place`,
);

/** Only for jobs that exist. */
export function hashJobs(
  tx: Queryable,
  schema: Schema,
  jobs: readonly JobPlace[],
  version: HashVersion,
): Promise<SealedJobHash[]> {
  return hashStatement({ version }).query<SealedJobHash>(tx, schema, {
    ids: jobs.map((job) => job.job_id),
    parts: jobs.map((job) => job.job_part),
    places: jobs.map((job) => job.place),
  });
}
