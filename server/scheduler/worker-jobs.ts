// Jobs for remote workers: submitting one, and reading jobs and their events, bounded and with keyset pages.

import type { Database, Queryable } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import { jsonBytes, withinBytes } from '../database/reads/bounded-reads.ts';
import { columnList, columnsOf } from '../database/reads/drizzle.ts';
import { statement, tenant } from '../database/sql.ts';
import { jobs } from '../database/tables/tenant.ts';
import { enqueue, type NewJob } from '../jobs/enqueue/enqueue.ts';
import { checkDocument, noteLimitBytes } from '../jobs/enqueue/enqueue-limits.ts';
import type { UniqueOutcome } from '../jobs/enqueue/new-job.ts';
import { type JobRow, toJob } from '../jobs/model/job.ts';
import { statusIn, timedStatuses } from '../jobs/model/states.ts';
import type { JobFilter } from '../jobs/read/filter.ts';
import { pageOfIds } from '../jobs/read/page-of-ids.ts';
import { idsWithinBytes, nextOf, summaryColumns } from '../jobs/read/read-jobs.ts';
import { problem } from '../kernel/errors.ts';
import { eventName, type JobState, type SchedulerJob, statusesOf, timeoutCodes } from './api-names.ts';

export interface Submitted {
  job: SchedulerJob;
  /** False if this is the job of an earlier request with the same client_request_id. */
  created: boolean;
  /** Set if the job holds the unique key of the request: the effect of the request on it. */
  unique: UniqueOutcome | undefined;
}

/** Any job type is accepted, because no daemon needs a handler for it. */
export async function submitJob(db: Database, schema: Schema, job: NewJob, actor: string): Promise<Submitted> {
  checkDocument(job.payload, 'payload');
  checkDocument(job.constraints, 'constraints', noteLimitBytes);
  const [enqueued] = await enqueue(db, schema, [job], actor);
  if (enqueued === undefined) throw new Error('nothing was enqueued');
  if (enqueued.kind === 'conflict') {
    throw problem('IDEMPOTENCY_CONFLICT', 'This client_request_id was used for another request.', {
      job_id: enqueued.job.id,
    });
  }
  return {
    job: await getSchedulerJob(db, schema, enqueued.job.id),
    created: enqueued.kind === 'created',
    unique: enqueued.kind === 'replayed' ? enqueued.unique : undefined,
  };
}

const withPayload = `${summaryColumns}, j.payload`;

const allColumns = columnList(jobs, columnsOf(jobs), 'j');

function selectJobs(columns: string): string {
  return `
  select ${columns}, l.kind as "leaseKind", l.owner as "leaseHolder", l.expires_at as "leaseExpiresAt",
         ${statusIn(timedStatuses, 'j.status')} or (j.status = 'LEASE_PENDING' and j.run_at > now()) as "waitsForRetry"
    from ${tenant}.jobs j
    left join ${tenant}.leases l on l.id = j.lease_id`;
}

const findStatement = statement(`${selectJobs(allColumns)}
   where j.id = :jobId`);

async function findSchedulerJob(db: Queryable, schema: Schema, jobId: string): Promise<SchedulerJob | undefined> {
  const [row] = await findStatement.query<JobRow>(db, schema, { jobId }, 'keepPlan');
  return row && (toJob(row) as SchedulerJob);
}

export async function getSchedulerJob(db: Queryable, schema: Schema, jobId: string): Promise<SchedulerJob> {
  const job = await findSchedulerJob(db, schema, jobId);
  if (!job) throw noSuchJob();
  return job;
}

const lockStatement = statement(`
  select id
    from ${tenant}.jobs
   where id = :jobId
     for update`);

/** Reads the job under the lock of its row. Both statements are sent at once. */
export async function lockSchedulerJob(tx: Queryable, schema: Schema, jobId: string): Promise<SchedulerJob> {
  const [, job] = await Promise.all([lockStatement.query(tx, schema, { jobId }), getSchedulerJob(tx, schema, jobId)]);
  return job;
}

export function noSuchJob() {
  return problem('NOT_FOUND', 'There is no such job.');
}

const readStatement = statement(`${selectJobs(withPayload)}
   where j.id = any(:jobIds::uuid[])`);

/** Reads jobs with payloads and without results, in the order of `jobIds`. Omits jobs that no longer exist. */
export async function readSchedulerJobs(
  db: Queryable,
  schema: Schema,
  jobIds: readonly string[],
): Promise<SchedulerJob[]> {
  const rows = await readStatement.query<JobRow>(db, schema, { jobIds });
  const byId = new Map(rows.map((row) => [row.id, toJob(row) as SchedulerJob]));
  return jobIds.flatMap((id) => byId.get(id) ?? []);
}

export interface SchedulerFilter extends Pick<JobFilter, 'queue' | 'createdAfter' | 'createdBefore'> {
  state?: JobState | undefined;
}

const pageStatement = statement(`${selectJobs(withPayload)}
   where j.id = any(${idsWithinBytes(tenant, ['payload'], ':ids')})
   order by j.id desc`);

/** Lists jobs, newest first. `next` is the start of the next page. */
export async function listSchedulerJobs(
  db: Queryable,
  schema: Schema,
  { state, ...filter }: SchedulerFilter,
  limit: number,
  before?: string,
): Promise<{ jobs: SchedulerJob[]; next: string | undefined }> {
  const wanted: JobFilter = { ...filter };
  if (state !== undefined) wanted.statuses = statusesOf(state);
  if (state === 'TIMEOUT') wanted.errorCodes = timeoutCodes;
  if (state === 'FAILED') wanted.otherErrorCodes = timeoutCodes;
  const { ids, next } = await pageOfIds(db, schema, wanted, { limit, before });
  if (ids.length === 0) return { jobs: [], next };
  const rows = await pageStatement.query<JobRow>(db, schema, { ids });
  return { jobs: rows.map((row) => toJob(row) as SchedulerJob), next: nextOf(ids, rows, next) };
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
  found: string;
}

const eventsStatement = statement(
  withinBytes(
    `select seq, at, type, actor, attempt, lease_id, data, ${jsonBytes('data')} as bytes
       from ${tenant}.events
      where job_id = :jobId
        and seq > :afterSeq::bigint
      order by seq
      limit :limit`,
    'seq',
  ),
);

/** Lists events, oldest first. `lastSeq` is the start of the next page. */
export async function readJobEvents(
  db: Queryable,
  schema: Schema,
  job: SchedulerJob,
  limit: number,
  afterSeq = '0',
): Promise<{ events: SchedulerEvent[]; lastSeq: string | undefined }> {
  const rows = await eventsStatement.query<EventRow>(db, schema, { jobId: job.id, afterSeq, limit });
  const isCut = Number(rows[0]?.found ?? 0) > rows.length;
  return {
    events: rows.map((row) => ({ ts: row.at, type: eventName(row.type, row.data), data: dataOf(row, job) })),
    lastSeq: rows.length < limit && !isCut ? undefined : rows.at(-1)?.seq,
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
  // Before the lease is granted the event has the id of the claim, which this API does not show.
  if (row.lease_id !== null && row.attempt !== null && row.attempt > 0 && !beforeLease.has(row.type)) {
    data.lease_id = row.lease_id;
    data.attempt = row.attempt;
  }
  return data;
}

const beforeLease = new Set(['job.claimed', 'job.preparing', 'job.lease_pending', 'job.requeued', 'job.due']);
