// A durable sleep: the job is WAITING without slot, lease or counted attempt, and pause, cancel and resume do in it what a
// person expects. Drain, crash and deploy: waits-under-faults.test.ts.
import { expect, test } from 'vitest';
import { cancelJob, pauseJob } from '../../../server/jobs/actions/pause-and-cancel.ts';
import { resumeJob } from '../../../server/jobs/actions/resume.ts';
import { listPhases } from '../../../server/jobs/attempt/phases.ts';
import { queueDueJobs } from '../../../server/jobs/finish/due-jobs.ts';
import type { Job } from '../../../server/jobs/model/job.ts';
import { pageOfIds } from '../../../server/jobs/read/page-of-ids.ts';
import { type Duration, parseDuration } from '../../../server/kernel/clock.ts';
import { defineJob } from '../../../server/worker/handlers/define-job.ts';
import { startDaemon } from '../../support/daemon/daemon.ts';
import { eventually } from '../../support/eventually.ts';
import { addJob, claim, eventTypes, finish, reread } from '../../support/jobs.ts';
import { checkInvariants } from '../../support/model/invariants.ts';
import { useTenant } from '../../support/postgres/database.ts';

const context = useTenant();
const by = (job: Pick<Job, 'id'>) => ({ jobId: job.id, actor: 'user:ann' });

function sleepers() {
  const runs: string[] = [];
  const run = (duration: Duration) =>
    async function run({ job, sleepFor }: { job: { id: string }; sleepFor(d: Duration): Promise<void> }) {
      runs.push(job.id);
      await sleepFor(duration);
      return 'awake';
    };
  const definitions = [
    defineJob({ type: 'nap', run: run('3d') }),
    defineJob({ type: 'aside', whileWaiting: 'release', run: run('3d') }),
    defineJob({ type: 'short', run: run('50ms') }),
    defineJob({ type: 'quick', run: () => 'done' }),
    defineJob({
      type: 'stubborn',
      async run({ sleepFor }) {
        await sleepFor('3d').catch(() => {});
        return 'not awake';
      },
    }),
  ];
  return { definitions, runs };
}

async function start() {
  const { definitions, runs } = sleepers();
  const daemon = await startDaemon(context, { handlers: definitions });
  const enqueue = async (type: string, more: Record<string, unknown> = {}) => {
    const [enqueued] = await daemon.enqueue(context.tenant, [{ type, payload: {}, ...more }], 'test');
    return enqueued!.job;
  };
  return { daemon, runs, enqueue };
}

async function becomes(job: Pick<Job, 'id'>, status: Job['status']): Promise<Job> {
  await eventually(async () => expect((await reread(context, job)).status).toBe(status));
  return reread(context, job);
}

/** As if so much time had passed. */
async function advance(job: Pick<Job, 'id'>, duration: Duration): Promise<void> {
  const earlier = `$2::float8 * interval '1 millisecond'`;
  const values = [job.id, parseDuration(duration)];
  await context.db.query(
    `update ${context.schema}.phases set waits_until = waits_until - ${earlier} where job_id = $1`,
    values,
  );
  await context.db.query(`update ${context.schema}.jobs set run_at = run_at - ${earlier} where id = $1`, values);
}

test('a sleeping job has no lease and no slot, costs no attempt, shows its wait, and wakes first in its lane', async () => {
  const { daemon, runs, enqueue } = await start();
  const job = await enqueue('nap', { targetId: 'nap', maxAttempts: 1, expiresInSeconds: 3600 });
  const behind = await enqueue('quick', { targetId: 'nap' });
  const asleep = await becomes(job, 'WAITING');
  expect(asleep).toMatchObject({ leaseOwner: null, laneHead: true, attempt: 1, attemptFloor: 1 });
  expect(asleep.waiting).toMatchObject({ kind: 'sleep', step: 'sleep#1', until: asleep.runAt });
  const listed = await pageOfIds(context.db, context.schema, { statuses: ['WAITING'] }, { limit: 10 });
  expect(listed.ids).toContain(job.id);
  expect(await listPhases(context.db, context.schema, job.id)).toMatchObject([
    { name: 'sleep#1', kind: 'sleep', status: 'running', waitsUntil: asleep.runAt },
  ]);
  expect((await reread(context, behind)).status).toBe('QUEUED');
  await advance(job, '2d');
  expect(await queueDueJobs(context.db, context.schema, 'test')).toBe(0);
  await advance(job, '2d');
  await queueDueJobs(context.db, context.schema, 'test');
  daemon.signals.workAvailable(context.tenant);
  expect(await becomes(job, 'SUCCESS')).toMatchObject({ result: 'awake', attempt: 2, waiting: null, heldSince: null });
  await becomes(behind, 'SUCCESS');
  expect(runs.filter((id) => id === job.id)).toHaveLength(2);
  expect(await listPhases(context.db, context.schema, job.id)).toMatchObject([{ status: 'completed' }]);
  expect(await eventTypes(context, job)).toEqual([
    'job.enqueued',
    'job.started',
    'job.waiting',
    'job.woken',
    'job.started',
    'job.completed',
  ]);
  await checkInvariants(context);
});

test('the daemon wakes a job when its time has come', async () => {
  const { enqueue, daemon } = await start();
  const job = await becomes(await enqueue('nap'), 'WAITING');
  await advance(job, parseDuration('3d') - 500);
  daemon.workers.dueIn(context.tenant.slug, 0);
  expect(await becomes(job, 'SUCCESS')).toMatchObject({ result: 'awake' });
  const short = await enqueue('short');
  await becomes(short, 'SUCCESS');
  expect(await eventTypes(context, short)).not.toContain('job.waiting');
});

test('with whileWaiting release the lane continues, and the job comes back first', async () => {
  const { daemon, enqueue } = await start();
  const job = await enqueue('aside', { targetId: 'aside' });
  expect(await becomes(job, 'WAITING')).toMatchObject({ laneHead: false, laneRank: null });
  const holder = await enqueue('nap', { targetId: 'aside' });
  const behind = await enqueue('quick', { targetId: 'aside' });
  await becomes(holder, 'WAITING');
  await advance(job, '4d');
  await queueDueJobs(context.db, context.schema, 'test');
  expect(await reread(context, job)).toMatchObject({ status: 'QUEUED', laneHead: false, laneRank: 1 });
  await cancelJob(context.db, context.schema, by(holder));
  daemon.signals.workAvailable(context.tenant);
  const [first, second] = [await becomes(job, 'SUCCESS'), await becomes(behind, 'SUCCESS')];
  expect(first.finishedAt! < second.finishedAt!).toBe(true);
  await checkInvariants(context);
});

test('a handler that catches the suspension is suspended anyway', async () => {
  const { enqueue } = await start();
  const job = await becomes(await enqueue('stubborn'), 'WAITING');
  expect(job.result).toBeNull();
});

test('pause and resume: the sleep ends when it would have ended', async () => {
  const { daemon, runs, enqueue } = await start();
  const job = await becomes(await enqueue('nap', { targetId: 'p' }), 'WAITING');
  await pauseJob(context.db, context.schema, by(job));
  expect(await reread(context, job)).toMatchObject({ status: 'PAUSED', waiting: null, laneHead: true });
  await advance(job, '4d');
  await queueDueJobs(context.db, context.schema, 'test');
  expect((await reread(context, job)).status).toBe('PAUSED');
  await resumeJob(context.db, context.schema, by(job));
  daemon.signals.workAvailable(context.tenant);
  await becomes(job, 'SUCCESS');
  const early = await becomes(await enqueue('nap', { targetId: 'p' }), 'WAITING');
  await pauseJob(context.db, context.schema, by(early));
  await resumeJob(context.db, context.schema, by(early));
  daemon.signals.workAvailable(context.tenant);
  const again = await becomes(early, 'WAITING');
  expect(again.runAt).toBe(early.runAt);
  expect(runs.filter((id) => id === early.id)).toHaveLength(2);
  await checkInvariants(context);
});

test('cancel: the job ends at once, its sleep with it, and the lane continues', async () => {
  const { daemon, enqueue } = await start();
  const job = await becomes(await enqueue('nap', { targetId: 'c' }), 'WAITING');
  const behind = await enqueue('quick', { targetId: 'c' });
  await cancelJob(context.db, context.schema, by(job));
  daemon.signals.workAvailable(context.tenant);
  expect(await reread(context, job)).toMatchObject({ status: 'CANCELED', waiting: null });
  expect(await listPhases(context.db, context.schema, job.id)).toMatchObject([{ status: 'cancelled' }]);
  await becomes(behind, 'SUCCESS');
});

test('the deadline of a job is suspended while it waits', async () => {
  const added = await addJob(context, { type: 'expiring', expiresInSeconds: 600, maxAttempts: 3 });
  const job = (await claim(context, { types: ['expiring'] })).jobs[0]!;
  const until = new Date(Date.now() + 60_000).toISOString();
  await finish(context, job, { kind: 'suspend', waiting: { kind: 'sleep', step: 's', until }, leftMs: 60_000 });
  await context.db.query(
    `update ${context.schema}.jobs set held_since = held_since - interval '1 hour', run_at = now() where id = $1`,
    [added.id],
  );
  await queueDueJobs(context.db, context.schema, 'test');
  const woken = await reread(context, added);
  const movedMs = Date.parse(woken.expiresAt!) - Date.parse(added.expiresAt!);
  expect(woken).toMatchObject({ status: 'QUEUED', heldSince: null });
  expect(movedMs).toBeGreaterThanOrEqual(3_600_000);
});

test('a stop request that came before the suspension decides', async () => {
  await addJob(context, { type: 'asked' });
  const job = (await claim(context, { types: ['asked'] })).jobs[0]!;
  await pauseJob(context.db, context.schema, by(job));
  const until = new Date(Date.now() + 60_000).toISOString();
  await finish(context, job, { kind: 'suspend', waiting: { kind: 'sleep', step: 's', until }, leftMs: 60_000 });
  expect(await reread(context, job)).toMatchObject({ status: 'PAUSED', waiting: null });
});
