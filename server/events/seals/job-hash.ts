// Hashes of the columns of a job that no longer change: those it was enqueued with, sealed with the event that enqueued
// it, and its outcome, sealed with the event that ended it. Computed by Postgres over the stored values.

import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { withoutInvalidRows } from '../../database/invalid-rows.ts';
import { microseconds } from './seal-chain.ts';

/** Raised when the columns below change: hashes of another version are not compared. */
export const jobHashVersion = 1;

export const hashLength = 16;
const entryLength = 2 + hashLength;

/** SQL: which part of its job event `e` seals; null for none. */
export const jobPart = `case when e.job_id is null then null
  when e.from_status is null and e.to_status is not null or e.type = 'job.replaced' then 'begin'
  when e.from_status is distinct from e.to_status and e.to_status in ('SUCCESS','PARTIAL','CANCELED') then 'end' end`;

/** Columns that no statement of the product changes after the insert, but a request that replaces the payload of a unique job. */
const begin = `j.id, ${microseconds('j.created_at')}, j.type, j.queue, j.target_id, j.priority, j.payload, j.author, j.on_error,
  j.max_attempts, j.constraints, j.webhook_url, j.client_request_id, j.parent_id, j.schedule_id`;

/** Columns that do not change after a job has ended for good. */
const end = `j.id, j.result, j.error, j.attempt, ${microseconds('j.started_at')}, ${microseconds('j.finished_at')}`;

/** SQL. As JSON text, not built as jsonb first: a payload can be large. */
const shortHash = (text: string) => `substring(sha256(convert_to(${text}, 'UTF8')) from 1 for ${hashLength})`;

const partHash = (part: string) =>
  `case ${part} when 'begin' then ${shortHash(`json_build_array(${begin})::text`)}
     when 'end' then ${shortHash(`json_build_array(${end})::text`)} end`;

export interface SealedJobHash {
  /** The event's place in its block. */
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

/** By the event's place in its block. */
export function decodeJobHashes(bytes: Buffer): Map<number, Buffer> {
  const hashes = new Map<number, Buffer>();
  for (let at = 0; at + entryLength <= bytes.length; at += entryLength) {
    hashes.set(bytes.readUInt16BE(at), bytes.subarray(at + 2, at + entryLength));
  }
  return hashes;
}

// A batch of payloads of a megabyte each is hashed in a second or two.
const jobsPerQuery = 500;
// Well below the time that a statement and a transaction may take.
const defaultBudgetMs = 5000;

export interface HashJobsOptions {
  /** Leave out jobs that Postgres cannot hash, instead of failing. */
  tolerant: boolean;
  budgetMs?: number | undefined;
}

export interface EventOfJob {
  job_id: string | null;
  job_part: 'begin' | 'end' | null;
}

/**
 * The job hashes for the first `events` events of a block. Payloads can be large: a block that takes too long ends
 * early.
 */
export async function hashJobsOfEvents(
  tx: Queryable,
  schema: Schema,
  events: readonly EventOfJob[],
  { tolerant, budgetMs = defaultBudgetMs }: HashJobsOptions,
): Promise<{ hashes: SealedJobHash[]; events: number }> {
  const started = performance.now();
  const hashes: SealedJobHash[] = [];
  const places = events.flatMap((event, place) => (event.job_part === null ? [] : [{ ...event, place }]));
  for (let first = 0; first < places.length; first += jobsPerQuery) {
    if (first > 0 && performance.now() - started >= budgetMs)
      return { hashes, events: places[first]?.place ?? events.length };
    const batch = places.slice(first, first + jobsPerQuery);
    const read = (some: readonly JobPlace[]) => hashJobs(tx, schema, some);
    hashes.push(...(tolerant ? await withoutInvalidRows(tx, batch, read, () => {}) : await read(batch)));
  }
  return { hashes, events: events.length };
}

export type JobPlace = EventOfJob & { place: number };

/** For the jobs that exist. */
export function hashJobs(tx: Queryable, schema: Schema, jobs: readonly JobPlace[]): Promise<SealedJobHash[]> {
  return tx.query<SealedJobHash>(
    // LATERAL with its own limit: one probe of the primary key for each, never a scan of all jobs.
    `select k.place, ${partHash('k.part')} as hash from unnest($1::uuid[], $2::text[], $3::int[]) as k(id, part, place)
      cross join lateral (select * from ${schema}.jobs where id = k.id limit 1) as j order by k.place`,
    [jobs.map((job) => job.job_id), jobs.map((job) => job.job_part), jobs.map((job) => job.place)],
  );
}
