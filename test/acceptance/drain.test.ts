// SIGTERM to a real daemon: what runs may end, what outlasts the grace is paused or given back, and
// what comes meanwhile waits for the next start.
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { checkEffects, useEffects } from '../support/daemon/effects.ts';
import { launchProcess, startProcess } from '../support/daemon/process.ts';
import { eventually } from '../support/eventually.ts';
import { addJob, addJobs, reread } from '../support/jobs.ts';
import { checkInvariants } from '../support/model/invariants.ts';
import { useTenant } from '../support/postgres/database.ts';

const context = useTenant();
const grace = (seconds: number) => ({ SHUTDOWN_GRACE_PERIOD_SECONDS: String(seconds) });

test('within the grace period a running job runs to its end', async () => {
  const effects = await useEffects();
  const gate = effects.gate('go');
  const daemon = await startProcess(context, { env: { ...effects.env, ...grace(120), LEASE_SECONDS: '60' } });
  const job = await addJob(context, { type: 'work', targetId: 'graceful', payload: { until: gate.path } });
  await eventually(() => expect(effects.read().length).toBeGreaterThan(0));
  daemon.kill('SIGTERM');
  await eventually(async () => expect(await daemon.isReady()).toBe(false));
  // The lease is renewed during the drain. One renewal may have been under way when it began.
  for (let renewals = 0; renewals < 3; renewals++) {
    const { leaseExpiresAt: before } = await reread(context, job);
    await eventually(async () => expect((await reread(context, job)).leaseExpiresAt).not.toBe(before));
  }
  gate.release();
  expect(await daemon.exited).toEqual({ code: 0, signal: null });
  expect(await reread(context, job)).toMatchObject({ status: 'SUCCESS', attempt: 1 });
});

test('a second signal ends the grace period: jobs are paused or requeued, and nothing is lost', async () => {
  const effects = await useEffects();
  const gate = effects.gate('go');
  const env = { ...effects.env, ...grace(300) };
  const daemon = await startProcess(context, { name: 'pod', env });
  const payload = { until: gate.path };
  const [paused, requeued] = await addJobs(context, [
    { type: 'work', targetId: 'paused', payload },
    { type: 'work', targetId: 'requeued', payload, onDrain: 'requeue' },
  ]);
  await eventually(() => expect(effects.read().filter((e) => e.kind === 'begin')).toHaveLength(2));
  daemon.kill('SIGTERM');
  await eventually(async () => {
    expect((await daemon.request('GET', '/readyz')).body).toMatchObject({ ready: false, drain: { running: 2 } });
  });
  // A drain takes work in, and leaves it to the next start.
  const late = await daemon.request('POST', '/api/targets/late/jobs', { type: 'work' });
  expect(late).toMatchObject({ status: 201, body: { status: 'QUEUED' } });
  // Of another kind: one of the same kind within a second is taken for a copy of the first.
  daemon.kill('SIGINT');
  expect(await daemon.exited).toEqual({ code: 3, signal: null });
  expect(await reread(context, paused!)).toMatchObject({
    status: 'PAUSED',
    error: { message: 'Job was interrupted by user' },
    hold: { kind: 'drain', reason: 'drained', author: 'worker:pod' },
  });
  expect(await reread(context, requeued!)).toMatchObject({ status: 'QUEUED', attempt: 0 });
  expect(await reread(context, late.body)).toMatchObject({ status: 'QUEUED' });
  gate.release();
  const again = await startProcess(context, { name: 'pod', env });
  await eventually(async () => {
    expect(await reread(context, requeued!)).toMatchObject({ status: 'SUCCESS', attempt: 1 });
    expect(await reread(context, late.body)).toMatchObject({ status: 'SUCCESS' });
  });
  // A deploy does not end a pause.
  expect((await reread(context, paused!)).status).toBe('PAUSED');
  expect((await again.request('POST', `/api/jobs/${paused!.id}/resume`, {})).status).toBe(200);
  await eventually(async () => expect((await reread(context, paused!)).status).toBe('SUCCESS'));
  checkEffects(effects.read());
  await checkInvariants(context);
});

test('a second signal right after the first ends the grace period as well', async () => {
  const effects = await useEffects();
  const gate = effects.gate('never');
  const daemon = await startProcess(context, { env: { ...effects.env, ...grace(300) } });
  const job = await addJob(context, { type: 'work', targetId: 'early', payload: { until: gate.path } });
  await eventually(() => expect(effects.read().length).toBeGreaterThan(0));
  // Two of the same kind may become one on their way; these arrive both, before the drain has begun.
  daemon.kill('SIGTERM');
  daemon.kill('SIGINT');
  expect(await daemon.exited).toEqual({ code: 3, signal: null });
  expect(daemon.output()).toContain('shutting down at once');
  expect(await reread(context, job)).toMatchObject({ status: 'PAUSED', leaseOwner: null });
});

test('a grace period shorter than the job pauses it, even if it ignores its signal', async () => {
  const effects = await useEffects();
  const gate = effects.gate('never');
  const daemon = await startProcess(context, { env: { ...effects.env, ...grace(0.5) } });
  const payload = { until: gate.path };
  const jobs = await addJobs(context, [
    { type: 'work', targetId: 'short', payload },
    { type: 'stubborn', targetId: 'deaf', payload },
  ]);
  await eventually(() => expect(effects.read().filter((e) => e.kind === 'begin')).toHaveLength(2));
  daemon.kill('SIGTERM');
  expect(await daemon.exited).toEqual({ code: 4, signal: null });
  const [stopped, deaf] = await Promise.all(jobs.map((job) => reread(context, job)));
  expect(stopped).toMatchObject({ status: 'PAUSED', leaseOwner: null, hold: { kind: 'drain' } });
  expect(deaf).toMatchObject({ status: 'PAUSED', leaseOwner: null, hold: { kind: 'drain', handler: 'running' } });
  await checkInvariants(context);
});

test('a stop during the first start ends without an error', async () => {
  const dataDir = await mkdtemp(join(tmpdir(), 'leasehold-drain-'));
  onTestFinished(() => rm(dataDir, { recursive: true, force: true }));
  const env = { DATABASE_URL: '', DATA_DIR: dataDir, DEMO_TENANT: 'auto', LOG_LEVEL: 'info' };
  const daemon = await launchProcess(context, { env });
  await eventually(() => expect(daemon.output()).toContain('tenants migrated'), { everyMs: 1 });
  daemon.kill('SIGTERM');
  expect(await daemon.exited).toEqual({ code: 0, signal: null });
  expect(daemon.output()).not.toContain('Error');
});
