// Reading jobs and their history in the shape that the scheduler API shows. Bounded and keyset-paged.
import type { Queryable } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import { type JobRow, toJob } from '../jobs/job.ts';
import { problem } from '../kernel/errors.ts';
import { eventName, type JobState, type SchedulerJob, statusesOf, timeoutCodes } from './dialect.ts';

function select(schema: Schema): string {
  return `select j.*, l.kind as lease_kind, l.owner as lease_holder, l.expires_at as lease_expires_at,
                 j.status = 'PENDING' or (j.status = 'LEASE_PENDING' and j.run_at > now()) as waits_for_retry
            from ${schema}.jobs j left join ${schema}.leases l on l.id = j.lease_id`;
}

export async function findSchedulerJob(
  db: Queryable,
  schema: Schema,
  jobId: string,
): Promise<SchedulerJob | undefined> {
  const [row] = await db.query<JobRow>(`${select(schema)} where j.id = $1`, [jobId]);
  return row && (toJob(row) as SchedulerJob);
}

export async function getSchedulerJob(db: Queryable, schema: Schema, jobId: string): Promise<SchedulerJob> {
  const job = await findSchedulerJob(db, schema, jobId);
  if (!job) throw noSuchJob();
  return job;
}

export function noSuchJob() {
  return problem('NOT_FOUND', 'There is no such job.');
}

/** In the order of `jobIds`; jobs that are gone are left out. */
export async function readSchedulerJobs(
  db: Queryable,
  schema: Schema,
  jobIds: readonly string[],
): Promise<SchedulerJob[]> {
  const rows = await db.query<JobRow>(`${select(schema)} where j.id = any($1::uuid[])`, [jobIds]);
  const byId = new Map(rows.map((row) => [row.id as string, toJob(row) as SchedulerJob]));
  return jobIds.flatMap((id) => byId.get(id) ?? []);
}

export interface JobFilter {
  state?: JobState | undefined;
  queue?: string | undefined;
  createdAfter?: string | undefined;
  createdBefore?: string | undefined;
}

/** Newest first; `after` is the last id of the page before, `next` that of this one if more follow. */
export async function listSchedulerJobs(
  db: Queryable,
  schema: Schema,
  filter: JobFilter,
  limit: number,
  after?: string,
): Promise<{ jobs: SchedulerJob[]; next: string | undefined }> {
  const conditions = ['true'];
  const values: unknown[] = [limit + 1];
  const add = (condition: (parameter: string) => string, value: unknown) => {
    values.push(value);
    conditions.push(condition(`$${values.length}`));
  };
  if (after !== undefined) add((p) => `j.id < ${p}::uuid`, after);
  if (filter.queue !== undefined) add((p) => `j.queue = ${p}`, filter.queue);
  if (filter.createdAfter !== undefined) add((p) => `j.created_at > ${p}::timestamptz`, filter.createdAfter);
  if (filter.createdBefore !== undefined) add((p) => `j.created_at < ${p}::timestamptz`, filter.createdBefore);
  if (filter.state !== undefined) {
    add((p) => `j.status = any(${p}::text[])`, statusesOf(filter.state));
    if (filter.state === 'TIMEOUT') add((p) => `j.error ->> 'code' = any(${p}::text[])`, timeoutCodes);
    if (filter.state === 'FAILED') add((p) => `coalesce(j.error ->> 'code', '') <> all(${p}::text[])`, timeoutCodes);
  }
  const rows = await db.query<JobRow>(
    `${select(schema)} where ${conditions.join(' and ')} order by j.id desc limit $1`,
    values,
  );
  const jobs = rows.slice(0, limit).map((row) => toJob(row) as SchedulerJob);
  return { jobs, next: rows.length > limit ? jobs.at(-1)?.id : undefined };
}

export interface SchedulerEvent {
  ts: string;
  type: string;
  data: Record<string, unknown>;
}

interface EventRow {
  seq: string;
  at: string;
  type: string;
  actor: string;
  attempt: number | null;
  lease_id: string | null;
  data: Record<string, unknown> | null;
}

/** Oldest first; `lastSeq` is where the next page begins. */
export async function readJobEvents(
  db: Queryable,
  schema: Schema,
  job: SchedulerJob,
  limit: number,
  afterSeq = '0',
): Promise<{ events: SchedulerEvent[]; lastSeq: string | undefined }> {
  const rows = await db.query<EventRow>(
    `select seq, at, type, actor, attempt, lease_id, data from ${schema}.events
      where job_id = $1 and seq > $2::bigint order by seq limit $3`,
    [job.id, afterSeq, limit],
  );
  return {
    events: rows.map((row) => ({ ts: row.at, type: eventName(row.type, row.data), data: dataOf(row, job) })),
    lastSeq: rows.length < limit ? undefined : rows.at(-1)?.seq,
  };
}

function dataOf(row: EventRow, job: SchedulerJob): Record<string, unknown> {
  const data: Record<string, unknown> = { ...row.data };
  if (row.type === 'job.enqueued') {
    Object.assign(data, {
      priority: job.priority,
      addon_id: job.queue,
      job_type: job.type,
      cost_units: job.costUnits,
    });
  }
  if (row.actor.startsWith('worker:')) data.worker_id = row.actor.slice('worker:'.length);
  else data.by = row.actor;
  // Before its lease is granted the row names a claim, which is nobody's business.
  if (row.lease_id !== null && row.attempt !== null && row.attempt > 0 && !beforeLease.has(row.type)) {
    data.lease_id = row.lease_id;
    data.attempt = row.attempt;
  }
  return data;
}

const beforeLease = new Set(['job.claimed', 'job.preparing', 'job.lease_pending', 'job.requeued', 'job.due']);
