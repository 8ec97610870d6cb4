// What handlers may do to a real daemon: ignore it, or throw where nobody catches.
import { expect, test } from 'vitest';
import { useEffects } from '../support/daemon/effects.ts';
import { startProcess } from '../support/daemon/process.ts';
import { eventually } from '../support/eventually.ts';
import { addJob, addJobs, eventTypes, reread } from '../support/jobs.ts';
import { checkInvariants } from '../support/model/invariants.ts';
import { useTenant } from '../support/postgres/database.ts';

const context = useTenant();
test('a handler that ignores its signal is fenced off after its grace; it keeps its lane, and its later writes are refused', async () => {
  const effects = await useEffects();
  const gate = effects.gate('go');
  const daemon = await startProcess(context, { env: effects.env });
  const [job, next] = await addJobs(context, [
    { type: 'stubborn', targetId: 'deaf', payload: { until: gate.path } },
    { type: 'work', targetId: 'deaf' },
  ]);
  await eventually(() => expect(effects.read()).toHaveLength(1));
  expect((await daemon.request('POST', `/api/jobs/${job!.id}/cancel`, { reason: 'enough' })).status).toBe(202);
  await eventually(async () => {
    expect(await reread(context, job!)).toMatchObject({ status: 'RUNNING', hold: { kind: 'handler' } });
  });
  const why = await daemon.request('GET', `/api/jobs/${next!.id}/why`);
  expect(why.body).toMatchObject({
    reasons: [{ code: 'HANDLER_RUNNING', job_id: job!.id, detail: expect.stringContaining('handler still running') }],
  });
  expect((await reread(context, next!)).status).toBe('QUEUED');
  gate.release();
  await eventually(async () => expect((await reread(context, job!)).status).toBe('CANCELED'));
  await eventually(async () => expect((await reread(context, next!)).status).toBe('SUCCESS'));
  // The same daemon runs on; what the deaf one reported is nowhere.
  const after = await addJob(context, { type: 'work', targetId: 'deaf' });
  await eventually(async () => expect((await reread(context, after)).status).toBe('SUCCESS'));
  expect(await reread(context, job!)).toMatchObject({ status: 'CANCELED', result: null, progressMessage: null });
  expect((await eventTypes(context, job!)).at(-1)).toBe('job.canceled');
  await checkInvariants(context);
});

test('errors thrown from a timer and rejections that nobody awaits do not end the daemon', async () => {
  const effects = await useEffects();
  const daemon = await startProcess(context, { env: effects.env });
  const jobs = await addJobs(context, [{ type: 'stray' }, { type: 'stray' }]);
  await eventually(async () => {
    for (const job of jobs) expect(await reread(context, job)).toMatchObject({ status: 'SUCCESS', attempt: 1 });
  });
  await eventually(() => expect(daemon.output()).toContain('thrown from a timer'));
  expect(await daemon.isReady()).toBe(true);
  expect(daemon.child.exitCode).toBe(null);
});
