// The phases of a job as they are shown: reads, the rows that are inserted with the job if its type is known to have
// phases, and those that a person ends. The attempt that runs them stores them like steps: save-steps.ts.

import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { jsonBytes, withinBytes } from '../../database/reads/bounded-reads.ts';
import { statement, tenant } from '../../database/sql.ts';
import type { JobTypes } from '../enqueue/job-types.ts';
import type { Job } from '../model/job.ts';
import type { Phase } from '../model/job-values.ts';

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
