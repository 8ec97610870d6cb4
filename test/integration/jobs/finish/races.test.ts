// Bugs that other queues had with who may write a job's outcome, made regression tests here.
import { afterEach, expect, test } from 'vitest';
import { cancelJob, pauseJob } from '../../../../server/jobs/actions/pause-and-cancel.ts';
import { resumeJob } from '../../../../server/jobs/actions/resume.ts';
import { renewStatement } from '../../../../server/jobs/claim/lease.ts';
import { findExpiredLeases, recoverLease } from '../../../../server/jobs/finish/recover.ts';
import { startDaemon } from '../../../support/daemon/daemon.ts';
import { longJob, untilBegun } from '../../../support/daemon/long-job.ts';
import { eventually } from '../../../support/eventually.ts';
import { addJob, addJobs, claim, expireLease, finish, reread } from '../../../support/jobs.ts';
import { checkInvariants } from '../../../support/model/invariants.ts';
import { citusCluster } from '../../../support/postgres/citus.ts';
import { useTenantPerTest } from '../../../support/postgres/database.ts';

const context = useTenantPerTest();
const firstId = '00000000-0000-0000-0000-000000000000';
const sweep = { actor: 'sweeper:test', graceSeconds: 0, tokenLimit: 0 };
const by = (job: { id: string }) => ({ jobId: job.id, actor: 'user:ann', author: 'ann' });
afterEach(() => checkInvariants(context));

test('the sweeper does not overwrite a job that finished between its read and its write', async () => {
  for (const targetId of [undefined, 'reaped']) {
    const job = await addJob(context, { maxAttempts: 5, ...(targetId && { targetId }) });
    const { jobs, leaseId } = await claim(context);
    await expireLease(context, leaseId);
    const [lease] = await findExpiredLeases(context.db, context.schema, 0, firstId, 10);
    await finish(context, jobs[0]!, { kind: 'complete', result: 'mine' });
    expect(await recoverLease(context.db, context.schema, lease!, sweep)).toEqual({ jobs: 0, failed: 0 });
    expect(await reread(context, job)).toMatchObject({ status: 'SUCCESS', result: 'mine', attempt: 1 });
  }
});

test('the sweeper does not end a lease that was renewed between its read and its write', async () => {
  const job = await addJob(context, { maxAttempts: 5 });
  const { leaseId, jobs } = await claim(context);
  await expireLease(context, leaseId);
  const [lease] = await findExpiredLeases(context.db, context.schema, 0, firstId, 10);
  await context.db.query(`update ${context.schema}.leases set expires_at = now() + interval '1 hour' where id = $1`, [
    leaseId,
  ]);
  expect(await recoverLease(context.db, context.schema, lease!, sweep)).toEqual({ jobs: 0, failed: 0 });
  expect(await reread(context, job)).toMatchObject({ status: 'RUNNING', leaseId });
  await finish(context, jobs[0]!);
});

test('a worker that lost its lease does not complete the attempt of its successor, even under the same worker id', async () => {
  const job = await addJob(context, { targetId: 'zombie', maxAttempts: 2 });
  const zombie = await claim(context, { owner: 'pod-0' });
  await expireLease(context, zombie.leaseId);
  for (const lease of await findExpiredLeases(context.db, context.schema, 0, firstId, 10)) {
    await recoverLease(context.db, context.schema, lease, sweep);
  }
  const successor = await claim(context, { owner: 'pod-0' });
  expect(successor.jobs[0]).toMatchObject({ id: job.id, attempt: 2 });
  expect((await finish(context, zombie.jobs[0]!, { kind: 'complete', result: 'zombie' })).accepted.size).toBe(0);
  expect((await finish(context, zombie.jobs[0]!, { kind: 'requeue', reason: 'x' })).accepted.size).toBe(0);
  await finish(context, successor.jobs[0]!, { kind: 'complete', result: 'successor' });
  expect(await reread(context, job)).toMatchObject({ status: 'SUCCESS', result: 'successor' });
});

test('a renewal that arrives after the sweep does not restore the lease', async () => {
  const { db, schema } = context;
  await addJob(context, { maxAttempts: 2 });
  const { leaseId } = await claim(context);
  await expireLease(context, leaseId);
  for (const lease of await findExpiredLeases(db, schema, 0, firstId, 10)) await recoverLease(db, schema, lease, sweep);
  const read = () =>
    db.query(`select state, expires_at < now() as over from ${schema}.leases where id = $1`, [leaseId]);
  expect(await read()).toEqual([{ state: 'EXPIRED', over: true }]);
  const { text, values } = renewStatement(schema, [leaseId], 60);
  expect(await db.query(text, values)).toEqual([]);
  expect(await read()).toEqual([{ state: 'EXPIRED', over: true }]);
  await finish(context, (await claim(context)).jobs[0]!);
});

test('a restart with the same worker id hides nothing: the old leases expire and are recovered', async () => {
  const job = await addJob(context, { targetId: 'same-name', type: 'demo.echo', maxAttempts: 2 });
  const { leaseId } = await claim(context, { owner: 'pod-0', leaseSeconds: 0.2 });
  await startDaemon(context, { env: { WORKER_ID: 'pod-0' } });
  await eventually(async () => expect(await reread(context, job)).toMatchObject({ status: 'SUCCESS', attempt: 2 }));
  expect((await reread(context, job)).leaseId).not.toBe(leaseId);
});

// Citus has no triggers.
test.skipIf(citusCluster())('a full batch of leases that cannot be recovered does not delay the others', async () => {
  const stuck = 120;
  // Leases of jobs that another transaction keeps locked, more than one batch of them, and one behind them.
  const jobs = await addJobs(
    context,
    Array.from({ length: stuck + 1 }, (_, n) => ({ type: 'starve', targetId: `s-${n}`, maxAttempts: 2 })),
  );
  for (const _job of jobs) {
    const { leaseId } = await claim(context, { limit: 1, leaseSeconds: 3600 });
    await expireLease(context, leaseId);
  }
  const claimed = await Promise.all(jobs.map((job) => reread(context, job)));
  const last = claimed.reduce((a, b) => ((a.leaseId as string) > (b.leaseId as string) ? a : b));
  // Nobody knows how to end these: their lease rows refuse the update.
  const bad = claimed.filter((job) => job.id !== last.id).map((job) => job.leaseId);
  const bar = `create function ${context.schema}.refuse() returns trigger language plpgsql as $$ begin raise exception 'no'; end $$`;
  await context.db.query(bar);
  await context.db.query(
    `create trigger refuse before update on ${context.schema}.leases for each row when (old.id = any('{${bad.join(',')}}'::uuid[])) execute function ${context.schema}.refuse()`,
  );
  const daemon = await startDaemon(context, { env: { WORKER_CONCURRENCY: '1' } });
  await eventually(async () => expect((await reread(context, last)).status).not.toBe('RUNNING'));
  await daemon.stop(0);
  await context.db.query(`drop trigger refuse on ${context.schema}.leases`);
  await context.db.query(`drop function ${context.schema}.refuse()`);
});

test('a pause neither reverts to running nor keeps a slot', async () => {
  const daemon = await startDaemon(context, { env: { WORKER_CONCURRENCY: '1', TENANT_CONCURRENCY: '1' } });
  const [job] = await daemon.enqueue(
    context.tenant,
    [{ type: 'demo.sleep', payload: { seconds: 600 }, targetId: 'slot' }],
    'test',
  );
  await eventually(async () => expect((await reread(context, job!.job)).status).toBe('RUNNING'));
  await pauseJob(context.db, context.schema, by(job!.job));
  await eventually(async () => expect((await reread(context, job!.job)).status).toBe('PAUSED'));
  // The one slot is free: another job runs to its end while the paused one stays paused.
  const [other] = await daemon.enqueue(context.tenant, [{ type: 'demo.echo', payload: {} }], 'test');
  await eventually(async () => expect((await reread(context, other!.job)).status).toBe('SUCCESS'));
  expect(await reread(context, job!.job)).toMatchObject({ status: 'PAUSED', leaseOwner: null });
  expect(daemon.workers.runningCount).toBe(0);
  await cancelJob(context.db, context.schema, by(job!.job));
});

test('a paused job survives a deploy, and continues elsewhere after the resume', async () => {
  const old = await startDaemon(context, { env: { WORKER_ID: 'old' }, handlers: [longJob] });
  const job = await addJob(context, { type: longJob.type, targetId: 'deploy' });
  await untilBegun(context, job);
  await old.stop(0);
  expect((await reread(context, job)).status).toBe('PAUSED');
  await startDaemon(context, { env: { WORKER_ID: 'new' }, handlers: [longJob] });
  const behind = await addJob(context, { targetId: 'elsewhere' });
  await eventually(async () => expect((await reread(context, behind)).status).toBe('SUCCESS'));
  expect((await reread(context, job)).status).toBe('PAUSED');
  await resumeJob(context.db, context.schema, by(job));
  await eventually(async () =>
    expect(await reread(context, job)).toMatchObject({ status: 'RUNNING', leaseOwner: 'new' }),
  );
});
