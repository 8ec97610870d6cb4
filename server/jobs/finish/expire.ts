// Jobs that waited too long: past `expires_in_seconds`, or stuck without anybody who could move them.
// A job that a person holds (PAUSED, ERROR) is neither: its deadlines stand still.
import { type Database, type Queryable, retryConflicts } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { insertEvents } from '../../events/log/record.ts';
import { hasNoLease, reopenLeases } from '../claim/reopen-lease.ts';
import { lockTargets, promote } from '../lanes/lane.ts';
import type { JobError } from '../model/job.ts';
import { become, guard, transitions } from '../model/states.ts';
import { queueDueJobs } from './due.ts';

interface Overdue {
  id: string;
  target_id: string | null;
}

export async function expireWaitingJobs(db: Database, schema: Schema, actor: string, limit = 200): Promise<number> {
  const overdue = await db.query<Overdue>(
    `select id, target_id from ${schema}.jobs
      where ${guard('expire')} and expires_at is not null and expires_at < now() order by expires_at limit $1`,
    [limit],
  );
  const error = { code: 'EXPIRED', message: 'The job was not started before it expired.' };
  return failJobs(db, schema, overdue, 'j.expires_at < now()', error, actor);
}

export interface OrphanScan {
  /** Jobs that were failed. */
  orphans: number;
  /** Leases that were opened again for jobs that had none. */
  reopened: string[];
  /** Where to go on; undefined after the last slice. */
  next: string | undefined;
}

/**
 * Looks at one slice of all jobs, in id order, for what no index shows and should never be there: an owned job
 * without an active lease, a PENDING one long past its time.
 */
export async function repairOrphans(
  db: Database,
  schema: Schema,
  options: { actor: string; afterSeconds: number; leaseSeconds: number; from: string; slice?: number },
): Promise<OrphanScan> {
  const slice = options.slice ?? 5000;
  const [scanned] = await db.query<{ rows: number; last: string | null; waiting: Overdue[]; unleased: string[] }>(
    `with j as materialized (
       select id, target_id, status, run_at, lease_id from ${schema}.jobs where id > $1 order by id limit $2)
     select (select count(*)::int from j) as rows, (select id from j order by id desc limit 1) as last,
            coalesce((select jsonb_agg(jsonb_build_object('id', id, 'target_id', target_id)) from j
                       where status = 'PENDING' and run_at < now() - $3::float8 * interval '1 second'), '[]') as waiting,
            array(select j.id from j where ${hasNoLease(schema)}) as unleased`,
    [options.from, slice, options.afterSeconds],
  );
  const { rows, last, waiting, unleased } = scanned ?? { rows: 0, last: null, waiting: [], unleased: [] };
  const error = { code: 'ORPHANED', message: 'Job timed out or was orphaned.' };
  // After an outage everything is long past its time: what can be queued is late, not orphaned.
  if (waiting.length > 0) await queueDueJobs(db, schema, options.actor, slice);
  const orphans = await failJobs(db, schema, waiting, `j.status = 'PENDING'`, error, options.actor);
  const reopened = unleased.length === 0 ? [] : await reopenLeases(db, schema, unleased, options.leaseSeconds);
  return { orphans, reopened, next: rows < slice ? undefined : (last ?? undefined) };
}

async function failJobs(
  db: Database,
  schema: Schema,
  jobs: Overdue[],
  still: string,
  error: JobError,
  actor: string,
): Promise<number> {
  if (jobs.length === 0) return 0;
  const targets = [...new Set(jobs.flatMap((job) => (job.target_id === null ? [] : [job.target_id])))].sort();
  return retryConflicts(() =>
    db.transaction(async (tx: Queryable) => {
      await lockTargets(tx, schema, targets);
      const rows = await tx.query(
        `with b as (
           select j.id, j.status as before_status, j.target_id is null as free, j.lane_head, j.on_error = 'block' as holds
             from ${schema}.jobs j where j.id = any($1::uuid[]) and ${guard('expire', 'j')} and ${still} for update of j),
         failed as (
           update ${schema}.jobs j set ${become('expire')}, finished_at = now(), held_since = now(), error = $2::jsonb, hold = null, lease_owner = null,
             cancel_requested = false, cancel_intent = null, cancel_detail = null, updated_at = now(),
             lane_head = b.free or (b.lane_head and b.holds),
             lane_rank = case when b.free or b.lane_head or not b.holds then null else 0 end
             from b where j.id = b.id
           returning j.id, j.target_id, j.attempt, j.lease_id, b.before_status),
         told as (${insertEvents(schema, {
           source: 'failed',
           type: `'${transitions.expire.event}'`,
           actor: '$3',
           from: 'before_status',
           to: `'ERROR'`,
           data: '$4::jsonb',
         })})
         select id from failed`,
        [jobs.map((job) => job.id), JSON.stringify(error), actor, JSON.stringify({ error })],
      );
      await promote(tx, schema, targets);
      return rows.length;
    }),
  );
}
