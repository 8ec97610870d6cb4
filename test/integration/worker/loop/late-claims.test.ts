// Claims whose requests or answers are late: what was given up stays given up, and nothing starts under a lease that is
// over. No attempt is paid for what no handler ran.
import { v7 as uuidv7 } from 'uuid';
import { expect, onTestFinished, test } from 'vitest';
import { Database } from '../../../../server/database/database.ts';
import { claimJobs, claimRemoteJobs } from '../../../../server/jobs/claim/claim.ts';
import { releaseClaim } from '../../../../server/jobs/claim/release-claim.ts';
import { enqueue } from '../../../../server/jobs/enqueue/enqueue.ts';
import { finishAttempts } from '../../../../server/jobs/finish/finish.ts';
import { createLogger } from '../../../../server/kernel/logger.ts';
import { startLoop } from '../../../support/daemon/loop.ts';
import { eventually } from '../../../support/eventually.ts';
import { addJob, addJobs, claim, eventTypes, finish, reread } from '../../../support/jobs.ts';
import { checkInvariants } from '../../../support/model/invariants.ts';
import { useTenant } from '../../../support/postgres/database.ts';
import { startDelayingProxy } from '../../../support/postgres/proxies/delaying-proxy.ts';

const context = useTenant();

/** A connection through a proxy. `givenUp` awaits that a statement is kept there, and that its sender gives it up. */
async function connectThroughProxy() {
  const proxy = await startDelayingProxy(context);
  const db = new Database({ url: proxy.url, poolMax: 2, logger: createLogger('silent') });
  onTestFinished(() => db.close());
  await db.query('select 1');
  const givenUp = async (sent: Promise<unknown>) => {
    const rejected = expect(sent).rejects.toThrow('Connection terminated');
    await proxy.cutWhenHeld();
    await rejected;
  };
  return { proxy, db, givenUp };
}

async function statesOf(leaseId: string): Promise<unknown[]> {
  return context.db.query(`select kind, state, job_ids from ${context.schema}.leases where id = $1`, [leaseId]);
}

const leaseSeconds = 60;

test('a claim that arrives after it was released takes nothing', async () => {
  const { schema } = context;
  const { proxy, db, givenUp } = await connectThroughProxy();
  const job = await addJob(context, { targetId: 'late-claim' });
  const leaseId = uuidv7();
  proxy.holdRequests(leaseId);
  await givenUp(claimJobs(db, schema, { owner: 'w1', limit: 10, leaseSeconds, leaseId }));
  expect(await releaseClaim(context.db, schema, { leaseId, kind: 'local', actor: 'worker:w1' })).toBe(0);
  await proxy.deliverRequests();
  expect(await reread(context, job)).toMatchObject({ status: 'QUEUED', attempt: 0 });
  expect(await eventTypes(context, job)).toEqual(['job.enqueued']);
  expect(await statesOf(leaseId)).toEqual([{ kind: 'local', state: 'RELEASED', job_ids: [] }]);
  await finish(context, (await claim(context)).jobs[0]!);
});

test('the jobs of a claim that arrived before it was released are requeued, and its lease ends', async () => {
  const { db, schema } = context;
  const job = await addJob(context, { targetId: 'early-claim' });
  const { leaseId } = await claim(context);
  expect(await releaseClaim(db, schema, { leaseId, kind: 'local', actor: 'worker:w1' })).toBe(1);
  expect(await reread(context, job)).toMatchObject({ status: 'QUEUED', attempt: 0 });
  expect(await statesOf(leaseId)).toEqual([{ kind: 'local', state: 'RELEASED', job_ids: [job.id] }]);
  // Again, because its own answer may be lost.
  expect(await releaseClaim(db, schema, { leaseId, kind: 'local', actor: 'worker:w1' })).toBe(0);
  await finish(context, (await claim(context)).jobs[0]!);
});

test('a remote claim that arrives after it was released takes nothing; the jobs of an earlier one are requeued', async () => {
  const { schema } = context;
  const { proxy, db, givenUp } = await connectThroughProxy();
  const job = await addJob(context, { remote: true, queue: 'late-remote' });
  const request = { owner: 'r1', queue: 'late-remote', limit: 10, leaseSeconds };
  const leaseId = uuidv7();
  proxy.holdRequests(leaseId);
  await givenUp(claimRemoteJobs(db, schema, { ...request, leaseId }));
  expect(await releaseClaim(context.db, schema, { leaseId, kind: 'claim', actor: 'worker:r1' })).toBe(0);
  await proxy.deliverRequests();
  expect(await reread(context, job)).toMatchObject({ status: 'QUEUED' });
  const claimed = await claimRemoteJobs(context.db, schema, request);
  expect(await reread(context, job)).toMatchObject({ status: 'CLAIMED' });
  const known = { leaseId: claimed.leaseId, kind: 'claim' as const, actor: 'worker:r1' };
  expect(await releaseClaim(context.db, schema, known)).toBe(1);
  expect(await reread(context, job)).toMatchObject({ status: 'QUEUED' });
});

test('jobs that would start with their insert are not inserted once that claim was released', async () => {
  const { schema } = context;
  const { proxy, db, givenUp } = await connectThroughProxy();
  const leaseId = uuidv7();
  proxy.holdRequests(leaseId);
  let failed: unknown;
  const reserve = () => ({
    leaseId,
    owner: 'w1',
    leaseSeconds,
    started: () => {},
    failed: (error: unknown) => {
      failed = error;
    },
  });
  const inserted = enqueue(db, schema, [{ type: 'demo.late', payload: {} }], 'test', { reserve });
  await givenUp(inserted);
  expect(failed).toBeInstanceOf(Error);
  expect(await releaseClaim(context.db, schema, { leaseId, kind: 'local', actor: 'worker:w1' })).toBe(0);
  await proxy.deliverRequests();
  expect(await context.db.query(`select id from ${schema}.jobs where type = 'demo.late'`)).toEqual([]);
});

test('an outcome that claims the next job has no effect once that claim was released, and is written again', async () => {
  const { schema } = context;
  const { proxy, db, givenUp } = await connectThroughProxy();
  const [first, next] = await addJobs(context, [{ targetId: 'late-next' }, { targetId: 'late-next' }]);
  const { jobs, leaseId: firstLease } = await claim(context);
  const items = [
    {
      jobId: first!.id,
      leaseId: firstLease,
      targetId: 'late-next',
      outcome: { kind: 'complete' as const, result: 1 },
    },
  ];
  expect(jobs.map((job) => job.id)).toEqual([first!.id]);
  const leaseId = uuidv7();
  proxy.holdRequests(leaseId);
  const claimNext = { owner: 'w1', limit: 10, leaseSeconds, leaseId };
  const sent = finishAttempts(db, schema, items, { actor: 'worker:w1', endedLeases: [firstLease], claimNext });
  await givenUp(sent);
  expect(await releaseClaim(context.db, schema, { leaseId, kind: 'local', actor: 'worker:w1' })).toBe(0);
  await proxy.deliverRequests();
  expect(await reread(context, first!)).toMatchObject({ status: 'RUNNING' });
  expect(await reread(context, next!)).toMatchObject({ status: 'QUEUED', attempt: 0 });
  const again = await finishAttempts(context.db, schema, items, { actor: 'worker:w1', endedLeases: [firstLease] });
  expect([...again.accepted]).toEqual([first!.id]);
  expect(await statesOf(firstLease)).toEqual([{ kind: 'local', state: 'RELEASED', job_ids: [first!.id] }]);
  await finish(context, (await claim(context)).jobs[0]!);
  await checkInvariants(context);
});

async function leaseIsOver(leaseId: string): Promise<void> {
  const over = `select 1 from ${context.schema}.leases where id = $1 and expires_at < now()`;
  await eventually(async () => expect(await context.db.query(over, [leaseId])).toHaveLength(1));
}

const goneAndBack = ['job.enqueued', 'job.started', 'job.requeued', 'job.started', 'job.completed'];

test('jobs of a claim that was answered after its lease expired are requeued, and no attempt is counted', async () => {
  const { db, schema } = context;
  let claims = 0;
  const { loop, ran } = startLoop(context, {
    // Long enough for the second claim on a busy machine.
    leaseSeconds: 4,
    heartbeatSeconds: 0.2,
    sendClaim: async (_tenant, request) => {
      const claimed = await claimJobs(db, schema, request);
      if (claims++ === 0) await leaseIsOver(claimed.leaseId);
      return claimed;
    },
  });
  const jobs = await addJobs(context, [{ targetId: 'slow' }, { targetId: 'slow' }, {}]);
  loop.wake();
  await eventually(async () => {
    for (const job of jobs)
      expect(await reread(context, job)).toMatchObject({ status: 'SUCCESS', attempt: 1, error: null });
  });
  expect(await eventTypes(context, jobs[0]!)).toEqual(goneAndBack);
  expect(await eventTypes(context, jobs[2]!)).toEqual(goneAndBack);
  expect(ran.sort()).toEqual(jobs.map((job) => job.id).sort());
  await checkInvariants(context);
});
