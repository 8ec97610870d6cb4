import { mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { expect, test } from 'vitest';
import { cancelJob, pauseJob } from '../../../../server/jobs/actions/pause-and-cancel.ts';
import { receiveEvent } from '../../../../server/jobs/received/receive-event.ts';
import { loadHandlers } from '../../../../server/worker/handlers/load-handlers.ts';
import { startDaemon } from '../../../support/daemon/daemon.ts';
import { eventually } from '../../../support/eventually.ts';
import { addJob, eventTypes, reread } from '../../../support/jobs.ts';
import { loseLease } from '../../../support/lose-lease.ts';
import { checkInvariants } from '../../../support/model/invariants.ts';
import { useTenant } from '../../../support/postgres/database.ts';

const context = useTenant();
const fixtures = fileURLToPath(new URL('../../../fixtures/isolated.ts', import.meta.url));

test('a thread that blocks is terminated by a pause, and other jobs continue meanwhile', async () => {
  // A blocked thread keeps a core busy; a short lease would not outlive it on a crowded machine.
  const env = { LEASE_SECONDS: '30', CANCEL_GRACE_SECONDS: '0.5' };
  const daemon = await startDaemon(context, { handlers: await loadHandlers(fixtures), env });
  const deaf = await addJob(context, { type: 'isolated.blocker' });
  daemon.signals.workAvailable(context.tenant);
  // RUNNING is not enough: a pause before the thread has begun stops the job without terminating anything.
  await eventually(async () => expect((await reread(context, deaf)).progress).toBe(1));
  const [other] = await daemon.enqueue(context.tenant, [{ type: 'demo.echo', payload: 1 }], 'test');
  await eventually(async () => expect((await reread(context, other!.job)).status).toBe('SUCCESS'));
  await pauseJob(context.db, context.schema, { jobId: deaf.id, actor: 'user:ann' });
  await eventually(async () =>
    expect(await reread(context, deaf)).toMatchObject({
      status: 'PAUSED',
      hold: { kind: 'user', handler: 'terminated' },
    }),
  );
});

test('a crash in a thread fails only its job', async () => {
  const daemon = await startDaemon(context, {
    handlers: await loadHandlers(fixtures),
    // A thread at the end of its memory keeps both cores busy; short leases would not outlive it.
    env: { HANDLER_THREAD_MEMORY_MB: '32', LEASE_SECONDS: '30' },
  });
  const [hoarder, primes] = await daemon.enqueue(
    context.tenant,
    [
      { type: 'isolated.hoarder', payload: {} },
      { type: 'demo.compute', payload: { limit: 100 } },
    ],
    'test',
  );
  await eventually(async () =>
    expect(await reread(context, hoarder!.job)).toMatchObject({ status: 'ERROR', error: { code: 'HANDLER_CRASHED' } }),
  );
  await eventually(async () =>
    expect(await reread(context, primes!.job)).toMatchObject({ status: 'SUCCESS', result: { primes: 25 } }),
  );
});

test('a pipeline reports its phases and ends with their results', async () => {
  const daemon = await startDaemon(context);
  const [job] = await daemon.enqueue(
    context.tenant,
    [{ type: 'demo.pipeline', payload: { items: 3, seconds: 0.3 }, phases: ['download', 'process', 'upload'] }],
    'test',
  );
  await eventually(async () =>
    expect(await reread(context, job!.job)).toMatchObject({
      status: 'SUCCESS',
      result: { download: { items: 3 }, process: { processed: 3 }, upload: { uploaded: 3 } },
    }),
  );
});

test('a durable sleep or wait in a thread suspends the job, and the thread takes another', async () => {
  const daemon = await startDaemon(context, { handlers: await loadHandlers(fixtures), env: { HANDLER_THREADS: '1' } });
  const [job] = await daemon.enqueue(context.tenant, [{ type: 'isolated.napper', payload: {} }], 'test');
  await eventually(async () =>
    expect(await reread(context, job!.job)).toMatchObject({ status: 'WAITING', waiting: { step: 'nap' }, attempt: 1 }),
  );
  await context.db.query(`update ${context.schema}.phases set waits_until = now() where job_id = $1`, [job!.job.id]);
  await context.db.query(`update ${context.schema}.jobs set run_at = now() where id = $1`, [job!.job.id]);
  await eventually(async () =>
    expect(await reread(context, job!.job)).toMatchObject({ status: 'WAITING', waiting: { event: 'bell' } }),
  );
  await receiveEvent(context.db, context.schema, { name: 'bell', data: { at: '2027-05-01' } }, 'test');
  daemon.onEventReceived(context.tenant);
  await eventually(async () =>
    expect(await reread(context, job!.job)).toMatchObject({ status: 'SUCCESS', result: 'awake', attempt: 3 }),
  );
});

test('a handler that waited for its thread does not begin if its job was canceled meanwhile', async () => {
  const until = join(mkdtempSync(join(tmpdir(), 'leasehold-waiter-')), 'until');
  const daemon = await startDaemon(context, {
    handlers: await loadHandlers(fixtures),
    // No heartbeat comes in time to report the cancel.
    env: { HANDLER_THREADS: '1', LEASE_SECONDS: '60', HEARTBEAT_INTERVAL_SECONDS: '20' },
  });
  const [first] = await daemon.enqueue(context.tenant, [{ type: 'isolated.waiter', payload: { until } }], 'test');
  await eventually(async () => expect((await reread(context, first!.job)).status).toBe('RUNNING'));
  const [second] = await daemon.enqueue(context.tenant, [{ type: 'isolated.recorder', payload: {} }], 'test');
  await eventually(async () => expect((await reread(context, second!.job)).status).toBe('RUNNING'));
  const { done } = await cancelJob(context.db, context.schema, { jobId: second!.job.id, actor: 'user:ann' });
  expect(done).toBe(false);
  // Longer than a handler may begin after its stop requests were read.
  await delay(600);
  writeFileSync(until, '');
  await eventually(async () =>
    expect(await reread(context, second!.job)).toMatchObject({ status: 'CANCELED', progress: null }),
  );
});

test('a job that waited for its thread when its lease was lost is requeued, and no attempt is counted', async () => {
  const until = join(mkdtempSync(join(tmpdir(), 'leasehold-waiter-')), 'until');
  const daemon = await startDaemon(context, {
    handlers: await loadHandlers(fixtures),
    // Only the next renewal finds that the lease is over.
    env: { HANDLER_THREADS: '1', LEASE_SECONDS: '60', SWEEP_INTERVAL_SECONDS: '600' },
  });
  const [first] = await daemon.enqueue(context.tenant, [{ type: 'isolated.waiter', payload: { until } }], 'test');
  await eventually(async () => expect((await reread(context, first!.job)).status).toBe('RUNNING'));
  const [second] = await daemon.enqueue(context.tenant, [{ type: 'isolated.recorder', payload: {} }], 'test');
  await eventually(async () => expect((await reread(context, second!.job)).status).toBe('RUNNING'));
  const { leaseId } = await reread(context, second!.job);
  await loseLease(context, leaseId, 'ended');
  await eventually(async () => expect((await reread(context, second!.job)).leaseId).not.toBe(leaseId));
  writeFileSync(until, '');
  await eventually(async () =>
    expect(await reread(context, second!.job)).toMatchObject({ status: 'SUCCESS', attempt: 1 }),
  );
  expect(await eventTypes(context, second!.job)).toContain('job.requeued');
  await checkInvariants(context);
});

test('the time limit of an attempt does not count while it waits for its thread', async () => {
  const until = join(mkdtempSync(join(tmpdir(), 'leasehold-waiter-')), 'until');
  const daemon = await startDaemon(context, {
    handlers: await loadHandlers(fixtures),
    env: { HANDLER_THREADS: '1', LEASE_SECONDS: '60' },
  });
  const [first] = await daemon.enqueue(context.tenant, [{ type: 'isolated.waiter', payload: { until } }], 'test');
  await eventually(async () => expect((await reread(context, first!.job)).status).toBe('RUNNING'));
  const limited = { type: 'isolated.recorder', payload: {}, timeoutSeconds: 0.5 };
  const [second] = await daemon.enqueue(context.tenant, [limited], 'test');
  await eventually(async () => expect((await reread(context, second!.job)).status).toBe('RUNNING'));
  // Longer than the limit.
  await delay(800);
  writeFileSync(until, '');
  await eventually(async () => expect((await reread(context, second!.job)).status).toBe('SUCCESS'));
});
