// Requeues jobs that were claimed and never started, without counting the attempt. `releaseClaim` is for a claim whose
// answer was lost: it is unknown whether it took jobs, and it must not take any later. `requeueUnstarted` is for a
// lease that expired before the attempt began, because the daemon was frozen in between.
import type { Database, Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { statement, tenant } from '../../database/sql.ts';
import { retryConflicts } from '../../database/sql-errors.ts';
import { finishAttempts } from '../finish/finish.ts';
import { requeueClaims } from '../finish/recover.ts';
import type { Job } from '../model/job.ts';
import { hasCodeSql } from '../model/job-errors.ts';
import { applyTransition, transition } from '../transition.ts';

const lostAnswer = 'the answer to the claim was lost';

interface ClaimedJob {
  id: string;
  owner: string;
  targetId: string | null;
}

const claimedJobs = statement(`
  select j.id, l.owner, j.target_id as "targetId"
    from ${tenant}.leases l
    join ${tenant}.jobs j on j.id = any(l.job_ids)
   where l.id = :leaseId
     and l.state = 'ACTIVE'
     and j.lease_id = l.id
     and j.status = :status`);

/** Returns the number of requeued jobs. Afterwards the claim has no effect, even if it arrives later. */
export async function releaseClaim(
  db: Database,
  schema: Schema,
  { leaseId, kind, actor }: { leaseId: string; kind: 'local' | 'claim'; actor: string },
): Promise<number> {
  if (await reserveLeaseId(db, schema, leaseId, kind, actor)) return 0;
  const status = transition(kind === 'local' ? 'start' : 'claim').to;
  const jobs = await claimedJobs.query<ClaimedJob>(db, schema, { leaseId, status });
  if (jobs.length === 0) return kind === 'local' ? requeueExpired(db, schema, leaseId, actor) : 0;
  if (kind === 'claim') return requeueRemote(db, schema, leaseId, jobs, actor);
  const outcome = { kind: 'requeue' as const, reason: lostAnswer };
  const items = jobs.map((job) => ({ jobId: job.id, leaseId, targetId: job.targetId, outcome }));
  const { accepted } = await finishAttempts(db, schema, items, { actor, endedLeases: [leaseId] });
  return accepted.size;
}

const reserveStatement = statement(`
  insert into ${tenant}.leases (id, kind, owner, job_ids, ttl_seconds, state, expires_at, released_at)
  values (:leaseId, :kind, :actor, '{}', 0, 'RELEASED', now(), now())
  on conflict (id) do nothing
  returning id`);

/**
 * Returns true if the claim has not happened and never will. A released lease now has its id, so the claim's insert
 * conflicts and its statement fails as a whole. This waits for a claim that is being committed.
 */
async function reserveLeaseId(
  db: Queryable,
  schema: Schema,
  leaseId: string,
  kind: 'local' | 'claim',
  actor: string,
): Promise<boolean> {
  return (await reserveStatement.query(db, schema, { leaseId, kind, actor })).length > 0;
}

const expiredJobs = statement(`
  select j.id, j.target_id as "targetId"
    from ${tenant}.leases l
    join ${tenant}.jobs j on j.id = any(l.job_ids)
   where l.id = :leaseId
     and l.state = 'EXPIRED'
     and j.lease_id = l.id
     and ${transition('requeueUnstarted').guard()}`);

/** The sweeper was first and has ended the attempts as lost. */
async function requeueExpired(db: Database, schema: Schema, leaseId: string, actor: string): Promise<number> {
  const jobs = await expiredJobs.query<Pick<ClaimedJob, 'id' | 'targetId'>>(db, schema, { leaseId });
  return requeueUnstarted(db, schema, { leaseId, jobs, actor, reason: lostAnswer });
}

async function requeueRemote(
  db: Database,
  schema: Schema,
  leaseId: string,
  jobs: ClaimedJob[],
  actor: string,
): Promise<number> {
  const lease = { id: leaseId, owner: jobs[0]?.owner ?? '' };
  return retryConflicts(() => db.transaction((tx) => requeueClaims(tx, schema, lease, jobs, actor, lostAnswer)));
}

export interface UnstartedJobs {
  leaseId: string;
  jobs: readonly Pick<Job, 'id' | 'targetId'>[];
  actor: string;
  reason: string;
}

/**
 * Returns the number of requeued jobs. A job that was resumed, ended or left its lane since the sweep is not changed.
 */
export async function requeueUnstarted(
  db: Database,
  schema: Schema,
  { leaseId, jobs, actor, reason }: UnstartedJobs,
): Promise<number> {
  let count = 0;
  for (const job of jobs) {
    const ids = await retryConflicts(() =>
      db.transaction((tx) =>
        applyTransition(tx, schema, {
          name: 'requeueUnstarted',
          jobs: [job],
          leaseId,
          extraGuard: `${hasCodeSql('LEASE_EXPIRED')} and j.lane_head`,
          set: `held_since = null,
              hold = null,
              finished_at = null,
              stale_at = null,
              error = null,
              attempt = b.attempt - 1,
              expires_at = b.expires_later`,
          actor,
          data: { reason },
        }),
      ),
    );
    count += ids.length;
  }
  return count;
}
