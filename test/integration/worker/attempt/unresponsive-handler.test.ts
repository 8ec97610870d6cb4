// A handler that does not stop when it is told to: its job says so, its lane is kept, and nothing runs beside it.
import { expect, onTestFinished, test } from 'vitest';
import type { Daemon } from '../../../../server/daemon/daemon.ts';
import { cancelJob, pauseJob } from '../../../../server/jobs/actions/pause-and-cancel.ts';
import { resumeJob } from '../../../../server/jobs/actions/resume.ts';
import { fenceOff } from '../../../../server/jobs/finish/fence-off.ts';
import { recoverLease } from '../../../../server/jobs/finish/recover.ts';
import type { Job } from '../../../../server/jobs/model/job.ts';
import { defineJob } from '../../../../server/worker/handlers/define-job.ts';
import { startDaemon } from '../../../support/daemon/daemon.ts';
import { eventually } from '../../../support/eventually.ts';
import { addJob, addJobs, claim, eventTypes, expireLease, finish, reread } from '../../../support/jobs.ts';
import { checkInvariants } from '../../../support/model/invariants.ts';
import { citusCluster } from '../../../support/postgres/citus.ts';
import { useTenant } from '../../../support/postgres/database.ts';
import { startProxy } from '../../../support/postgres/proxies/proxy.ts';

const context = useTenant();
// Only the tests in which a lease must expire use a short one: on a busy machine a lease of two seconds expires by itself.
const longLease = { LEASE_SECONDS: '60' };
const by = (job: Pick<Job, 'id'>) => ({ jobId: job.id, actor: 'user:ann', author: 'ann', reason: 'enough' });

interface Run {
  job: string;
  attempt: number;
  target: string | null;
  ended: boolean;
  end(): void;
  /** Others of its target that ran when it began. */
  beside: number;
}

const shortGrace = { CANCEL_GRACE_SECONDS: '0.5' };

/** A type whose handler ignores its signal and ends when the test says so. */
function deafHandler() {
  const runs: Run[] = [];
  const definition = defineJob({
    type: 'deaf',
    async run({ job, progress }) {
      await new Promise<void>((resolve) => {
        const beside = runs.filter((run) => !run.ended && run.target === job.targetId).length;
        runs.push({ job: job.id, attempt: job.attempt, target: job.targetId, ended: false, end: resolve, beside });
      });
      const run = runs.find((one) => one.job === job.id && one.attempt === job.attempt && !one.ended) as Run;
      progress(99, 'still here');
      run.ended = true;
      return { outlived: true };
    },
  });
  onTestFinished(() => {
    for (const run of runs) run.end();
  });
  return { definition, runs };
}

async function startDeaf(env: Record<string, string> = {}) {
  const { definition, runs } = deafHandler();
  const daemon = await startDaemon(context, { handlers: [definition], env: { ...shortGrace, ...longLease, ...env } });
  const begun = (job: Pick<Job, 'id'>, attempt = 1) =>
    eventually(() => {
      const run = runs.find((one) => one.job === job.id && one.attempt === attempt);
      expect(run).toBeDefined();
      return run as Run;
    });
  return { daemon, runs, begun };
}

async function fenced(job: Pick<Job, 'id'>): Promise<Job> {
  return eventually(async () => {
    const now = await reread(context, job);
    expect(now).toMatchObject({ status: 'RUNNING', hold: { kind: 'handler', handler: 'running' } });
    return now;
  });
}

const statusOf = async (job: Pick<Job, 'id'>) => (await reread(context, job)).status;

/** Time for a beat, a sweep and a poll: what should not happen has had its chance. */
async function rounds(daemon: Daemon): Promise<void> {
  const before = (await reread(context, await addJob(context, { type: 'demo.echo' }))).id;
  daemon.signals.workAvailable(context.tenant);
  await eventually(async () => expect(await statusOf({ id: before })).toBe('SUCCESS'));
}

test('a paused job stays RUNNING and keeps its lane until its handler has ended; resumed, it does not overlap', async () => {
  const { daemon, runs, begun } = await startDeaf();
  const [job, next] = await addJobs(context, [
    { type: 'deaf', targetId: 'deaf-1' },
    { type: 'demo.echo', targetId: 'deaf-1' },
  ]);
  const run = await begun(job!);
  const { leaseId } = await reread(context, job!);
  await pauseJob(context.db, context.schema, by(job!));
  const held = await fenced(job!);
  expect(held.leaseId).not.toBe(leaseId);
  expect(held.hold?.reason).toContain('asked to pause');
  await expect(resumeJob(context.db, context.schema, by(job!))).rejects.toMatchObject({
    code: 'INVALID_TRANSITION',
    message: expect.stringContaining('still runs'),
  });
  await rounds(daemon);
  expect(await statusOf(next!)).toBe('QUEUED');
  run.end();
  await eventually(async () => {
    expect(await reread(context, job!)).toMatchObject({
      status: 'PAUSED',
      hold: { kind: 'user', author: 'ann', reason: 'enough' },
      progressMessage: null,
      result: null,
    });
  });
  expect(await eventTypes(context, job!)).toEqual([
    'job.enqueued',
    'job.started',
    'job.pause_requested',
    'job.handler_unresponsive',
    'job.paused',
  ]);
  await resumeJob(context.db, context.schema, by(job!));
  daemon.signals.workAvailable(context.tenant);
  (await begun(job!, 2)).end();
  await eventually(async () => expect(await statusOf(next!)).toBe('SUCCESS'));
  expect(await statusOf(job!)).toBe('SUCCESS');
  expect(runs.map((one) => one.beside)).toEqual([0, 0]);
  await checkInvariants(context);
});

test('a cancel that comes while the handler still runs decides how the attempt ends', async () => {
  const { begun } = await startDeaf();
  const job = await addJob(context, { type: 'deaf', targetId: 'deaf-2' });
  const run = await begun(job);
  await pauseJob(context.db, context.schema, by(job));
  await fenced(job);
  expect((await cancelJob(context.db, context.schema, by(job))).done).toBe(false);
  run.end();
  await eventually(async () => expect(await statusOf(job)).toBe('CANCELED'));
  await checkInvariants(context);
});

test('after the maximum time the lane is released: job, event, metric and log record that the handler still runs', async () => {
  const { daemon, begun } = await startDeaf({ UNRESPONSIVE_HANDLER_MAX_SECONDS: '0.5' });
  const [job, next] = await addJobs(context, [
    { type: 'deaf', targetId: 'deaf-3' },
    { type: 'demo.echo', targetId: 'deaf-3' },
  ]);
  await begun(job!);
  await cancelJob(context.db, context.schema, by(job!));
  await eventually(async () => {
    expect(await reread(context, job!)).toMatchObject({
      status: 'CANCELED',
      error: { handler: 'running' },
      hold: null,
    });
    expect(await statusOf(next!)).toBe('SUCCESS');
  });
  const [event] = await context.db.query<{ data: object }>(
    `select data from ${context.schema}.events where job_id = $1 and type = 'job.canceled'`,
    [job!.id],
  );
  expect(event?.data).toMatchObject({ handler: 'running', author: 'ann' });
  const metrics = await daemon.metrics.registry.metrics();
  expect(metrics).toMatch(/leasehold_unresponsive_handlers_total\{result="released"\} 1/);
});

test('a handler that runs past its timeout keeps its lane too, and the failure records it if it is given up', async () => {
  const { begun } = await startDeaf({ UNRESPONSIVE_HANDLER_MAX_SECONDS: '0.5' });
  const job = await addJob(context, { type: 'deaf', targetId: 'deaf-4', timeoutSeconds: 0.05 });
  await begun(job);
  await eventually(async () => {
    expect(await reread(context, job)).toMatchObject({
      status: 'ERROR',
      error: { code: 'TIMEOUT', handler: 'running' },
      hold: { kind: 'error', handler: 'running' },
    });
  });
});

test('if the process dies, the lease expires and the attempt ends with its decided outcome', async () => {
  const [drained, failed] = await addJobs(context, [
    { targetId: 'dead-1', maxAttempts: 3 },
    { targetId: 'dead-2', maxAttempts: 3 },
  ]);
  const outcomes = {
    [drained!.id]: { kind: 'requeue', reason: 'drained' },
    [failed!.id]: { kind: 'fail', error: { code: 'TIMEOUT', message: 'too long' } },
  } as const;
  for (const job of (await claim(context, { leaseSeconds: 3600 })).jobs) {
    const leaseId = crypto.randomUUID();
    const hold = { kind: 'handler', reason: 'x', handler: 'running', outcome: outcomes[job.id] } as const;
    const fence = { leaseId, owner: 'w1', leaseSeconds: 3600, hold };
    const held = { jobId: job.id, leaseId: job.leaseId as string };
    expect(await fenceOff(context.db, context.schema, held, fence)).toBe(true);
    // The answer was lost: the same again is the same.
    expect(await fenceOff(context.db, context.schema, held, fence)).toBe(true);
    expect((await eventTypes(context, job)).filter((type) => type === 'job.handler_unresponsive')).toHaveLength(1);
    // What the fenced-off handler writes is refused.
    expect((await finish(context, job)).accepted.size).toBe(0);
    await expireLease(context, leaseId);
    const lease = { id: leaseId, kind: 'local', owner: 'w1', job_ids: [job.id] } as const;
    await recoverLease(
      context.db,
      context.schema,
      { ...lease, job_ids: [job.id] },
      { actor: 's', graceSeconds: 0, tokenLimit: 0 },
    );
  }
  expect(await reread(context, drained!)).toMatchObject({ status: 'QUEUED', attempt: 0, hold: null });
  expect(await reread(context, failed!)).toMatchObject({ status: 'ERROR', error: { code: 'TIMEOUT' } });
  const leases = await context.db.query(
    `select id from ${context.schema}.leases where owner = 'w1' and state = 'ACTIVE'`,
  );
  expect(leases).toEqual([]);
  await checkInvariants(context);
});

// In a cluster the daemon still reaches the tenant's node, past the proxy, and fences the job off by itself.
test.skipIf(citusCluster())(
  'a handler whose lease was lost does not overlap with the next attempt in the same process',
  async () => {
    const proxy = await startProxy(context.url);
    const { definition, runs } = deafHandler();
    const daemon = await startDaemon({ ...context, url: proxy.url }, { handlers: [definition], env: shortGrace });
    const sweeping = await startDaemon(context, { env: { WORKER_CONCURRENCY: '0' } });
    const job = await addJob(context, { type: 'deaf', targetId: 'lost', maxAttempts: 5 });
    daemon.signals.workAvailable(context.tenant);
    await eventually(() => expect(runs).toHaveLength(1));
    proxy.blackHole();
    await eventually(async () => expect((await eventTypes(context, job)).at(-1)).toBe('job.lease_expired'));
    proxy.heal();
    // Taken again by the only daemon that runs this type, which knows that the first handler still runs.
    await eventually(async () => {
      daemon.signals.workAvailable(context.tenant);
      expect(await reread(context, job)).toMatchObject({ status: 'RUNNING', attempt: 2 });
    });
    await rounds(daemon);
    expect(runs).toHaveLength(1);
    runs[0]?.end();
    await eventually(() => expect(runs).toHaveLength(2));
    runs[1]?.end();
    await eventually(async () => expect(await statusOf(job)).toBe('SUCCESS'));
    expect(runs.map((run) => run.beside)).toEqual([0, 0]);
    await sweeping.stop(0);
    await checkInvariants(context);
  },
);

// In a cluster leases are renewed on the tenant's node, past the proxy.
test.skipIf(citusCluster())(
  'a daemon whose lease expired keeps the lane if it fences the job off before the sweeper',
  async () => {
    const proxy = await startProxy(context.url);
    const { definition, runs } = deafHandler();
    const env = { ...shortGrace, STALE_LEASE_GRACE_SECONDS: '3600' };
    const daemon = await startDaemon({ ...context, url: proxy.url }, { handlers: [definition], env });
    const job = await addJob(context, { type: 'deaf', targetId: 'kept', maxAttempts: 2 });
    daemon.signals.workAvailable(context.tenant);
    await eventually(() => expect(runs).toHaveLength(1));
    proxy.blackHole();
    await eventually(() => expect(daemon.workers.runningTypes).toEqual(['deaf']));
    await eventually(async () => {
      const [row] = await context.db.query<{ over: boolean }>(
        `select expires_at < now() as over from ${context.schema}.leases where $1 = any(job_ids)`,
        [job.id],
      );
      expect(row?.over).toBe(true);
    });
    proxy.heal();
    expect((await fenced(job)).hold?.reason).toContain('lease is no longer held');
    // What a person asks meanwhile decides, as it does for every lost lease.
    await pauseJob(context.db, context.schema, by(job));
    runs[0]?.end();
    await eventually(async () => expect(await statusOf(job)).toBe('PAUSED'));
    await resumeJob(context.db, context.schema, by(job));
    daemon.signals.workAvailable(context.tenant);
    await eventually(() => expect(runs).toHaveLength(2));
    expect(runs.map((run) => run.beside)).toEqual([0, 0]);
    runs[1]?.end();
    await eventually(async () => expect(await statusOf(job)).toBe('SUCCESS'));
    await checkInvariants(context);
  },
);

test('a drain ends with the process: the outcome of an unresponsive handler is written last, and no attempt is counted', async () => {
  const { daemon, begun } = await startDeaf();
  const [paused, requeued] = await addJobs(context, [
    { type: 'deaf', targetId: 'exit-1' },
    { type: 'deaf', targetId: 'exit-2', onDrain: 'requeue' },
  ]);
  await begun(paused!);
  await begun(requeued!);
  await daemon.stop(0);
  expect(daemon.drainResult).toBe('forced');
  expect(await reread(context, paused!)).toMatchObject({
    status: 'PAUSED',
    hold: { kind: 'drain', handler: 'running' },
  });
  expect(await reread(context, requeued!)).toMatchObject({ status: 'QUEUED', attempt: 0 });
  // It would run in the daemon of the next test.
  await cancelJob(context.db, context.schema, by(requeued!));
  await checkInvariants(context);
});

test('a stop that cannot wait for the grace period of a handler writes its outcome too', async () => {
  const { daemon, begun } = await startDeaf({ CANCEL_GRACE_SECONDS: '3600' });
  const job = await addJob(context, { type: 'deaf', targetId: 'exit-3' });
  await begun(job);
  const stopped = daemon.stop(3_600_000);
  await eventually(async () => {
    void daemon.stop();
    expect(daemon.drainResult).toBe('forced');
  });
  await stopped;
  expect(await reread(context, job)).toMatchObject({ status: 'PAUSED', hold: { kind: 'drain', handler: 'running' } });
});
