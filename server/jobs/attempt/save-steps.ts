// Stores the ends of durable steps, and the starts and ends of phases, under the fence of each job's lease. Every
// change is recorded in the same statement.
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { statementVariants, tenant } from '../../database/sql.ts';
import { insertEvents, whileRunning } from '../../events/log/record.ts';
import { fenceOfEach, type HeldJob } from '../claim/lease.ts';
import type { JobError, PhaseStatus, StopRequest } from '../model/job-values.ts';
import { type StepCall, stopRequest } from './steps.ts';

/** The end of a step. `pending` means that the step failed and runs again. */
export interface StepEnd extends StepCall {
  kind?: undefined;
  status: 'completed' | 'failed' | 'pending';
  result?: unknown;
  error?: JobError | undefined;
  tries: number;
  /** The duration of the step. */
  ms: number;
}

/** The start or the end of a phase. `pending` means that the phase has its place and does not run. */
export interface PhaseChange {
  kind: 'phase';
  name: string;
  position: number;
  status: Exclude<PhaseStatus, 'cancelled'>;
  message?: string | undefined;
  result?: unknown;
  error?: JobError | undefined;
  /** For a start: the number of this try, over all attempts of the job. */
  attempt?: number | undefined;
  /** The progress of the job from now on. One change of a write has it. */
  overall?: number | undefined;
}

export type StepChange = StepEnd | PhaseChange;

/** The changes of one job that are stored together. */
export interface StepWrite {
  held: HeldJob;
  changes: readonly StepChange[];
  /** For events. */
  actor: string;
}

const setProgress = `progressed as (
    update ${tenant}.jobs j
       set progress = g.overall,
           updated_at = now()
      from held h, given g, saved s
     where j.id = h.id
       and g.job_id = h.id
       and g.overall is not null
       and s.job_id = g.job_id
       and s.name = g.name
  ),`;

/**
 * On conflict: the step or phase is tried again, or ends. The same request stores nothing if it is sent twice, however
 * late the other copy arrives: a result stays, a start has the number of its try, and a place is stored once. Only the
 * answer to a question may be taken back, if the handler refuses it.
 */
const isNewChange = `(p.status not in ('completed', 'partial', 'skipped') or p.kind not in ('phase', 'step'))
       and case
             when excluded.status = 'running' then p.attempt < excluded.attempt
             when excluded.status = 'pending' and p.kind = 'phase' then p.position <> excluded.position
             else p.status = 'pending'
               or row(p.status, p.result, p.error) is distinct from row(excluded.status, excluded.result, excluded.error)
           end`;

/**
 * Changes of several jobs, each fenced by its own lease. A job that another transaction has locked is left out with
 * `skipLocked`, so that the others do not wait for it. No phase starts once a stop was requested. The tries of a step
 * are added up.
 * @internal Exported for its test.
 */
export const saveStatement = statementVariants<{ skipLocked: boolean; hasProgress: boolean }>(
  ({ skipLocked, hasProgress }) => `
  with held as (
    select j.id, j.target_id, j.attempt, j.lease_id, j.cancel_intent, j.cancel_detail
      from ${tenant}.jobs j
     where ${fenceOfEach}
       for ${hasProgress ? 'no key update' : 'share'} ${skipLocked ? 'skip locked' : ''}
  ),
  given as (
    select g.*,
           case when g.status <> 'pending' then now() - g.ms * interval '1 millisecond' end as started,
           case when g.status not in ('pending', 'running') then now() end as ended
      from jsonb_to_recordset(:changes::jsonb) as g(
        n int, job_id uuid, name text, kind text, position smallint, parallel boolean, status text, message text,
        result jsonb, error jsonb, attempt int, ms float8, overall real, event text, actor text, data jsonb)
  ),
  saved as (
    insert into ${tenant}.phases as p
      (job_id, name, kind, position, parallel, status, progress, message, result, error, attempt, started_at,
       finished_at)
    select h.id, g.name, g.kind, g.position, g.parallel, g.status,
           case when g.status in ('completed', 'partial') then 100 else 0 end,
           g.message, g.result, g.error, g.attempt, g.started, g.ended
      from held h
      join given g on g.job_id = h.id
     where h.cancel_intent is null
        or g.status <> 'running'
    on conflict (job_id, name) do update
       set position = excluded.position,
           status = excluded.status,
           progress = case when excluded.status in ('failed', 'skipped') then p.progress else excluded.progress end,
           message = case when excluded.status = 'running' then null else coalesce(excluded.message, p.message) end,
           result = excluded.result,
           error = excluded.error,
           attempt = case when excluded.status = 'running' then 0 else p.attempt end + excluded.attempt,
           started_at = case when excluded.status = 'running' then excluded.started_at else p.started_at end,
           finished_at = excluded.finished_at
     where ${isNewChange}
    returning p.job_id, p.name
  ),
  ${hasProgress ? setProgress : ''}
  recorded as (
    ${insertEvents(tenant, {
      ...whileRunning,
      source: `held h
      join given g on g.job_id = h.id
      join saved s on s.job_id = g.job_id and s.name = g.name
     where g.event is not null
     order by g.n`,
      type: 'g.event',
      jobId: 'h.id',
      attempt: 'h.attempt',
      actor: 'g.actor',
      data: 'g.data',
    })}
  )
  select h.id, ${stopRequest} from held h`,
);

/**
 * Stores the changes and records them; returns the stop that people have requested, by job. A job that is missing in
 * the answer is no longer owned by its lease, or is locked. One job is waited for; of several each has one lease.
 */
export async function saveSteps(
  db: Queryable,
  schema: Schema,
  writes: readonly StepWrite[],
): Promise<Map<string, StopRequest>> {
  const leases = new Map(writes.map(({ held }) => [held.jobId, held.leaseId]));
  const entries = writes.flatMap(({ held, changes, actor }) =>
    changes.map((change) => ({ job_id: held.jobId, actor, ...toEntry(change) })),
  );
  const hasProgress = entries.some(({ overall }) => overall !== undefined);
  const rows = await saveStatement({ skipLocked: leases.size > 1, hasProgress }).query<StopRequest & { id: string }>(
    db,
    schema,
    {
      jobIds: [...leases.keys()],
      leaseIds: [...leases.values()],
      changes: JSON.stringify(entries.map((entry, n) => ({ n, ...entry }))),
    },
    'keepPlan',
  );
  return new Map(rows.map(({ id, ...stop }) => [id, stop]));
}

const phaseEvents: Record<PhaseChange['status'], string | undefined> = {
  pending: undefined,
  running: 'job.phase_started',
  completed: 'job.phase_completed',
  partial: 'job.phase_completed',
  failed: 'job.phase_failed',
  skipped: 'job.phase_skipped',
};

function toEntry(change: StepChange): { overall?: number | undefined } {
  const { name, status, error } = change;
  if (change.kind === 'phase') {
    const { attempt = 0, message } = change;
    const data = {
      phase: name,
      status,
      ...(message !== undefined && { message }),
      ...(error !== undefined && { error }),
    };
    return { ...change, parallel: false, attempt, ms: 0, event: phaseEvents[change.status], data } as object;
  }
  const { tries, ...step } = change;
  const data = { step: name, tries, ...(error !== undefined && { error }) };
  const event = status === 'pending' ? undefined : `job.step_${status}`;
  return { ...step, kind: 'step', attempt: tries, event, data } as object;
}
