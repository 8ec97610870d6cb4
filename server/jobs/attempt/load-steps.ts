// Reads the stored calls of jobs that start or wake. A sleep that has ended is stored as such on the way. A job is
// locked only for that: a first run reads, and commits nothing.

import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { withinBytes } from '../../database/reads/bounded-reads.ts';
import { statement, tenant } from '../../database/sql.ts';
import { fenceOfEach, type HeldJob } from '../claim/lease.ts';
import type { StopRequest } from '../model/job-values.ts';
import { leftMs, type StoredStep, stopRequest, storedBytes } from './steps.ts';

export interface LoadedSteps {
  /** The calls of earlier attempts, in their order. A part of them is in the order of their names. */
  steps: StoredStep[];
  /** The stop that was requested for the job. */
  stop: StopRequest;
  /** The last name of this part, if there are more calls. */
  next?: string | undefined;
}

const stepColumns =
  'p.name, p.kind, p.position, p.parallel, p.status, p.result, p.error, p.message, p.attempt, p.waits_until';
/** Over phases `p` and the job `h`. */
const loadedColumns = `h.id as "jobId", ${stepColumns} as "waitsUntil", ${leftMs}, ${stopRequest}`;

const endDueSleeps = (skipLocked: boolean) => `due as (
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
       for share ${skipLocked ? 'skip locked' : ''}
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
  )`;

const heldJobs = `h as (
    select j.id, j.cancel_intent, j.cancel_detail
      from ${tenant}.jobs j
     where ${fenceOfEach}
  )`;

const loadStatement = statement(`
  with ${endDueSleeps(false)},
  ${heldJobs}
  select ${loadedColumns}
    from h
    left join ${tenant}.phases p on p.job_id = h.id
   order by p.position`);

// Enough for small results: about 300 kB.
const maxPerPart = 1000;
const partWithinBytes = withinBytes(
  `
      select p.job_id, ${stepColumns}, ${storedBytes} as bytes
        from ${tenant}.phases p
       where p.job_id = any(:jobIds::uuid[])
         and p.name > :after
       order by p.name
       limit ${maxPerPart}`,
  'name',
);
const loadPartStatement = statement(`
  with ${endDueSleeps(false)},
  ${heldJobs}
  select ${loadedColumns}, p.found::int
    from h
    left join (${partWithinBytes}) as p on p.job_id = h.id
   order by p.name`);

// A job with more is read alone, so that the answer for many jobs stays small.
const maxSharedBytes = 16_384;

// A job whose ended sleep cannot be stored, because another transaction has locked the job, is left out.
const loadSharedStatement = statement(`
  with ${endDueSleeps(true)},
  sizes as (
    select p.job_id, sum(${storedBytes}) as bytes
      from ${tenant}.phases p
     where p.job_id = any(:jobIds::uuid[])
     group by p.job_id
  ),
  ${heldJobs},
  fitting as (
    select h.*
      from h
      left join sizes s on s.job_id = h.id
     where coalesce(s.bytes, 0) <= ${maxSharedBytes}
       and (h.id in (select id from locked) or h.id not in (select job_id from due))
  )
  select ${loadedColumns}
    from fitting h
    left join ${tenant}.phases p on p.job_id = h.id
   order by p.position`);

type Row = StoredStep & StopRequest & { jobId: string; name: string | null; found?: number };

/** Reads all calls, or those after the given name. Returns undefined if the lease no longer owns the job. */
export async function loadSteps(
  db: Queryable,
  schema: Schema,
  held: HeldJob,
  after?: string | undefined,
): Promise<LoadedSteps | undefined> {
  const one = { jobIds: [held.jobId], leaseIds: [held.leaseId] };
  const rows = await (after === undefined
    ? loadStatement.query<Row>(db, schema, one, 'keepPlan')
    : loadPartStatement.query<Row>(db, schema, { ...one, after }));
  const loaded = byJob(rows).get(held.jobId);
  const found = rows[0]?.found ?? 0;
  if (loaded !== undefined && (loaded.steps.length < found || found === maxPerPart)) {
    loaded.next = loaded.steps.at(-1)?.name;
  }
  return loaded;
}

/**
 * Reads the calls of several jobs, by job. A job that is missing must be read alone: its results are large, it is
 * locked, or its lease no longer owns it.
 */
export async function loadSharedSteps(
  db: Queryable,
  schema: Schema,
  held: readonly HeldJob[],
): Promise<Map<string, LoadedSteps>> {
  const leases = new Map(held.map(({ jobId, leaseId }) => [jobId, leaseId]));
  const many = { jobIds: [...leases.keys()], leaseIds: [...leases.values()] };
  return byJob(await loadSharedStatement.query<Row>(db, schema, many, 'keepPlan'));
}

function byJob(rows: readonly Row[]): Map<string, LoadedSteps> {
  const loaded = new Map<string, LoadedSteps>();
  for (const { jobId, cancelIntent, cancelDetail, found: _, ...step } of rows) {
    const known = loaded.get(jobId) ?? { steps: [], stop: { cancelIntent, cancelDetail } };
    loaded.set(jobId, known);
    if (step.name !== null) known.steps.push(step);
  }
  return loaded;
}
