// Taking back what nobody holds any more: expired leases and claims. Each lease is handled in a
// transaction of its own, re-checked under its lock, so one bad row neither blocks the others nor
// overwrites a job that finished between the look and the write.

import { type Database, type Queryable, retryConflicts } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { insertEvents } from '../../events/log/record.ts';
import { backoffMs } from '../../kernel/backoff.ts';
import { distinctTargets, lockTargets, promote } from '../lanes/lane.ts';
import { attemptsLeft, type Job, type JobRow, stoppedByUser, toJob } from '../model/job.ts';
import { become, guard, transitions } from '../model/states.ts';
import { isTimedOutSql } from '../model/timeout.ts';
import { finishAttemptsIn } from './finish.ts';
import type { Outcome } from './outcome.ts';

export interface ExpiredLease {
  id: string;
  kind: 'local' | 'claim' | 'remote';
  owner: string;
  job_ids: string[];
}

export async function findExpiredLeases(
  db: Queryable,
  schema: Schema,
  graceSeconds: number,
  after: string,
  limit: number,
): Promise<ExpiredLease[]> {
  return db.query<ExpiredLease>(
    `select id, kind, owner, job_ids from ${schema}.leases
      where state = 'ACTIVE' and expires_at < now() - $1::float8 * interval '1 second' and id > $2
      order by id limit $3`,
    [graceSeconds, after, limit],
  );
}

/** Remote leases whose attempt has run longer than its job allows. Daemons stop their own attempts themselves. */
export async function findTimedOutLeases(
  db: Queryable,
  schema: Schema,
  defaultSeconds: number,
  limit: number,
): Promise<ExpiredLease[]> {
  return db.query<ExpiredLease>(
    `select l.id, l.kind, l.owner, l.job_ids from ${schema}.leases l
       join ${schema}.jobs j on j.id = l.job_ids[1] and j.lease_id = l.id and j.status = 'RUNNING'
      where l.state = 'ACTIVE' and l.kind = 'remote' and ${isTimedOutSql('$2::float8')}
      order by l.id limit $1`,
    [limit, defaultSeconds],
  );
}

/** Ends the attempt of a timed-out remote lease; the worker's later writes are refused. */
export async function endTimedOutLease(
  db: Database,
  schema: Schema,
  lease: ExpiredLease,
  options: { actor: string; tokenLimit: number; timeoutSeconds: number },
): Promise<Recovered> {
  const decide: typeof outcomeOfLostLease = (job, owner, tokenLimit) =>
    outcomeOfTimeout(job, owner, tokenLimit, options.timeoutSeconds);
  return retryConflicts(() =>
    db.transaction(async (tx) => {
      const owned = await readOwned(tx, schema, lease);
      await lockTargets(tx, schema, distinctTargets(owned));
      const taken = await tx.query(
        `with e as (select id from ${schema}.leases where id = $1 and state = 'ACTIVE' for update skip locked)
         update ${schema}.leases l set state = 'EXPIRED', released_at = now(), release_status = 'TIMEOUT'
           from e where l.id = e.id returning l.id`,
        [lease.id],
      );
      if (taken.length === 0) return { jobs: 0, failed: 0 };
      return finishLost(tx, schema, lease, owned, options, decide);
    }),
  );
}

/** As `outcomeOfLostLease`, with the reason that the time was up. */
function outcomeOfTimeout(job: Job, owner: string, tokenLimit: number, defaultSeconds: number): Outcome {
  const outcome = outcomeOfLostLease(job, owner, tokenLimit);
  if (outcome.kind !== 'recover' && outcome.kind !== 'recoverLater' && outcome.kind !== 'fail') return outcome;
  if (outcome.error.code !== 'LEASE_EXPIRED') return outcome;
  const error = { code: 'TIMEOUT', message: `The attempt ran longer than ${job.timeoutSeconds ?? defaultSeconds} s.` };
  const again = job.retry?.codes?.includes(error.code) ?? false;
  return again ? { ...outcome, error } : { kind: 'fail', error };
}

export interface Recovered {
  /** Jobs that went to somebody else's care: retried, failed, paused, canceled or queued again. */
  jobs: number;
  failed: number;
}

/** Ends one expired lease. Does nothing if it was renewed, released or ended by another sweeper. */
export async function recoverLease(
  db: Database,
  schema: Schema,
  lease: ExpiredLease,
  options: { actor: string; graceSeconds: number; tokenLimit: number },
): Promise<Recovered> {
  return retryConflicts(() =>
    db.transaction(async (tx) => {
      const owned = await readOwned(tx, schema, lease);
      await lockTargets(tx, schema, distinctTargets(owned));
      const taken = await tx.query(
        `with e as (
           select id from ${schema}.leases
            where id = $1 and state = 'ACTIVE' and expires_at < now() - $2::float8 * interval '1 second'
              for update skip locked)
         update ${schema}.leases l set state = $3, released_at = now() from e where l.id = e.id returning l.id`,
        // Nothing was lost with a lease whose jobs have all ended: its holder only could not say so.
        [lease.id, options.graceSeconds, owned.length > 0 ? 'EXPIRED' : 'RELEASED'],
      );
      if (taken.length === 0) return { jobs: 0, failed: 0 };
      const jobs =
        lease.kind === 'claim'
          ? await requeueClaims(tx, schema, lease, owned, options.actor)
          : await finishLost(tx, schema, lease, owned, options);
      // A claim is no lease: only leases are kept as a record of who held what.
      if (lease.kind === 'claim') await tx.query(`delete from ${schema}.leases where id = $1`, [lease.id]);
      return jobs;
    }),
  );
}

async function readOwned(tx: Queryable, schema: Schema, lease: ExpiredLease): Promise<Job[]> {
  const rows = await tx.query<JobRow>(
    `select * from ${schema}.jobs where id = any($1::uuid[]) and lease_id = $2
      and status in ('CLAIMED', 'PREPARING', 'LEASE_PENDING', 'RUNNING')`,
    [lease.job_ids, lease.id],
  );
  return rows.map(toJob);
}

async function finishLost(
  tx: Queryable,
  schema: Schema,
  lease: ExpiredLease,
  jobs: Job[],
  options: { actor: string; tokenLimit: number },
  decide = outcomeOfLostLease,
): Promise<Recovered> {
  const items = jobs.map((job) => ({
    jobId: job.id,
    leaseId: lease.id,
    targetId: job.targetId,
    outcome: decide(job, lease.owner, options.tokenLimit),
  }));
  const settled = await finishAttemptsIn(tx, schema, items, { actor: options.actor });
  const failed = items.filter((i) => i.outcome.kind === 'fail' && settled.accepted.has(i.jobId)).length;
  return { jobs: settled.accepted.size, failed };
}

/** What becomes of a job whose holder went silent. Intents of people come first. */
export function outcomeOfLostLease(job: Job, owner: string, tokenLimit: number): Outcome {
  // Its handler was told to stop and did not; how that ends was decided then.
  if (job.hold?.outcome !== undefined) return job.hold.outcome as Outcome;
  const limit = job.tokenLimit ?? tokenLimit;
  if (limit > 0 && job.tokensUsed > limit) {
    return { kind: 'fail', error: { code: 'TOKEN_LIMIT', message: tokenLimitMessage(job.tokensUsed, limit) } };
  }
  if (job.cancelIntent === 'pause')
    return { kind: 'stopPaused', message: stoppedByUser.pause, by: job.cancelDetail ?? undefined };
  if (job.cancelIntent === 'cancel')
    return { kind: 'stopCanceled', message: stoppedByUser.cancel, by: job.cancelDetail ?? undefined };
  const error = {
    code: 'LEASE_EXPIRED',
    message: `The lease of ${owner} expired: attempt ${job.attempt} was lost.`,
    owner,
  };
  if (!attemptsLeft(job)) return { kind: 'fail', error };
  if (job.retry === null) return { kind: 'recover', error };
  return { kind: 'recoverLater', error, delayMs: backoffMs(job.retry, job.attempt - job.attemptFloor, Math.random()) };
}

export function tokenLimitMessage(used: number, limit: number): string {
  return `Token limit exceeded: used ${used} of ${limit} allowed.`;
}

/** Claimed jobs go back to where they stood. The jobs' targets must be locked. */
export async function requeueClaims(
  tx: Queryable,
  schema: Schema,
  lease: Pick<ExpiredLease, 'id' | 'owner'>,
  jobs: Pick<Job, 'id' | 'targetId'>[],
  actor: string,
  reason = 'claim expired',
): Promise<Recovered> {
  const rows = await tx.query(
    `with b as (
       select j.id, j.status as before_status, j.target_id is null or t.paused_at is null as head
         from ${schema}.jobs j left join ${schema}.targets t on t.id = j.target_id
        where j.id = any($1::uuid[]) and j.lease_id = $2 and ${guard('expireClaim', 'j')} for update of j),
     given_back as (
       update ${schema}.jobs j set ${become('expireClaim')}, lease_owner = null, lane_head = b.head,
         lane_rank = case when b.head then null else 1 end, updated_at = now()
         from b where j.id = b.id
       returning j.id, j.target_id, j.attempt, j.lease_id, b.before_status),
     told as (${insertEvents(schema, {
       source: 'given_back',
       type: `'${transitions.expireClaim.event}'`,
       actor: '$3',
       from: 'before_status',
       to: `'QUEUED'`,
       data: `$4::jsonb`,
     })})
     select id from given_back`,
    [jobs.map((job) => job.id), lease.id, actor, JSON.stringify({ reason, owner: lease.owner })],
  );
  await promote(tx, schema, distinctTargets(jobs));
  return { jobs: rows.length, failed: 0 };
}
