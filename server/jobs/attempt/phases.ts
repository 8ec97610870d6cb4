// The phases of a job: their rows, and the fenced writes of whoever runs them. Rows are made with
// the job when its type is known to have phases, else when it first starts.
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import type { HeldJob } from '../claim/lease.ts';
import type { JobError } from '../model/job.ts';

export type PhaseStatus = 'pending' | 'running' | 'completed' | 'partial' | 'failed' | 'skipped' | 'cancelled';

export interface Phase {
  name: string;
  position: number;
  status: PhaseStatus;
  progress: number;
  message: string | null;
  result: unknown;
  error: JobError | null;
  /** Tries of the phase, over all attempts of the job. */
  attempt: number;
  startedAt: string | null;
  finishedAt: string | null;
}

const columns = `p.name, p.position, p.status, p.progress, p.message, p.result, p.error, p.attempt,
  p.started_at as "startedAt", p.finished_at as "finishedAt"`;

export async function listPhases(db: Queryable, schema: Schema, jobId: string): Promise<Phase[]> {
  return db.query<Phase>(`select ${columns} from ${schema}.phases p where p.job_id = $1 order by p.position, p.name`, [
    jobId,
  ]);
}

export async function insertPhases(
  tx: Queryable,
  schema: Schema,
  jobs: { id: string; phases: readonly string[] }[],
): Promise<void> {
  const rows = jobs.flatMap(({ id, phases }) => phases.map((name, position) => ({ job_id: id, name, position })));
  if (rows.length === 0) return;
  await tx.query(
    `insert into ${schema}.phases (job_id, name, position)
     select job_id, name, position from jsonb_to_recordset($1::jsonb) as g(job_id uuid, name text, position smallint)
     on conflict (job_id, name) do nothing`,
    [JSON.stringify(rows)],
  );
}

/** The rows of these phases, made where they are missing. Undefined: the lease no longer owns the job. */
export async function openPhases(
  db: Queryable,
  schema: Schema,
  held: HeldJob,
  names: readonly string[],
): Promise<Phase[] | undefined> {
  const known = await listPhases(db, schema, held.jobId);
  const isComplete = names.every((name, position) => known.some((p) => p.name === name && p.position === position));
  if (isComplete) return known;
  const rows = await db.query(
    `with held as (
       select id from ${schema}.jobs where id = $1 and lease_id = $2 and status = 'RUNNING' for share),
     made as (
       insert into ${schema}.phases (job_id, name, position)
       select h.id, n.name, n.position - 1 from held h cross join unnest($3::text[]) with ordinality as n(name, position)
       on conflict (job_id, name) do update set position = excluded.position)
     select id from held`,
    [held.jobId, held.leaseId, names],
  );
  return rows.length === 0 ? undefined : listPhases(db, schema, held.jobId);
}

export interface PhaseChange {
  name: string;
  status: Exclude<PhaseStatus, 'pending' | 'cancelled'>;
  progress?: number | undefined;
  message?: string | undefined;
  result?: unknown;
  error?: JobError | undefined;
}

/** Changes phases and the job's own progress, and tells it. False: the lease no longer owns the job. */
export async function savePhases(
  db: Queryable,
  schema: Schema,
  held: HeldJob,
  changes: PhaseChange[],
  progress: number | undefined,
  actor: string,
): Promise<boolean> {
  const rows = await db.query(
    `with held as (
       update ${schema}.jobs set progress = coalesce($3::real, progress), updated_at = now()
        where id = $1 and lease_id = $2 and status = 'RUNNING'
       returning id, target_id, attempt, lease_id),
     given as (
       select g.name, g.status, g.progress, g.message, g.result, g.error, g.event, g.data, now() as at,
              g.status = 'running' as starts
         from jsonb_to_recordset($4::jsonb)
           as g(name text, status text, progress real, message text, result jsonb, error jsonb, event text, data jsonb)),
     changed as (
       update ${schema}.phases p set status = g.status, progress = coalesce(g.progress, p.progress),
         message = case when g.starts then null else coalesce(g.message, p.message) end, result = g.result, error = g.error,
         attempt = case when g.starts then p.attempt + 1 else p.attempt end,
         started_at = case when g.starts then g.at else p.started_at end,
         finished_at = case when g.starts then null else g.at end
         from held h, given g where p.job_id = h.id and p.name = g.name),
     told as (
       insert into ${schema}.events (type, job_id, target_id, from_status, to_status, attempt, lease_id, actor, data)
       select g.event, h.id, h.target_id, 'RUNNING', 'RUNNING', h.attempt, h.lease_id, $5, g.data
         from held h cross join given g)
     select id from held`,
    [held.jobId, held.leaseId, progress ?? null, JSON.stringify(changes.map(toEntry)), actor],
  );
  return rows.length > 0;
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

/** What has not ended of a job that a person ended: cancelled with it, or skipped because the result was supplied. */
export async function endOpenPhases(
  tx: Queryable,
  schema: Schema,
  jobId: string,
  status: 'cancelled' | 'skipped',
): Promise<void> {
  await tx.query(
    `update ${schema}.phases set status = $2, finished_at = now() where job_id = $1 and status in ('pending', 'running')`,
    [jobId, status],
  );
}
