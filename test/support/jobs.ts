// Shortcuts to enqueue jobs and to act as a worker. A test names only the values that matter to it.
import { type Claimed, claimJobs } from '../../server/jobs/claim/claim.ts';
import { enqueue, type NewJob } from '../../server/jobs/enqueue/enqueue.ts';
import { type FinishResult, finishAttempts } from '../../server/jobs/finish/finish.ts';
import type { Outcome } from '../../server/jobs/finish/outcome.ts';
import type { Job } from '../../server/jobs/model/job.ts';
import { findJob } from '../../server/jobs/read/read-jobs.ts';
import type { TenantContext } from './postgres/database.ts';

type Where = Pick<TenantContext, 'db' | 'schema'>;

export async function addJob(where: Where, given: Partial<NewJob> = {}): Promise<Job> {
  const [enqueued] = await enqueue(where.db, where.schema, [{ type: 'demo.echo', payload: {}, ...given }], 'test');
  if (enqueued === undefined) throw new Error('nothing was enqueued');
  return enqueued.job;
}

export async function addJobs(where: Where, given: Partial<NewJob>[]): Promise<Job[]> {
  const jobs = given.map((job) => ({ type: 'demo.echo', payload: {}, ...job }));
  return (await enqueue(where.db, where.schema, jobs, 'test')).map((e) => e.job);
}

/** The lease is long: a machine that is busy with other work must not let it expire between two steps of a test. */
export async function claim(
  where: Where,
  given: { owner?: string; limit?: number; leaseSeconds?: number; types?: string[] } = {},
): Promise<Claimed> {
  return claimJobs(where.db, where.schema, { owner: 'w1', limit: 100, leaseSeconds: 3600, ...given });
}

export async function finish(
  where: Where,
  job: Job,
  outcome: Outcome = { kind: 'complete', result: null },
): Promise<FinishResult> {
  return finishAttempts(
    where.db,
    where.schema,
    [{ jobId: job.id, leaseId: job.leaseId as string, targetId: job.targetId, outcome }],
    {
      actor: `worker:${job.leaseOwner}`,
    },
  );
}

export async function reread(where: Where, job: Pick<Job, 'id'>): Promise<Job> {
  const found = await findJob(where.db, where.schema, job.id);
  if (found === undefined) throw new Error(`job ${job.id} is gone`);
  return found;
}

/** Lets the lease run out without waiting for it. */
export async function expireLease(where: Where, leaseId: string): Promise<void> {
  await where.db.query(`update ${where.schema}.leases set expires_at = now() - interval '1 hour' where id = $1`, [
    leaseId,
  ]);
}

/** Expires the leases of a worker that is gone. */
export async function expireLeasesOf(where: Where, owner: string): Promise<void> {
  await where.db.query(
    `update ${where.schema}.leases set expires_at = now() - interval '1 hour' where owner = $1 and state = 'ACTIVE'`,
    [owner],
  );
}

export async function eventTypes(where: Where, job: Pick<Job, 'id'>): Promise<string[]> {
  const rows = await where.db.query<{ type: string }>(
    `select type from ${where.schema}.events where job_id = $1 order by seq`,
    [job.id],
  );
  return rows.map((row) => row.type);
}
