// The database crashes and comes back: the daemon survives, keeps what it may keep, and goes on.
import { setTimeout as delay } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { checkEffects, useEffects } from '../support/daemon/effects.ts';
import { startProcess } from '../support/daemon/process.ts';
import { eventually } from '../support/eventually.ts';
import { addJob, addJobs, claim, reread } from '../support/jobs.ts';
import { checkInvariants } from '../support/model/invariants.ts';
import { startPrivateServer } from '../support/postgres/private-server.ts';

test('an immediate restart of the database is survived by workers, heartbeat and sweeper', async () => {
  const context = await startPrivateServer();
  const effects = await useEffects();
  const gate = effects.gate('go');
  const daemon = await startProcess(context, { env: { ...effects.env, LEASE_SECONDS: '600' } });
  const given = [1, 2, 3].map((n) => ({ type: 'work', targetId: `r-${n}`, payload: { until: gate.path } }));
  const jobs = await addJobs(context, given);
  await eventually(() => expect(effects.read().filter((e) => e.kind === 'begin')).toHaveLength(3));
  const lost = await addJob(context, { type: 'nobody-runs-this' });
  await claim(context, { owner: 'gone', leaseSeconds: 0.2 });
  for (let round = 0; round < 2; round++) await context.crash();
  gate.release();
  await eventually(async () => {
    for (const job of jobs) expect(await reread(context, job)).toMatchObject({ status: 'SUCCESS', attempt: 1 });
  });
  // The recovery task lives on.
  await eventually(async () => {
    expect(await reread(context, lost)).toMatchObject({ status: 'ERROR', error: { code: 'LEASE_EXPIRED' } });
  });
  const after = await daemon.request('POST', '/api/targets/r-1/jobs', { type: 'work' });
  expect(after.status).toBe(201);
  await eventually(async () => expect((await reread(context, after.body)).status).toBe('SUCCESS'));
  expect(daemon.child.exitCode).toBe(null);
  checkEffects(effects.read());
  await checkInvariants(context);
});

const stillAway = 'database still cannot be used';

interface Line {
  level: number;
  msg: string;
  err?: unknown;
}

test('an absent database is logged once for each change, without stacks, and without a warning for each probe', async () => {
  const context = await startPrivateServer();
  const effects = await useEffects();
  const gate = effects.gate('go');
  const daemon = await startProcess(context, { env: { ...effects.env, LEASE_SECONDS: '600' } });
  const job = await addJob(context, { type: 'work', targetId: 'outage', payload: { until: gate.path } });
  await eventually(() => expect(effects.read().filter((e) => e.kind === 'begin')).toHaveLength(1));
  const from = daemon.output().length;
  const lines = () =>
    daemon
      .output()
      .slice(from)
      .split('\n')
      .filter((line) => line.startsWith('{') && line.endsWith('}'))
      .map((line) => JSON.parse(line) as Line);
  await context.halt();
  // A probe that was answered just before may be repeated for a moment.
  await eventually(async () => expect(await daemon.isReady()).toBe(false));
  // Probes and clients come as they do in life, for longer than any retry waits.
  for (let n = 0; n < 20; n++) {
    expect(await daemon.isReady()).toBe(false);
    expect((await daemon.request('POST', '/api/targets/outage/jobs', { type: 'work' })).status).toBe(503);
    await delay(200);
  }
  // On a busy machine the event loop is late, and an outage of half a minute is summed up: neither is a report of a change.
  const away = lines().filter(({ msg }) => !msg.startsWith('event loop was blocked') && msg !== stillAway);
  expect(away.filter(({ msg }) => msg === 'database cannot be used; retrying until it can')).toHaveLength(1);
  expect(away.filter(({ err }) => err !== undefined)).toEqual([]);
  expect(away.length).toBeLessThan(10);
  await context.restart();
  gate.release();
  await eventually(async () => expect((await reread(context, job)).status).toBe('SUCCESS'));
  await eventually(() => expect(lines().map(({ msg }) => msg)).toContain('database can be used again'));
});
