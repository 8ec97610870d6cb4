// The phases of a job: their rows, and the fenced writes of the attempt that runs them. Rows are inserted with the job
// if its type is known to have phases, otherwise when the job first starts.
import { jsonBytes, withinBytes } from '../../database/bounded-reads.ts';
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { statement, tenant } from '../../database/sql.ts';
import { withLog } from '../../events/log/transaction-ids.ts';
import { fence, type HeldJob } from '../claim/lease.ts';
import type { JobTypes } from '../enqueue/job-types.ts';
import type { Job, JobError } from '../model/job.ts';
import type { Phase, PhaseStatus, StopRequest } from '../model/job-values.ts';

const phasesOfJob = statement(`
  select name, kind, position, status, progress, message, result, error, attempt,
         started_at as "startedAt", finished_at as "finishedAt", waits_until as "waitsUntil"
    from ${tenant}.phases
   where job_id = :jobId
   order by position, name`);

/** In the order in which they run. */
export async function listPhases(db: Queryable, schema: Schema, jobId: string): Promise<Phase[]> {
  return phasesOfJob.query<Phase>(db, schema, { jobId }, 'keepPlan');
}

/** The maximum number of phases in one answer. A job may make 32,767 durable calls, each with a result. */
export const maxShownPhases = 500;
// More than a job with a few large results has. The newest phase is shown, whatever its size.
const maxShownBytes = 8_388_608;

export interface ShownPhases {
  /** The last phases, in the order in which they run. */
  phases: Phase[];
  /** The total number, if these are not all. */
  total?: number | undefined;
}

const newestWithinBytes = withinBytes(
  `
      select name, kind, position, status, progress, message, result, error, attempt, started_at, finished_at, waits_until,
             ${jsonBytes('result')} + ${jsonBytes('error')} as bytes
        from ${tenant}.phases
       where job_id = :jobId
       order by position desc, name desc
       limit ${maxShownPhases + 1}`,
  'position desc, name desc',
  maxShownBytes,
);
const newestPhases = statement(`
  select name, kind, position, status, progress, message, result, error, attempt,
         started_at as "startedAt", finished_at as "finishedAt", waits_until as "waitsUntil", found::int
    from (${newestWithinBytes}) as fitting
   order by position, name`);

const countPhases = statement(`
  select count(*)::int as total
    from ${tenant}.phases
   where job_id = :jobId`);

async function listNewest(db: Queryable, schema: Schema, jobId: string): Promise<ShownPhases> {
  const rows = await newestPhases.query<Phase & { found: number }>(db, schema, { jobId });
  const phases = rows.slice(-maxShownPhases).map(({ found: _, ...phase }) => phase);
  if (phases.length === (rows[0]?.found ?? 0)) return { phases };
  const [counted] = await countPhases.query<{ total: number }>(db, schema, { jobId });
  return { phases, total: counted?.total };
}

/** Returns the phases to show. A job that has not started shows the phases of its definition, all pending. */
export async function readPhases(
  db: Queryable,
  schema: Schema,
  job: Pick<Job, 'id' | 'type' | 'attempt' | 'finishedAt' | 'hasPhases'>,
  jobTypes?: Pick<JobTypes, 'defaults'>,
): Promise<ShownPhases> {
  const shown = job.hasPhases === false ? { phases: [] } : await listNewest(db, schema, job.id);
  if (shown.phases.length > 0 || job.attempt > 0 || job.finishedAt !== null || jobTypes === undefined) return shown;
  return { phases: pendingPhases(job, jobTypes) };
}

/** Returns the phases of a job that was just enqueued. */
export function pendingPhases(job: Pick<Job, 'type'>, jobTypes: Pick<JobTypes, 'defaults'>): Phase[] {
  return (jobTypes.defaults(job.type).phases ?? []).map((name, position) => ({
    name,
    kind: 'phase',
    position,
    status: 'pending',
    progress: 0,
    message: null,
    result: null,
    error: null,
    attempt: 0,
    startedAt: null,
    finishedAt: null,
    waitsUntil: null,
  }));
}

const insertStatement = statement(`
  insert into ${tenant}.phases (job_id, name, position)
  select job_id, name, position
    from jsonb_to_recordset(:phases::jsonb) as g(job_id uuid, name text, position smallint)
  on conflict (job_id, name) do nothing`);

export async function insertPhases(
  tx: Queryable,
  schema: Schema,
  jobs: { id: string; phases: readonly string[] }[],
): Promise<void> {
  const rows = jobs.flatMap(({ id, phases }) => phases.map((name, position) => ({ job_id: id, name, position })));
  if (rows.length > 0) await insertStatement.query(tx, schema, { phases: JSON.stringify(rows) });
}

const openStatement = statement(`
  with held as (
    select j.id
      from ${tenant}.jobs j
     where ${fence}
       for share
  ),
  opened as (
    insert into ${tenant}.phases (job_id, name, position)
    select h.id, n.name, n.position - 1
      from held h
     cross join unnest(:names::text[]) with ordinality as n(name, position)
    on conflict (job_id, name) do update
       set position = excluded.position,
           kind = excluded.kind,
           status = case when phases.kind = 'phase' then phases.status else excluded.status end
  )
  select id from held`);

/** Inserts the rows that are missing and returns all of them. Returns undefined if the lease no longer owns the job. */
export async function openPhases(
  db: Queryable,
  schema: Schema,
  { jobId, leaseId }: HeldJob,
  names: readonly string[],
): Promise<Phase[] | undefined> {
  const known = await listPhases(db, schema, jobId);
  // The rows may be durable calls from before the definition had phases. The caller refuses them; none may be
  // overwritten.
  if (known.some(({ kind }) => kind !== 'phase')) return known;
  const isComplete = names.every((name, position) =>
    known.some((p) => p.name === name && p.kind === 'phase' && p.position === position),
  );
  if (isComplete) return known;
  const rows = await openStatement.query(db, schema, { jobId, leaseId, names }, 'keepPlan');
  return rows.length === 0 ? undefined : listPhases(db, schema, jobId);
}

export interface PhaseChange {
  name: string;
  status: Exclude<PhaseStatus, 'pending' | 'cancelled'>;
  progress?: number | undefined;
  message?: string | undefined;
  result?: unknown;
  error?: JobError | undefined;
}

const saveStatement = statement(`
  with held as (
    update ${tenant}.jobs j
       set progress = coalesce(:progress::real, j.progress),
           updated_at = now()
     where ${fence}
    returning j.id, j.target_id, j.attempt, j.lease_id, j.cancel_intent, j.cancel_detail
  ),
  given as (
    select g.*, now() as at, g.status = 'running' as starts
      from jsonb_to_recordset(:changes::jsonb) as g(
        name text, status text, progress real, message text, result jsonb, error jsonb, event text, data jsonb)
  ),
  changed as (
    update ${tenant}.phases p
       set status = g.status,
           progress = coalesce(g.progress, p.progress),
           message = case when g.starts then null else coalesce(g.message, p.message) end,
           result = g.result,
           error = g.error,
           attempt = case when g.starts then p.attempt + 1 else p.attempt end,
           started_at = case when g.starts then g.at else p.started_at end,
           finished_at = case when g.starts then null else g.at end
      from held h, given g
     where p.job_id = h.id
       and p.name = g.name
       and (h.cancel_intent is null or not g.starts)
  ),
  recorded as (
    ${withLog(tenant)}
    insert into ${tenant}.events (xid, type, job_id, target_id, from_status, to_status, attempt, lease_id, actor, data)
    select log.xid, g.event, h.id, h.target_id, 'RUNNING', 'RUNNING', h.attempt, h.lease_id, :actor, g.data
      from held h
     cross join given g
     cross join log
     where h.cancel_intent is null or not g.starts
  )
  select cancel_intent as "cancelIntent", cancel_detail as "cancelDetail" from held`);

/**
 * Changes phases and the job's own progress, and records an event. If a stop was requested, no phase starts and the
 * result has the request. Returns undefined if the lease no longer owns the job.
 */
export async function savePhases(
  db: Queryable,
  schema: Schema,
  { jobId, leaseId }: HeldJob,
  changes: PhaseChange[],
  progress: number | undefined,
  actor: string,
): Promise<StopRequest | undefined> {
  const values = { jobId, leaseId, progress: progress ?? null, changes: JSON.stringify(changes.map(toEntry)), actor };
  const [saved] = await saveStatement.query<StopRequest>(db, schema, values, 'keepPlan');
  return saved;
}

const events: Record<PhaseChange['status'], string> = {
  running: 'job.phase_started',
  completed: 'job.phase_completed',
  partial: 'job.phase_completed',
  failed: 'job.phase_failed',
  skipped: 'job.phase_skipped',
};

function toEntry(change: PhaseChange): object {
  const { name, status, message, error } = change;
  return {
    ...change,
    event: events[status],
    data: { phase: name, status, ...(message !== undefined && { message }), ...(error !== undefined && { error }) },
  };
}

const endStatement = statement(`
  update ${tenant}.phases
     set status = :status,
         finished_at = now()
   where job_id = any(:jobIds::uuid[])
     and status in ('pending', 'running')`);

/**
 * Ends the open phases of jobs that a person ended: canceled with the job, or skipped because the result was supplied.
 */
export async function endOpenPhases(
  tx: Queryable,
  schema: Schema,
  jobIds: readonly string[],
  status: 'cancelled' | 'skipped',
): Promise<void> {
  await endStatement.query(tx, schema, { jobIds, status });
}
