// The database crashes and comes back: the daemon survives, keeps what it may keep, and goes on.
import { expect, test } from 'vitest';
import { checkEffects, useEffects } from '../support/effects.ts';
import { eventually } from '../support/eventually.ts';
import { checkInvariants } from '../support/invariants.ts';
import { addJob, addJobs, claim, reread } from '../support/jobs.ts';
import { startPrivateServer } from '../support/private-server.ts';
import { startProcess } from '../support/process.ts';

const patient = { timeoutMs: 60_000 };

test('an immediate restart of the database is survived by workers, heartbeat and sweeper', async () => {
  const context = await startPrivateServer();
  const effects = await useEffects();
  const gate = effects.gate('go');
  const daemon = await startProcess(context, { env: { ...effects.env, LEASE_SECONDS: '60' } });
  const given = [1, 2, 3].map((n) => ({ type: 'work', targetId: `r-${n}`, payload: { until: gate.path } }));
  const jobs = await addJobs(context, given);
  await eventually(() => expect(effects.read().filter((e) => e.kind === 'begin')).toHaveLength(3), patient);
  const lost = await addJob(context, { type: 'nobody-runs-this' });
  await claim(context, { owner: 'gone', leaseSeconds: 0.2 });
  for (let round = 0; round < 2; round++) await context.crash();
  gate.release();
  await eventually(async () => {
    for (const job of jobs) expect(await reread(context, job)).toMatchObject({ status: 'SUCCESS', attempt: 1 });
  }, patient);
  // The recovery task lives on.
  await eventually(async () => {
    expect(await reread(context, lost)).toMatchObject({ status: 'ERROR', error: { code: 'LEASE_EXPIRED' } });
  }, patient);
  const after = await daemon.request('POST', '/api/targets/r-1/jobs', { type: 'work' });
  expect(after.status).toBe(201);
  await eventually(async () => expect((await reread(context, after.body)).status).toBe('SUCCESS'), patient);
  expect(daemon.child.exitCode).toBe(null);
  checkEffects(effects.read());
  await checkInvariants(context);
}, 240_000);
