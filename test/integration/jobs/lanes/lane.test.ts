import { expect, test } from 'vitest';
import { cancelJob, pauseJob, skipJob } from '../../../../server/jobs/actions/pause-and-cancel.ts';
import { resolveJob, resumeJob } from '../../../../server/jobs/actions/resume.ts';
import { queueDueJobs } from '../../../../server/jobs/finish/due-jobs.ts';
import { finishAttempts } from '../../../../server/jobs/finish/finish.ts';
import { findExpiredLeases, recoverLease } from '../../../../server/jobs/finish/recover.ts';
import { pauseTarget, resumeTarget } from '../../../../server/jobs/lanes/target.ts';
import { addJob, addJobs, claim, eventTypes, expireLease, finish, reread } from '../../../support/jobs.ts';
import { useTenant } from '../../../support/postgres/database.ts';

const context = useTenant();
let number = 0;
const newTarget = () => `lane-${++number}`;
const by = (jobId: string) => ({ jobId, actor: 'user:ann', author: 'ann', reason: 'test' });

test('a lane runs one job at a time, in order, and its end starts the next', async () => {
  const targetId = newTarget();
  const [a, b, c] = await addJobs(context, [{ targetId }, { targetId }, { targetId, priority: 'URGENT' }]);
  const first = await claim(context);
  expect(first.jobs.map((j) => j.id)).toEqual([a?.id]);
  expect((await claim(context)).jobs).toEqual([]);
  await finish(context, first.jobs[0]!);
  const second = await claim(context);
  expect(second.jobs.map((j) => j.id)).toEqual([c?.id]);
  await finish(context, second.jobs[0]!);
  const third = await claim(context);
  expect(third.jobs.map((j) => j.id)).toEqual([b?.id]);
  await finish(context, third.jobs[0]!);
  expect(await eventTypes(context, a!)).toEqual(['job.enqueued', 'job.started', 'job.completed']);
});

test('a failed job holds its lane until a person resumes, resolves or cancels it', async () => {
  const targetId = newTarget();
  const [a, b] = await addJobs(context, [{ targetId }, { targetId }]);
  const { jobs } = await claim(context);
  await finish(context, jobs[0]!, { kind: 'fail', error: { code: 'HANDLER_ERROR', message: 'no' } });
  expect((await claim(context)).jobs).toEqual([]);
  await resumeJob(context.db, context.schema, by(a!.id));
  const again = await claim(context);
  expect(again.jobs.map((j) => [j.id, j.attempt])).toEqual([[a!.id, 2]]);
  await finish(context, again.jobs[0]!, { kind: 'stopPaused', message: 'paused' });
  expect((await claim(context)).jobs).toEqual([]);
  await resolveJob(context.db, context.schema, { ...by(a!.id), result: { ok: 1 } });
  expect(await reread(context, a!)).toMatchObject({ status: 'SUCCESS', result: { ok: 1 }, laneHead: false });
  const next = await claim(context);
  expect(next.jobs.map((j) => j.id)).toEqual([b!.id]);
  await finish(context, next.jobs[0]!);
});

test('a job paused before its turn holds the lane when its turn comes; skip releases it', async () => {
  const targetId = newTarget();
  const [a, b, c] = await addJobs(context, [{ targetId }, { targetId, priority: 'HIGH' }, { targetId }]);
  const { jobs } = await claim(context);
  expect(jobs[0]?.id).toBe(a!.id);
  await pauseJob(context.db, context.schema, by(c!.id));
  await finish(context, jobs[0]!);
  expect((await claim(context)).jobs).toEqual([]);
  expect(await reread(context, c!)).toMatchObject({ status: 'PAUSED', laneHead: true });
  await skipJob(context.db, context.schema, by(c!.id));
  const next = await claim(context);
  expect(next.jobs.map((j) => j.id)).toEqual([b!.id]);
  await finish(context, next.jobs[0]!);
});

test('a paused target starts nothing, and continues after a resume', async () => {
  const targetId = newTarget();
  const [a, b] = await addJobs(context, [{ targetId }, { targetId }]);
  await pauseTarget(context.db, context.schema, { targetId, actor: 'user:ann' });
  await addJob(context, { targetId });
  expect((await claim(context)).jobs).toEqual([]);
  await cancelJob(context.db, context.schema, by(a!.id));
  expect((await claim(context)).jobs).toEqual([]);
  await resumeTarget(context.db, context.schema, { targetId, actor: 'user:ann' });
  const { jobs } = await claim(context);
  expect(jobs.map((j) => j.id)).toEqual([b!.id]);
  await finish(context, jobs[0]!);
  const rest = await claim(context);
  await finish(context, rest.jobs[0]!);
});

test('a retry keeps its lane, and an expired lease costs one attempt', async () => {
  const targetId = newTarget();
  const [a, b] = await addJobs(context, [{ targetId, maxAttempts: 3 }, { targetId }]);
  const first = await claim(context);
  await finish(context, first.jobs[0]!, { kind: 'retry', error: { code: 'X', message: 'x' }, delayMs: 0 });
  expect((await claim(context)).jobs).toEqual([]);
  expect(await queueDueJobs(context.db, context.schema, 'sweeper:test')).toBe(1);
  const second = await claim(context);
  expect(second.jobs.map((j) => [j.id, j.attempt])).toEqual([[a!.id, 2]]);
  await expireLease(context, second.leaseId);
  const sweep = { actor: 'sweeper:test', graceSeconds: 0, tokenLimit: 0 };
  for (const lease of await findExpiredLeases(
    context.db,
    context.schema,
    0,
    '00000000-0000-0000-0000-000000000000',
    10,
  )) {
    await recoverLease(context.db, context.schema, lease, sweep);
  }
  const third = await claim(context);
  expect(third.jobs.map((j) => [j.id, j.attempt])).toEqual([[a!.id, 3]]);
  expect((await finish(context, second.jobs[0]!)).accepted.size).toBe(0);
  await finish(context, third.jobs[0]!);
  const last = await claim(context);
  expect(last.jobs.map((j) => j.id)).toEqual([b!.id]);
  await finish(context, last.jobs[0]!);
});

test('the same client request id makes one job; another request under it is a conflict', async () => {
  const targetId = newTarget();
  const one = await addJobs(context, [{ targetId, clientRequestId: 'k1', requestHash: 'a' }]);
  const two = await addJobs(context, [{ targetId, clientRequestId: 'k1', requestHash: 'a' }, { targetId }]);
  expect(two[0]!.id).toBe(one[0]!.id);
  const { jobs } = await claim(context);
  expect(jobs.map((j) => j.id)).toEqual([one[0]!.id]);
});

test('jobs of several leases, with and without results, are finished in one call', async () => {
  const jobs = await addJobs(
    context,
    Array.from({ length: 6 }, () => ({})),
  );
  const first = await claim(context, { limit: 3 });
  const second = await claim(context, { limit: 3 });
  const items = [...first.jobs, ...second.jobs].map((job) => ({
    jobId: job.id,
    leaseId: job.leaseId as string,
    targetId: null,
    outcome: { kind: 'complete' as const, result: null },
  }));
  const finished = await finishAttempts(context.db, context.schema, items, { actor: 'worker:w1' });
  expect([...finished.accepted].sort()).toEqual(jobs.map((job) => job.id).sort());
  // The same again under swapped leases: each job counts only under its own.
  const more = await addJobs(context, [{}, {}]);
  const [a, b] = [await claim(context, { limit: 1 }), await claim(context, { limit: 1 })];
  const swapped = [
    { jobId: a.jobs[0]!.id, leaseId: b.leaseId, targetId: null, outcome: { kind: 'complete' as const, result: null } },
    { jobId: b.jobs[0]!.id, leaseId: a.leaseId, targetId: null, outcome: { kind: 'complete' as const, result: 1 } },
  ];
  expect((await finishAttempts(context.db, context.schema, swapped, { actor: 'worker:w1' })).accepted.size).toBe(0);
  expect((await reread(context, more[0]!)).status).toBe('RUNNING');
  await finish(context, a.jobs[0]!);
  await finish(context, b.jobs[0]!);
});

test('the database refuses a second head of a lane, and an owned job without a lease', async () => {
  const { db, schema } = context;
  const targetId = newTarget();
  const [head, next] = await addJobs(context, [{ targetId }, { targetId }]);
  const toHead = db.query(`update ${schema}.jobs set lane_head = true, lane_rank = null where id = $1`, [next!.id]);
  await expect(toHead).rejects.toThrow('jobs_target_id_head');
  const run = db.query(`update ${schema}.jobs set status = 'RUNNING' where id = $1`, [head!.id]);
  await expect(run).rejects.toThrow('jobs_shape');
  for (const _ of [head, next]) await finish(context, (await claim(context)).jobs[0]!);
});
