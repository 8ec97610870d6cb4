// The stored calls of a job: the durable calls of its `run`, or its phases. One row per call, fenced by the lease of
// the attempt. A later attempt reads from them which calls have ended, and when a sleep ends.

import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { jsonBytes } from '../../database/reads/bounded-reads.ts';
import { statement, tenant } from '../../database/sql.ts';
import { type HeldJob, lockHeld } from '../claim/lease.ts';
import type { JobError, PhaseKind, PhaseStatus } from '../model/job-values.ts';

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
  /** Of a phase: its last message, and the number of its tries over all attempts. */
  message?: string | null;
  attempt?: number;
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

/** Over phases `p`. */
export const leftMs = 'extract(epoch from p.waits_until - now())::float8 * 1000 as "leftMs"';

/** Over the job `h`. */
export const stopRequest = 'h.cancel_intent as "cancelIntent", h.cancel_detail as "cancelDetail"';

/** Over phases `p`. */
export const storedBytes = `${jsonBytes('p.result')} + ${jsonBytes('p.error')}`;

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
  with ${lockHeld()},
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
