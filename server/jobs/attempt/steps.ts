// The durable calls of a job's `run`. They share their table with phases: one row per call, fenced by the lease of the
// attempt. A later attempt reads from them which calls have ended, and when a sleep ends.
import { jsonBytes, withinBytes } from '../../database/bounded-reads.ts';
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { statement, statementVariants, tenant } from '../../database/sql.ts';
import { withLog } from '../../events/log/transaction-ids.ts';
import { fence, fenceOfEach, type HeldJob } from '../claim/lease.ts';
import type { JobError, PhaseKind, PhaseStatus, StopRequest } from '../model/job-values.ts';

export interface StoredStep {
  name: string;
  kind: PhaseKind;
  /** The position in the order of calls. */
  position: number;
  /** Another durable call of the run was open when this one was made, so its position may differ between runs. */
  parallel: boolean;
  status: PhaseStatus;
  result: unknown;
  error: JobError | null;
  /** The end of a wait, and the milliseconds until then by the database's clock. */
  waitsUntil: string | null;
  leftMs: number | null;
}

/** A durable call as the handler makes it. */
export interface StepCall {
  name: string;
  position: number;
  parallel: boolean;
}

/** The end of the wait: a time, or a duration from now by the database's clock. */
export type WaitEnd = { ms: number } | { until: string };

export interface OpenWait {
  until: string;
  leftMs: number;
}

const leftMs = 'extract(epoch from p.waits_until - now())::float8 * 1000 as "leftMs"';

const stopRequest = 'h.cancel_intent as "cancelIntent", h.cancel_detail as "cancelDetail"';

const stepColumns = (p: string) =>
  ['name', 'kind', 'position', 'parallel', 'status', 'result', 'error'].map((name) => `${p}.${name}`).join(', ');

// The job is locked only if there is something to write: a first run reads, and commits nothing.
const loading = `
  with held as (
    select j.id, j.cancel_intent, j.cancel_detail
      from ${tenant}.jobs j
     where ${fence}
  ),
  due as (
    select p.name
      from ${tenant}.phases p
     where p.job_id = :jobId
       and p.kind = 'sleep'
       and p.status in ('pending', 'running')
       and p.waits_until <= now()
  ),
  locked as (
    select j.id
      from ${tenant}.jobs j
     where ${fence}
       and exists (select 1 from due)
       for share
  ),
  ended as (
    update ${tenant}.phases p
       set status = 'completed',
           progress = 100,
           finished_at = p.waits_until
      from locked l, due d
     where p.job_id = l.id
       and p.name = d.name
  )`;
/** Over phases `p` and the job `h`. */
export const loadedColumns = `${stepColumns('p')}, p.waits_until as "waitsUntil", ${leftMs}, ${stopRequest}`;

const loadStatement = statement(`${loading}
  select ${loadedColumns}
    from held h
    left join ${tenant}.phases p on p.job_id = h.id
   order by p.position`);

/** Over phases `p`. */
export const storedBytes = `${jsonBytes('p.result')} + ${jsonBytes('p.error')}`;
// Enough for small results: about 300 kB.
const maxPerPart = 1000;
const partWithinBytes = withinBytes(
  `
      select p.job_id, ${stepColumns('p')}, p.waits_until, ${storedBytes} as bytes
        from ${tenant}.phases p
       where p.job_id = :jobId
         and p.name > :after
       order by p.name
       limit ${maxPerPart}`,
  'name',
);
const loadPartStatement = statement(`${loading}
  select ${loadedColumns}, p.found::int
    from held h
    left join (${partWithinBytes}) as p on p.job_id = h.id
   order by p.name`);

export interface LoadedSteps {
  /** The calls of earlier attempts, in their order. A part of them is in the order of their names. */
  steps: StoredStep[];
  /** The stop that was requested for the job. */
  stop: StopRequest;
  /** The last name of this part, if there are more calls. */
  next?: string | undefined;
}

/** Reads all calls, or those after the given name. Returns undefined if the lease no longer owns the job. */
export async function loadSteps(
  db: Queryable,
  schema: Schema,
  { jobId, leaseId }: HeldJob,
  after?: string | undefined,
): Promise<LoadedSteps | undefined> {
  type Row = StoredStep & StopRequest & { name: string | null; found?: number };
  const rows = await (after === undefined
    ? loadStatement.query<Row>(db, schema, { jobId, leaseId }, 'keepPlan')
    : loadPartStatement.query<Row>(db, schema, { jobId, leaseId, after }));
  const [first] = rows;
  if (first === undefined) return undefined;
  const { cancelIntent, cancelDetail, found = 0 } = first;
  const steps = rows
    .filter((row) => row.name !== null)
    .map(({ cancelIntent: _, cancelDetail: __, found: ___, ...step }) => step);
  const isCut = steps.length < found || found === maxPerPart;
  return { steps, stop: { cancelIntent, cancelDetail }, ...(isCut && { next: steps.at(-1)?.name }) };
}

const bytesStatement = statement(`
  select coalesce(sum(${storedBytes}), 0)::float8 as bytes
    from ${tenant}.phases p
   where p.job_id = :jobId`);

/** The total size of the stored calls of a job. */
export async function countStoredBytes(db: Queryable, schema: Schema, jobId: string): Promise<number> {
  const [row] = await bytesStatement.query<{ bytes: number }>(db, schema, { jobId });
  return row?.bytes ?? 0;
}

// On conflict the same call was stored and its answer was lost. Its end stays as it was.
const openSleepStatement = statement(`
  with held as (
    select j.id
      from ${tenant}.jobs j
     where ${fence}
       for share
  ),
  p as (
    insert into ${tenant}.phases (job_id, name, kind, position, parallel, status, attempt, started_at, waits_until)
    select h.id, :name, 'sleep', :position, :parallel, 'running', 1, now(),
           coalesce(:until::timestamptz, now() + :ms::float8 * interval '1 millisecond')
      from held h
    on conflict (job_id, name) do update
       set position = excluded.position
    returning waits_until
  )
  select p.waits_until as until, ${leftMs}
    from p`);

/** Stores the end of a sleep. Returns undefined if the lease no longer owns the job. */
export async function openSleep(
  db: Queryable,
  schema: Schema,
  { jobId, leaseId }: HeldJob,
  call: StepCall,
  end: WaitEnd,
): Promise<OpenWait | undefined> {
  const [row] = await openSleepStatement.query<OpenWait>(db, schema, {
    jobId,
    leaseId,
    ...call,
    until: 'until' in end ? end.until : null,
    ms: 'ms' in end ? end.ms : null,
  });
  return row;
}

/** The end of a step. `pending` means that the step failed and runs again. */
export interface StepEnd extends StepCall {
  status: 'completed' | 'failed' | 'pending';
  result?: unknown;
  error?: JobError | undefined;
  tries: number;
  /** The duration of the step. */
  ms: number;
}

/** The steps of one job that are stored together. */
export interface StepWrite {
  held: HeldJob;
  ends: readonly StepEnd[];
  /** For events. */
  actor: string;
}

/**
 * Steps of several jobs, each fenced by its own lease. A job that another transaction has locked is left out with
 * `skipLocked`, so that the others do not wait for it. On conflict: the step has failed before and ran again, or the
 * answer to the same request was lost. That stores nothing.
 * @internal Exported for its test.
 */
export const saveStatement = statementVariants<{ skipLocked: boolean }>(
  ({ skipLocked }) => `
  with held as (
    select j.id, j.target_id, j.attempt, j.lease_id, j.cancel_intent, j.cancel_detail
      from ${tenant}.jobs j
     where ${fenceOfEach}
       for share ${skipLocked ? 'skip locked' : ''}
  ),
  given as (
    select g.*, now() as at, now() - g.ms * interval '1 millisecond' as started
      from jsonb_to_recordset(:ends::jsonb) as g(
        n int, job_id uuid, name text, position smallint, parallel boolean, status text, result jsonb, error jsonb,
        tries int, ms float8, event text, actor text, data jsonb)
  ),
  saved as (
    insert into ${tenant}.phases as p
      (job_id, name, kind, position, parallel, status, progress, result, error, attempt, started_at, finished_at)
    select h.id, g.name, 'step', g.position, g.parallel, g.status, case when g.status = 'completed' then 100 else 0 end,
           g.result, g.error, g.tries, g.started, g.at
      from held h
      join given g on g.job_id = h.id
    on conflict (job_id, name) do update
       set status = excluded.status,
           progress = excluded.progress,
           result = excluded.result,
           error = excluded.error,
           attempt = p.attempt + excluded.attempt,
           finished_at = excluded.finished_at
     where p.status = 'pending'
        or row(p.status, p.result, p.error) is distinct from row(excluded.status, excluded.result, excluded.error)
    returning p.job_id, p.name
  ),
  recorded as (
    ${withLog(tenant)}
    insert into ${tenant}.events (xid, type, job_id, target_id, from_status, to_status, attempt, lease_id, actor, data)
    select log.xid, g.event, h.id, h.target_id, 'RUNNING', 'RUNNING', h.attempt, h.lease_id, g.actor, g.data
      from held h
      join given g on g.job_id = h.id
      join saved s on s.job_id = g.job_id and s.name = g.name
     cross join log
     where g.event is not null
     order by g.n
  )
  select h.id, ${stopRequest} from held h`,
);

/**
 * Stores the ends of steps, and records them; returns the stop that people have requested, by job. A job that is missing
 * in the answer is no longer owned by its lease, or is locked. One job is waited for; of several each has one lease.
 */
export async function saveSteps(
  db: Queryable,
  schema: Schema,
  writes: readonly StepWrite[],
): Promise<Map<string, StopRequest>> {
  const leases = new Map(writes.map(({ held }) => [held.jobId, held.leaseId]));
  const entries = writes.flatMap(({ held, ends, actor }) =>
    ends.map((end) => ({ job_id: held.jobId, actor, ...toEntry(end) })),
  );
  const rows = await saveStatement({ skipLocked: leases.size > 1 }).query<StopRequest & { id: string }>(
    db,
    schema,
    {
      jobIds: [...leases.keys()],
      leaseIds: [...leases.values()],
      ends: JSON.stringify(entries.map((entry, n) => ({ n, ...entry }))),
    },
    'keepPlan',
  );
  return new Map(rows.map(({ id, ...stop }) => [id, stop]));
}

function toEntry(end: StepEnd): object {
  const { name, status, tries, error } = end;
  if (status === 'pending') return end;
  return { ...end, event: `job.step_${status}`, data: { step: name, tries, ...(error !== undefined && { error }) } };
}
