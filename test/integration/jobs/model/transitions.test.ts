// Every transition of the table: allowed from each of its `from`, refused from every other status, and
// stale when the job changed hands or state between the look and the write.
import { describe, expect, test } from 'vitest';
import { resolveJob, resumeJob } from '../../../../server/jobs/actions/resume.ts';
import { cancelJob, pauseJob } from '../../../../server/jobs/actions/stop.ts';
import { claimJobs, claimRemoteJobs } from '../../../../server/jobs/claim/claim.ts';
import { enqueue } from '../../../../server/jobs/enqueue/enqueue.ts';
import { queueDueJobs } from '../../../../server/jobs/finish/due.ts';
import { expireWaitingJobs } from '../../../../server/jobs/finish/expire.ts';
import { finishAttempts } from '../../../../server/jobs/finish/finish.ts';
import type { Outcome } from '../../../../server/jobs/finish/outcome.ts';
import { requeueClaims } from '../../../../server/jobs/finish/recover.ts';
import { requeueUnstarted } from '../../../../server/jobs/finish/requeue-unstarted.ts';
import { lockTargets } from '../../../../server/jobs/lanes/lane.ts';
import type { Job } from '../../../../server/jobs/model/job.ts';
import { type Status, statuses, type TransitionName, transitions } from '../../../../server/jobs/model/states.ts';
import { requestLease } from '../../../../server/scheduler/request-lease.ts';
import { reportStatus } from '../../../../server/scheduler/status.ts';
import { addJob, eventTypes, finish, reread } from '../../../support/jobs.ts';
import { checkInvariants } from '../../../support/model/invariants.ts';
import { useTenant } from '../../../support/postgres/database.ts';

const context = useTenant();
const error = { code: 'X', message: 'x' };
const long = 3600;

/** A job of its own lane in the given status, by the real verbs. */
async function jobIn(status: Status): Promise<Job> {
  const targetId = `t-${crypto.randomUUID()}`;
  const remote = ['CLAIMED', 'PREPARING', 'LEASE_PENDING'].includes(status);
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

const endings: Record<'PAUSED' | 'ERROR' | 'SUCCESS' | 'PARTIAL' | 'CANCELED', Outcome> = {
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
const verbs: Record<Exclude<TransitionName, 'enqueue' | 'schedule'>, Verb> = {
  becomeDue: async (job) => {
    await context.db.query(`update ${context.schema}.jobs set run_at = now() - interval '1 s' where id = $1`, [job.id]);
    return queueDueJobs(context.db, context.schema, 'test');
  },
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
    context.db.transaction(async (tx) => {
      await lockTargets(tx, context.schema, [job.targetId as string]);
      const lease = { id: job.leaseId ?? crypto.randomUUID(), owner: 'r1' };
      return (await requeueClaims(tx, context.schema, lease, [job], 'test')).jobs;
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
    return requeueUnstarted(context.db, context.schema, { leaseId, jobs: [job], actor: 'worker:w1', reason: 'frozen' });
  },
  expire: async (job) => {
    await context.db.query(`update ${context.schema}.jobs set expires_at = now() - interval '1 s' where id = $1`, [
      job.id,
    ]);
    return expireWaitingJobs(context.db, context.schema, 'test');
  },
  pause: (job) => act(job, () => pauseJob(context.db, context.schema, by(job.id))),
  resume: (job) => resumeJob(context.db, context.schema, by(job.id)),
  resolve: (job) => resolveJob(context.db, context.schema, { ...by(job.id), result: { by: 'ann' } }),
  cancel: (job) => act(job, () => cancelJob(context.db, context.schema, by(job.id))),
};

async function report(job: Job, state: 'PREPARING' | 'LEASE_PENDING'): Promise<unknown> {
  return reportStatus(context.db, context.schema, { jobId: job.id, state, claimSeconds: long });
}

/** Of a running job a pause or cancel only asks: that is not the transition. */
async function act(_job: Job, verb: () => Promise<{ done: boolean }>): Promise<boolean> {
  return (await verb()).done;
}

async function expectRefusal(name: keyof typeof verbs, status: Status): Promise<void> {
  const job = await jobIn(status);
  const told = await eventTypes(context, job);
  const answer = await verbs[name](job).catch((refusal: { code?: string }) => ({ refusal }));
  expect([name, (await reread(context, job)).status]).toEqual([name, status]);
  // A report that repeats what is known is told, and changes nothing.
  if (status === transitions[name].to) return;
  const changes = (await eventTypes(context, job)).slice(told.length).filter((type) => !/_requested$/.test(type));
  expect([name, status, changes]).toEqual([name, status, []]);
  if (answer !== null && typeof answer === 'object' && 'refusal' in answer) {
    expect((answer.refusal as { code?: string }).code).toMatch(/INVALID_TRANSITION|LEASE_LOST|CONFLICT/);
  }
}

const names = Object.keys(verbs) as (keyof typeof verbs)[];

describe.each(names)('%s', (name) => {
  const { from, to, event } = transitions[name];
  const others = statuses.filter((status) => !(from as readonly Status[]).includes(status));

  test.each(from)('is allowed from %s', async (status) => {
    const job = await jobIn(status);
    expect(await verbs[name](job)).toBeTruthy();
    expect((await reread(context, job)).status).toBe(to);
    expect((await eventTypes(context, job)).at(-1)).toBe(event);
  });

  test('is refused from every other status', async () => {
    await Promise.all(others.map((status) => expectRefusal(name, status)));
  });

  test('is stale after the job was changed meanwhile', async () => {
    const status = from[0];
    const job = await jobIn(status);
    // Somebody else ends the job after we looked: through its lease if it has one, else by a cancel.
    if (status === 'RUNNING') {
      await end(job, { kind: 'requeue', reason: 'moved' });
      const successor = await start(job, 'w2');
      expect(successor?.leaseId).not.toBe(job.leaseId);
    } else await cancelJob(context.db, context.schema, by(job.id));
    const before = await reread(context, job);
    const told = await eventTypes(context, job);
    const answer = await verbs[name](job).catch(() => undefined);
    const after = await reread(context, job);
    expect([after.status, after.leaseId, after.attempt]).toEqual([before.status, before.leaseId, before.attempt]);
    expect(await eventTypes(context, job)).toEqual(told);
    // A cancel of a canceled job answers with what is.
    if (name !== 'cancel') expect(answer).toBeFalsy();
  });
});

test('enqueue makes a job QUEUED, or PENDING when its time is to come', async () => {
  const runAt = new Date(Date.now() + long * 1000).toISOString();
  const [now, later] = await enqueue(
    context.db,
    context.schema,
    [
      { type: 'a', payload: {} },
      { type: 'a', payload: {}, runAt },
    ],
    'test',
  );
  expect(now?.job.status).toBe(transitions.enqueue.to);
  expect(later?.job.status).toBe(transitions.schedule.to);
});

test('a finish under a forged lease is refused', async () => {
  const job = await jobIn('RUNNING');
  const forged = { jobId: job.id, leaseId: crypto.randomUUID(), targetId: job.targetId };
  for (const outcome of Object.values(endings)) {
    const { accepted } = await finishAttempts(context.db, context.schema, [{ ...forged, outcome }], {
      actor: 'worker:x',
    });
    expect(accepted.size).toBe(0);
  }
  expect((await reread(context, job)).status).toBe('RUNNING');
});

test('after all of this every invariant holds', async () => {
  await checkInvariants(context);
});
