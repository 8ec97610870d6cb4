// Jobs that waited too long: past `expires_in_seconds`, or left behind without anything that would start them.
// A job on hold (PAUSED, ERROR) is neither: its deadlines stand still.

import { type Database, retryConflicts } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { hasNoLease, reopenLeases } from '../claim/lease.ts';
import type { Job, JobError } from '../model/job.ts';
import { jobError } from '../model/job-errors.ts';
import { applyTransition, transition } from '../transition.ts';
import { queueDueJobs } from './due.ts';

type OverdueJob = Pick<Job, 'id' | 'targetId'>;

export async function expireWaitingJobs(db: Database, schema: Schema, actor: string, limit = 200): Promise<number> {
  const overdue = await db.query<OverdueJob>(
    `select j.id, j.target_id as "targetId"
       from ${schema}.jobs j
      where ${transition('expire').guard()}
        and j.expires_at is not null
        and j.expires_at < now()
      order by j.expires_at
      limit $1`,
    [limit],
  );
  const error = jobError('EXPIRED', 'The job was not started before it expired.');
  return failJobs(db, schema, overdue, 'j.expires_at < now()', error, actor);
}

export interface OrphanScan {
  /** Jobs that were failed. */
  orphans: number;
  /** Leases that were opened again for jobs that had none. */
  reopened: string[];
  /** Where the next slice begins; undefined after the last one. */
  next: string | undefined;
}

/**
 * Reads one slice of all jobs, in id order, for what no index shows and should never be there: an owned job without an
 * active lease, a PENDING one long past its time.
 */
export async function repairOrphans(
  db: Database,
  schema: Schema,
  options: { actor: string; afterSeconds: number; leaseSeconds: number; from: string; slice?: number },
): Promise<OrphanScan> {
  const slice = options.slice ?? 5000;
  const [scanned] = await db.query<{ rows: number; last: string | null; waiting: OverdueJob[]; unleased: string[] }>(
    `with j as materialized (
       select id, target_id, status, run_at, lease_id
         from ${schema}.jobs
        where id > $1
        order by id
        limit $2)
     select (select count(*)::int from j) as rows,
            (select id from j order by id desc limit 1) as last,
            coalesce((select jsonb_agg(jsonb_build_object('id', id, 'targetId', target_id))
                        from j
                       where status = 'PENDING'
                         and run_at < now() - $3::float8 * interval '1 second'), '[]') as waiting,
            array(select j.id from j where ${hasNoLease(schema)}) as unleased`,
    [options.from, slice, options.afterSeconds],
  );
  const { rows, last, waiting, unleased } = scanned ?? { rows: 0, last: null, waiting: [], unleased: [] };
  const error = jobError('ORPHANED', 'Job timed out or was orphaned.');
  // After an outage every PENDING job is past its time: one that can still be queued is late, not orphaned.
  if (waiting.length > 0) await queueDueJobs(db, schema, options.actor, slice);
  const orphans = await failJobs(db, schema, waiting, `j.status = 'PENDING'`, error, options.actor);
  const reopened = unleased.length === 0 ? [] : await reopenLeases(db, schema, unleased, options.leaseSeconds);
  return { orphans, reopened, next: rows < slice ? undefined : (last ?? undefined) };
}

/** Fails the jobs that still satisfy `extraGuard`. */
async function failJobs(
  db: Database,
  schema: Schema,
  jobs: OverdueJob[],
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
