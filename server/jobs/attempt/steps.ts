// The durable calls of a job's `run`. They share their table with phases: one row per call, fenced by the lease of the
// attempt. A later attempt reads from them which calls have ended, and when a sleep ends.
import { jsonBytes, withinBytes } from '../../database/bounded-reads.ts';
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { statement, tenant } from '../../database/sql.ts';
import { withLog } from '../../events/log/transaction-ids.ts';
import { fence, type HeldJob } from '../claim/lease.ts';
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

const loading = `
  with held as (
    select j.id, j.cancel_intent, j.cancel_detail
      from ${tenant}.jobs j
     where ${fence}
       for share
  ),
  due as (
    select p.name
      from ${tenant}.phases p
     where p.job_id = :jobId
       and p.kind = 'sleep'
       and p.status in ('pending', 'running')
       and p.waits_until <= now()
  ),
  ended as (
    update ${tenant}.phases p
       set status = 'completed',
           progress = 100,
           finished_at = p.waits_until
      from held h, due d
     where p.job_id = h.id
       and p.name = d.name
  )`;
const loaded = `${stepColumns('p')}, p.waits_until as "waitsUntil", ${leftMs}, ${stopRequest}`;

const loadStatement = statement(`${loading}
  select ${loaded}
    from held h
    left join ${tenant}.phases p on p.job_id = h.id
   order by p.position`);

const storedBytes = `${jsonBytes('p.result')} + ${jsonBytes('p.error')}`;
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
  select ${loaded}, p.found::int
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
    ? loadStatement.query<Row>(db, schema, { jobId, leaseId })
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

// On conflict the step failed before and ran again, or the answer to the same request was lost. The second case stores
// nothing.
const saveStatement = statement(`
  with held as (
    select j.id, j.target_id, j.attempt, j.lease_id, j.cancel_intent, j.cancel_detail
      from ${tenant}.jobs j
     where ${fence}
       for share
  ),
  given as (
    select g.*, now() as at, now() - g.ms * interval '1 millisecond' as started
      from jsonb_to_recordset(:ends::jsonb) as g(
        name text, position smallint, parallel boolean, status text, result jsonb, error jsonb, tries int, ms float8,
        event text, data jsonb)
  ),
  saved as (
    insert into ${tenant}.phases as p
      (job_id, name, kind, position, parallel, status, progress, result, error, attempt, started_at, finished_at)
    select h.id, g.name, 'step', g.position, g.parallel, g.status, case when g.status = 'completed' then 100 else 0 end,
           g.result, g.error, g.tries, g.started, g.at
      from held h
     cross join given g
    on conflict (job_id, name) do update
       set status = excluded.status,
           progress = excluded.progress,
           result = excluded.result,
           error = excluded.error,
           attempt = p.attempt + excluded.attempt,
           finished_at = excluded.finished_at
     where p.status = 'pending'
        or row(p.status, p.result, p.error) is distinct from row(excluded.status, excluded.result, excluded.error)
    returning p.name
  ),
  recorded as (
    ${withLog(tenant)}
    insert into ${tenant}.events (xid, type, job_id, target_id, from_status, to_status, attempt, lease_id, actor, data)
    select log.xid, g.event, h.id, h.target_id, 'RUNNING', 'RUNNING', h.attempt, h.lease_id, :actor, g.data
      from held h
     cross join given g
     cross join log
     where g.event is not null
       and g.name in (select name from saved)
  )
  select ${stopRequest} from held h`);

/**
 * Stores and records the ends of steps. Returns the stop that was requested, or undefined if the lease no longer owns
 * the job.
 */
export async function saveSteps(
  db: Queryable,
  schema: Schema,
  { jobId, leaseId }: HeldJob,
  ends: readonly StepEnd[],
  actor: string,
): Promise<StopRequest | undefined> {
  const [saved] = await saveStatement.query<StopRequest>(db, schema, {
    jobId,
    leaseId,
    ends: JSON.stringify(ends.map(toEntry)),
    actor,
  });
  return saved;
}

function toEntry(end: StepEnd): object {
  const { name, status, tries, error } = end;
  if (status === 'pending') return end;
  return { ...end, event: `job.step_${status}`, data: { step: name, tries, ...(error !== undefined && { error }) } };
}
