import { expect, test } from 'vitest';
import { cancelJob, pauseJob } from '../../../../server/jobs/actions/pause-and-cancel.ts';
import { resumeJob } from '../../../../server/jobs/actions/resume.ts';
import { startDaemon } from '../../../support/daemon/daemon.ts';
import { longJob, untilBegun } from '../../../support/daemon/long-job.ts';
import { eventually } from '../../../support/eventually.ts';
import { addJob, addJobs, eventTypes, reread } from '../../../support/jobs.ts';
import { useTenant } from '../../../support/postgres/database.ts';

const context = useTenant();

test('a job that is enqueued runs to SUCCESS', async () => {
  const daemon = await startDaemon(context);
  const [one] = await daemon.enqueue(context.tenant, [{ type: 'demo.echo', payload: { hello: 'world' } }], 'test');
  await eventually(async () =>
    expect(await reread(context, one!.job)).toMatchObject({ status: 'SUCCESS', result: { hello: 'world' } }),
  );
  expect(await eventTypes(context, one!.job)).toEqual(['job.enqueued', 'job.started', 'job.completed']);
});

test('jobs of a lane run in order, and the poll finds jobs that were inserted without a wake-up', async () => {
  await startDaemon(context);
  const jobs = await addJobs(
    context,
    Array.from({ length: 20 }, () => ({ targetId: 'ordered' })),
  );
  await eventually(async () => {
    for (const job of jobs) expect((await reread(context, job)).status).toBe('SUCCESS');
  });
  const rows = await context.db.query<{ job_id: string }>(
    `select job_id from ${context.schema}.events where target_id = 'ordered' and type = 'job.started' order by seq`,
  );
  expect(rows.map((row) => row.job_id)).toEqual(jobs.map((job) => job.id));
});

test('a running job is paused within a heartbeat, resumed, and canceled', async () => {
  const daemon = await startDaemon(context);
  const [one] = await daemon.enqueue(
    context.tenant,
    [{ type: 'demo.sleep', payload: { seconds: 600 }, targetId: 't' }],
    'test',
  );
  const job = one!.job;
  await eventually(async () => expect((await reread(context, job)).status).toBe('RUNNING'));
  const by = { jobId: job.id, actor: 'user:ann', author: 'ann' };
  expect((await pauseJob(context.db, context.schema, by)).done).toBe(false);
  await eventually(async () =>
    expect(await reread(context, job)).toMatchObject({
      status: 'PAUSED',
      error: { message: 'Job was interrupted by user' },
    }),
  );
  await resumeJob(context.db, context.schema, by);
  await eventually(async () => expect((await reread(context, job)).status).toBe('RUNNING'));
  await cancelJob(context.db, context.schema, by);
  await eventually(async () => expect((await reread(context, job)).status).toBe('CANCELED'));
});

test('a drain pauses jobs that outlast its grace period and leaves the others queued', async () => {
  const daemon = await startDaemon(context, { handlers: [longJob] });
  const [one, two] = await daemon.enqueue(
    context.tenant,
    [
      { type: longJob.type, payload: {} },
      { type: longJob.type, payload: {}, onDrain: 'requeue' },
    ],
    'test',
  );
  await untilBegun(context, two!.job);
  await untilBegun(context, one!.job);
  await daemon.stop(50);
  const late = await addJob(context);
  expect(await reread(context, one!.job)).toMatchObject({
    status: 'PAUSED',
    error: { message: 'Job was interrupted by user' },
  });
  expect(await reread(context, two!.job)).toMatchObject({ status: 'QUEUED', attempt: 0 });
  expect((await reread(context, late)).status).toBe('QUEUED');
});

test('jobs that a drain paused are resumed at the next start if the setting says so, and wait for a person otherwise', async () => {
  const first = await startDaemon(context, { env: { WORKER_ID: 'pod' }, handlers: [longJob] });
  const [one, two] = await first.enqueue(
    context.tenant,
    [
      { type: longJob.type, payload: {} },
      { type: 'demo.echo', runAt: '2100-01-01T00:00:00Z', payload: {} },
    ],
    'test',
  );
  await untilBegun(context, one!.job);
  await pauseJob(context.db, context.schema, { jobId: two!.job.id, actor: 'user:ann' });
  await first.stop(0);
  const hold = { kind: 'drain', reason: 'drained', author: 'worker:pod' };
  expect(await reread(context, one!.job)).toMatchObject({ status: 'PAUSED', hold });
  const second = await startDaemon(context);
  await second.stop(0);
  expect((await reread(context, one!.job)).status).toBe('PAUSED');
  await startDaemon(context, { env: { RESUME_DRAINED_JOBS: 'true' }, handlers: [longJob] });
  await eventually(async () =>
    expect(await reread(context, one!.job)).toMatchObject({ status: 'RUNNING', hold: null }),
  );
  expect((await reread(context, two!.job)).status).toBe('PAUSED');
});

test('a second stop ends the grace period, even before the drain has begun', async () => {
  const daemon = await startDaemon(context, { handlers: [longJob] });
  const [job] = await daemon.enqueue(context.tenant, [{ type: longJob.type, payload: {} }], 'test');
  await untilBegun(context, job!.job);
  const stopped = daemon.stop(3_600_000);
  expect(daemon.workers.draining).toBe(false);
  await Promise.all([stopped, daemon.stop()]);
  expect(await reread(context, job!.job)).toMatchObject({ status: 'PAUSED', leaseOwner: null });
});
