// Every transition through the real function that makes it, and jobs in every status to try them on.
import { expect } from 'vitest';
import { cancelJob, pauseJob } from '../../../server/jobs/actions/pause-and-cancel.ts';
import { resolveJob, resumeJob } from '../../../server/jobs/actions/resume.ts';
import { claimJobs, claimRemoteJobs } from '../../../server/jobs/claim/claim.ts';
import { requeueUnstarted } from '../../../server/jobs/claim/release-claim.ts';
import { expireUnstartedJobs, queueDueJobs } from '../../../server/jobs/finish/due-jobs.ts';
import type { Outcome } from '../../../server/jobs/finish/outcome.ts';
import { requeueClaims } from '../../../server/jobs/finish/recover.ts';
import type { Job } from '../../../server/jobs/model/job.ts';
import { claimedStatuses, type Status, type TransitionName } from '../../../server/jobs/model/states.ts';
import { reportStatus } from '../../../server/scheduler/report-status.ts';
import { requestLease } from '../../../server/scheduler/request-lease.ts';
import { addJob, finish, reread } from '../jobs.ts';
import type { TenantContext } from '../postgres/database.ts';

const error = { code: 'X', message: 'x' };
const long = 3600;
const waiting = { kind: 'sleep', step: 'sleep#1', until: '2199-01-01T00:00:00.000Z' } as const;

/** The transitions of jobs that exist. */
export type Change = Exclude<TransitionName, 'enqueue' | 'schedule' | 'enqueueWaiting'>;

export function transitionVerbs(context: Pick<TenantContext, 'db' | 'schema'>) {
  /** Creates a job in a new lane with the given status, through the real functions. */
  async function jobIn(status: Status): Promise<Job> {
    const targetId = `t-${crypto.randomUUID()}`;
    const remote = (claimedStatuses as readonly Status[]).includes(status);
    const queue = crypto.randomUUID();
    const later = status === 'PENDING' ? { runAt: new Date(Date.now() + long * 1000).toISOString() } : {};
    const job = await addJob(context, { type: queue, targetId, remote, queue, ...later });
    switch (status) {
      case 'PENDING':
      case 'QUEUED':
        break;
      case 'RUNNING':
        await start(job);
        break;
      case 'CLAIMED':
        await claimRemotely(job);
        break;
      case 'PREPARING':
      case 'LEASE_PENDING':
        await claimRemotely(job);
        await reportStatus(context.db, context.schema, { jobId: job.id, state: status, claimSeconds: long });
        break;
      default:
        await end(await start(job), endings[status]);
    }
    const ready = await reread(context, job);
    expect(ready.status).toBe(status);
    return ready;
  }

  const endings: Record<'WAITING' | 'PAUSED' | 'ERROR' | 'SUCCESS' | 'PARTIAL' | 'CANCELED', Outcome> = {
    WAITING: { kind: 'suspend', waiting, leftMs: long * 1000 },
    PAUSED: { kind: 'stopPaused', message: 'p' },
    ERROR: { kind: 'fail', error },
    SUCCESS: { kind: 'complete', result: 1 },
    PARTIAL: { kind: 'completePartly', result: 1 },
    CANCELED: { kind: 'stopCanceled', message: 'c' },
  };

  async function start(job: Pick<Job, 'id' | 'type'>, owner = 'w1'): Promise<Job | undefined> {
    const request = { owner, limit: 1, leaseSeconds: long, types: [job.type] };
    return (await claimJobs(context.db, context.schema, request)).jobs[0];
  }

  async function claimRemotely(job: Pick<Job, 'queue'>): Promise<Job | undefined> {
    const request = { owner: 'r1', limit: 1, leaseSeconds: long, queue: job.queue };
    return (await claimRemoteJobs(context.db, context.schema, request)).jobs[0];
  }

  async function end(job: Job | undefined, outcome: Outcome): Promise<boolean> {
    return job !== undefined && (await finish(context, job, outcome)).accepted.has(job.id);
  }

  const by = (jobId: string) => ({ jobId, actor: 'user:ann', author: 'ann' });
  /** Of the holder that the job's row names, real or not. */
  const settles = (outcome: Outcome) => (job: Job) =>
    end({ ...job, leaseId: job.leaseId ?? crypto.randomUUID() }, outcome);

  function askForLease(job: Job, costUnits = 1) {
    return requestLease(context.db, context.schema, {
      jobId: job.id,
      workerId: job.leaseOwner ?? 'r1',
      costUnits,
      ttlSeconds: long,
      claimSeconds: long,
    });
  }

  type Verb = (job: Job) => Promise<unknown>;
  /** Makes the transition through its real verb; a refusal is an error, or a falsy answer. */
  const verbs: Record<Change, Verb> = {
    becomeDue: (job) => makeDue(job, 'PENDING'),
    wake: (job) => makeDue(job, 'WAITING'),
    becomeReady: async (job) => {
      const turn = `update ${context.schema}.jobs set waiting = '{"kind": "turn"}' where id = $1 and status = 'WAITING'`;
      await context.db.query(turn, [job.id]);
      return makeDue(job, 'WAITING');
    },
    resumeWaiting: async (job) => {
      const before = await addJob(context, { type: crypto.randomUUID() });
      const edge = `insert into ${context.schema}.dependencies (job_id, after_id) values ($1, $2)`;
      await context.db.query(edge, [job.id, before.id]);
      return resumeJob(context.db, context.schema, by(job.id));
    },
    suspend: settles({ kind: 'suspend', waiting, leftMs: long * 1000 }),
    suspendAside: settles({ kind: 'suspendAside', waiting: { ...waiting, lane: 'released' }, leftMs: long * 1000 }),
    start: (job) => start(job),
    claim: async (job) => {
      // Queued jobs are made for daemons here; make this one for remote workers.
      await context.db.query(`update ${context.schema}.jobs set remote = true where id = $1`, [job.id]);
      return claimRemotely(job);
    },
    prepare: (job) => report(job, 'PREPARING'),
    awaitLease: (job) => report(job, 'LEASE_PENDING'),
    denyLease: async (job) => {
      // No job fits into it.
      const capacity = `insert into ${context.schema}.capacities (queue, total_units) values ($1, 1) on conflict (queue) do nothing`;
      await context.db.query(capacity, [job.queue]);
      const answer = await askForLease(job, 2);
      return !answer.approved;
    },
    grantLease: (job) => askForLease(job),
    expireClaim: (job) =>
      context.db.transaction((tx) => {
        const lease = { id: job.leaseId ?? crypto.randomUUID(), owner: 'r1' };
        return requeueClaims(tx, context.schema, lease, [job], 'test');
      }),
    complete: settles({ kind: 'complete', result: 1 }),
    completePartly: settles({ kind: 'completePartly', result: 1 }),
    retry: settles({ kind: 'retry', error, delayMs: long * 1000 }),
    fail: settles({ kind: 'fail', error }),
    stopPaused: settles({ kind: 'stopPaused', message: 'p' }),
    stopCanceled: settles({ kind: 'stopCanceled', message: 'c' }),
    requeue: settles({ kind: 'requeue', reason: 'drained' }),
    recover: settles({ kind: 'recover', error }),
    recoverLater: settles({ kind: 'recoverLater', error, delayMs: long * 1000 }),
    requeueUnstarted: async (job) => {
      const expired = `update ${context.schema}.jobs set error = '{"code": "LEASE_EXPIRED", "message": "x"}' where id = $1 and status = 'ERROR'`;
      await context.db.query(expired, [job.id]);
      const leaseId = job.leaseId ?? crypto.randomUUID();
      return requeueUnstarted(context.db, context.schema, {
        leaseId,
        jobs: [job],
        actor: 'worker:w1',
        reason: 'frozen',
      });
    },
    expire: async (job) => {
      await context.db.query(`update ${context.schema}.jobs set expires_at = now() - interval '1 s' where id = $1`, [
        job.id,
      ]);
      return expireUnstartedJobs(context.db, context.schema, 'test');
    },
    pause: (job) => act(job, () => pauseJob(context.db, context.schema, by(job.id))),
    resume: (job) => resumeJob(context.db, context.schema, by(job.id)),
    resolve: (job) => resolveJob(context.db, context.schema, { ...by(job.id), result: { by: 'ann' } }),
    cancel: (job) => act(job, () => cancelJob(context.db, context.schema, by(job.id))),
  };

  /** The two transitions of time share their verb. */
  async function makeDue(job: Job, status: Status): Promise<number> {
    const due = `update ${context.schema}.jobs set run_at = now() - interval '1 s' where id = $1 and status = $2`;
    await context.db.query(due, [job.id, status]);
    return queueDueJobs(context.db, context.schema, 'test');
  }

  async function report(job: Job, state: 'PREPARING' | 'LEASE_PENDING'): Promise<unknown> {
    return reportStatus(context.db, context.schema, { jobId: job.id, state, claimSeconds: long });
  }

  /** Of a running job a pause or cancel only asks: that is not the transition. */
  async function act(_job: Job, verb: () => Promise<{ done: boolean }>): Promise<boolean> {
    return (await verb()).done;
  }

  return { jobIn, start, end, verbs, by, endings };
}
