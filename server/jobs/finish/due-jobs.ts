// Changes of jobs that are due or overdue while they are not running: queues PENDING jobs, wakes WAITING jobs, fails
// jobs that expired before they started, and repairs jobs that no index finds.
import type { Database, Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { statement, tenant } from '../../database/sql.ts';
import { retryConflicts } from '../../database/sql-errors.ts';
import { hasNoLease, reopenLeases } from '../claim/lease.ts';
import { isDependent, queueDependents } from '../flows/due-dependents.ts';
import { resolveDependencies } from '../flows/resolve-dependencies.ts';
import { distinctTargets, isDueOutOfLine, lockTargets, numberJobs } from '../lanes/lane.ts';
import type { Job, JobError } from '../model/job.ts';
import { jobError } from '../model/job-errors.ts';
import { type Status, statusIn, timedStatuses } from '../model/states.ts';
import type { WaitKind } from '../model/waiting.ts';
import { processDueQuestions } from '../questions/due-questions.ts';
import { applyTransition, transition } from '../transition.ts';

type JobInLane = Pick<Job, 'id' | 'targetId'>;

const dueStatement = statement(`
  select j.id, j.target_id as "targetId", j.status, j.waiting ->> 'kind' as "waitsFor",
         j.waiting ->> 'kind' <> 'sleep' and exists (
           select 1 from ${tenant}.questions q where q.job_id = j.id and q.status = 'open') as "hasQuestion"
    from ${tenant}.jobs j
   where ${statusIn(timedStatuses, 'j.status')}
     and j.run_at <= now()
   order by j.run_at, j.id
   limit :limit`);

/**
 * Queues up to `limit` due jobs. A retry has kept its lane, a scheduled job joins the line now, and a WAITING job
 * wakes. Returns their number; a full batch means that there may be more.
 */
export async function queueDueJobs(db: Database, schema: Schema, actor: string, limit = 500): Promise<number> {
  const due = await dueStatement.query<DueJob>(db, schema, { limit });
  const pending = due.filter((job) => job.status === 'PENDING');
  const dependents = due.filter((job) => isDependent(job.waitsFor));
  const asleep = due.filter((job) => job.status === 'WAITING' && !isDependent(job.waitsFor));
  let queued = 0;
  if (pending.length > 0) {
    queued += await retryConflicts(() => db.transaction((tx) => queueJobs(tx, schema, pending, actor)));
  }
  if (asleep.length > 0) {
    queued += await retryConflicts(() => db.transaction((tx) => wakeDueJobs(tx, schema, asleep, actor)));
  }
  if (dependents.length > 0) {
    queued += await retryConflicts(() => db.transaction((tx) => queueDependents(tx, schema, dependents, actor)));
  }
  return queued;
}

interface DueJob extends JobInLane {
  status: Status;
  waitsFor: WaitKind | null;
  /** The job has an open question, so it may be due for a reminder only. */
  hasQuestion: boolean | null;
}

/** Wakes WAITING jobs that are due, except those that are only due for a reminder. */
async function wakeDueJobs(tx: Queryable, schema: Schema, jobs: DueJob[], actor: string): Promise<number> {
  const asked = jobs.filter(({ hasQuestion }) => hasQuestion);
  let over: JobInLane[] = jobs.filter(({ hasQuestion }) => !hasQuestion);
  let waiting = new Set<string>();
  if (asked.length > 0) {
    await lockTargets(tx, schema, distinctTargets(jobs));
    // A job that another sweep has reminded since the read is not due and not locked; the code below must not wake it.
    const due = await lockDueStatement.query<JobInLane>(tx, schema, { ids: asked.map(({ id }) => id) });
    const dueIds = due.map(({ id }) => id);
    waiting = await processDueQuestions(tx, schema, dueIds, actor);
    over = [...over, ...due.filter(({ id }) => !waiting.has(id))];
  }
  const woken = over.length === 0 ? 0 : await wakeJobs(tx, schema, over, actor, 'j.run_at <= now()');
  return woken + waiting.size;
}

const lockDueStatement = statement(`
  select j.id, j.target_id as "targetId"
    from ${tenant}.jobs j
   where j.id = any(:ids::uuid[])
     and j.status = 'WAITING'
     and j.run_at <= now()
   order by j.id
     for update`);

/** Wakes WAITING jobs whose wait has ended. */
export async function wakeJobs(
  tx: Queryable,
  schema: Schema,
  jobs: JobInLane[],
  actor: string,
  extraGuard?: string,
): Promise<number> {
  const ids = await applyTransition(tx, schema, {
    name: 'wake',
    jobs,
    extraGuard,
    set: `held_since = null,
              waiting = null,
              run_at = now(),
              expires_at = b.expires_later`,
    actor,
  });
  return ids.length;
}

const dueOfLanesStatement = statement(`
  select id, target_id as "targetId"
    from ${tenant}.jobs
   where target_id = any(:targetIds::text[])
     and ${isDueOutOfLine}
   order by run_at, id
   limit :limit`);
// More than one transaction of a caller enqueues for one lane. After an outage, the rest follows in later batches.
const maxDueOfLanes = 1000;

/** Queues the due jobs of these lanes, in the caller's transaction, which has locked them. */
export async function queueDueJobsOf(
  tx: Queryable,
  schema: Schema,
  targetIds: readonly string[],
  actor: string,
): Promise<void> {
  const due = await dueOfLanesStatement.query<JobInLane>(tx, schema, { targetIds, limit: maxDueOfLanes });
  if (due.length > 0) await queueJobs(tx, schema, due, actor);
}

async function queueJobs(tx: Queryable, schema: Schema, due: JobInLane[], actor: string): Promise<number> {
  const ids = await applyTransition(tx, schema, {
    name: 'becomeDue',
    jobs: due,
    extraGuard: 'j.run_at <= now()',
    actor,
    laneNumbers: await numberJobs(tx, schema, due),
  });
  return ids.length;
}

const nextDueStatement = statement(`
  select extract(epoch from (min(run_at) - now()))::float8 * 1000 as ms
    from ${tenant}.jobs
   where ${statusIn(timedStatuses)}`);

// The delay before a due job that could not be queued is tried again. Another daemon may have locked it.
const retryDueMs = 250;

/** When to queue the next batch of due jobs, after a batch of `queued`; infinite if no job will be due. */
export async function nextBatchInMs(db: Queryable, schema: Schema, queued: number): Promise<number> {
  const [row] = await nextDueStatement.query<{ ms: number | null }>(db, schema, {});
  const nextMs = Math.max(0, row?.ms ?? Number.POSITIVE_INFINITY) + 1;
  return queued > 0 ? nextMs : Math.max(nextMs, retryDueMs);
}

const overdueStatement = statement(`
  select j.id, j.target_id as "targetId"
    from ${tenant}.jobs j
   where ${transition('expire').guard()}
     and j.expires_at is not null
     and j.expires_at < now()
   order by j.expires_at
   limit :limit`);

export async function expireUnstartedJobs(db: Database, schema: Schema, actor: string, limit = 200): Promise<number> {
  const overdue = await overdueStatement.query<JobInLane>(db, schema, { limit });
  const error = jobError('EXPIRED', 'The job was not started before it expired.');
  return failJobs(db, schema, overdue, 'j.expires_at < now()', error, actor);
}

export interface OrphanScan {
  /** The number of jobs that were queued. They may be claimed. */
  queued: number;
  /** The number of jobs that failed. */
  orphans: number;
  /** The number of leases that were opened again. */
  reopened: string[];
  /** Where the next slice begins; undefined after the last one. */
  next: string | undefined;
}

const nothing: ScannedSlice = { rows: 0, last: null, waiting: [], unleased: [], dependents: [] };

interface ScannedSlice {
  rows: number;
  last: string | null;
  waiting: JobInLane[];
  unleased: string[];
  /** Jobs that wait for other jobs. */
  dependents: string[];
}

const orphanStatement = statement(`
  with j as materialized (
    select id, target_id, status, run_at, lease_id, waiting
      from ${tenant}.jobs
     where id > :from
     order by id
     limit :slice
  )
  select (select count(*)::int from j) as rows,
         (select id from j order by id desc limit 1) as last,
         coalesce(
           (select jsonb_agg(jsonb_build_object('id', id, 'targetId', target_id))
              from j
             where status = 'PENDING'
               and run_at < now() - :afterSeconds::float8 * interval '1 second'),
           '[]') as waiting,
         array(select j.id from j where ${hasNoLease(tenant)}) as unleased,
         array(select j.id from j where j.status = 'WAITING' and j.waiting ->> 'kind' in ('children', 'after', 'turn') and j.run_at > now()) as dependents`);

/**
 * Reads one slice of all jobs, in id order, and looks for states that no index shows and that should not exist: an
 * owned job without an active lease, or a PENDING job long past its time.
 */
export async function repairOrphans(
  db: Database,
  schema: Schema,
  options: { actor: string; afterSeconds: number; leaseSeconds: number; from: string; slice?: number },
): Promise<OrphanScan> {
  const slice = options.slice ?? 5000;
  const [scanned] = await orphanStatement.query<ScannedSlice>(db, schema, {
    from: options.from,
    slice,
    afterSeconds: options.afterSeconds,
  });
  const { rows, last, waiting, unleased, dependents } = scanned ?? nothing;
  // The jobs they wait for may have ended without an event, for example after a manual change in SQL.
  const ready =
    dependents.length === 0
      ? 0
      : await db.transaction((tx) => resolveDependencies(tx, schema, { ended: [], waiting: dependents }));
  // After an outage every PENDING job is past its time. A job that can still be queued is late, not orphaned.
  const mayQueue = ready > 0 || waiting.length > 0;
  const queued = mayQueue ? await queueDueJobs(db, schema, options.actor, slice) : 0;
  const error = jobError('ORPHANED', 'Job timed out or was orphaned.');
  const orphans = await failJobs(db, schema, waiting, `j.status = 'PENDING'`, error, options.actor);
  const reopened = unleased.length === 0 ? [] : await reopenLeases(db, schema, unleased, options.leaseSeconds);
  return { queued, orphans, reopened, next: rows < slice ? undefined : (last ?? undefined) };
}

/** Fails the jobs that still satisfy `extraGuard`. */
async function failJobs(
  db: Database,
  schema: Schema,
  jobs: JobInLane[],
  extraGuard: string,
  error: JobError,
  actor: string,
): Promise<number> {
  if (jobs.length === 0) return 0;
  const ids = await retryConflicts(() =>
    db.transaction((tx) =>
      applyTransition(tx, schema, {
        name: 'expire',
        jobs,
        extraGuard,
        set: `finished_at = now(),
              held_since = now(),
              error = :error::jsonb,
              hold = null,
              lease_owner = null,
              cancel_requested = false,
              cancel_intent = null,
              cancel_detail = null`,
        values: { error: JSON.stringify(error) },
        actor,
        data: { error },
      }),
    ),
  );
  return ids.length;
}
