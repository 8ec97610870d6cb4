// Reads the durable calls of several jobs in one statement: for jobs that start or wake together.
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { statement, tenant } from '../../database/sql.ts';
import { fenceOfEach, type HeldJob } from '../claim/lease.ts';
import type { StopRequest } from '../model/job-values.ts';
import { type LoadedSteps, loadedColumns, type StoredStep, storedBytes } from './steps.ts';

// A job with more is read alone, so that the answer for many jobs stays small.
const maxBytesPerJob = 16_384;

// A job whose sleep has ended is locked to store that. One that another transaction has locked is left out.
const loadManyStatement = statement(`
  with due as (
    select p.job_id, p.name
      from ${tenant}.phases p
     where p.job_id = any(:jobIds::uuid[])
       and p.kind = 'sleep'
       and p.status in ('pending', 'running')
       and p.waits_until <= now()
  ),
  locked as (
    select j.id
      from ${tenant}.jobs j
     where ${fenceOfEach}
       and j.id in (select job_id from due)
       for share skip locked
  ),
  ended as (
    update ${tenant}.phases p
       set status = 'completed',
           progress = 100,
           finished_at = p.waits_until
      from due d
     where p.job_id = d.job_id
       and p.name = d.name
       and p.job_id in (select id from locked)
  ),
  sizes as (
    select p.job_id, sum(${storedBytes}) as bytes
      from ${tenant}.phases p
     where p.job_id = any(:jobIds::uuid[])
     group by p.job_id
  ),
  h as (
    select j.id, j.cancel_intent, j.cancel_detail
      from ${tenant}.jobs j
      left join sizes s on s.job_id = j.id
     where ${fenceOfEach}
       and coalesce(s.bytes, 0) <= ${maxBytesPerJob}
       and (j.id in (select id from locked) or j.id not in (select job_id from due))
  )
  select h.id as "jobId", ${loadedColumns}
    from h
    left join ${tenant}.phases p on p.job_id = h.id
   order by p.position`);

/** By job. One that is missing is to be read alone: it has much, is locked, or is no longer owned by its lease. */
export async function loadSharedSteps(
  db: Queryable,
  schema: Schema,
  held: readonly HeldJob[],
): Promise<Map<string, LoadedSteps>> {
  const leases = new Map(held.map(({ jobId, leaseId }) => [jobId, leaseId]));
  type Row = StoredStep & StopRequest & { jobId: string; name: string | null };
  const rows = await loadManyStatement.query<Row>(
    db,
    schema,
    { jobIds: [...leases.keys()], leaseIds: [...leases.values()] },
    'keepPlan',
  );
  const loaded = new Map<string, LoadedSteps>();
  for (const { jobId, cancelIntent, cancelDetail, ...step } of rows) {
    const known = loaded.get(jobId) ?? { steps: [], stop: { cancelIntent, cancelDetail } };
    loaded.set(jobId, known);
    if (step.name !== null) known.steps.push(step);
  }
  return loaded;
}
