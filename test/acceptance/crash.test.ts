// Two daemons as real processes: one is killed, or stands still past its lease.
import { expect, test } from 'vitest';
import type { Job } from '../../server/jobs/model/job.ts';
import { checkEffects, useEffects } from '../support/daemon/effects.ts';
import { startProcess } from '../support/daemon/process.ts';
import { eventually } from '../support/eventually.ts';
import { addJob, addJobs, expireLeasesOf, reread } from '../support/jobs.ts';
import { checkInvariants } from '../support/model/invariants.ts';
import { useTenant } from '../support/postgres/database.ts';

const context = useTenant();
/** Of a daemon that is stopped until its lease is over, by its own clock too. */
const shortLease = { LEASE_SECONDS: '5' };
/** Of daemons that live: a busy machine must not make them late. */
const longLease = { LEASE_SECONDS: '120' };
/** A transaction that waits for something else is not ended, however busy the machine is. */
const longTransaction = { idleTimeoutMs: 600_000, timeoutMs: 600_000 };

test('jobs of a killed daemon are recovered by the other; the crash costs one attempt', async () => {
  const effects = await useEffects();
  const gate = effects.gate('go');
  const first = await startProcess(context, { name: 'killed', env: { ...effects.env, ...longLease } });
  const given = ['a', 'b', 'a', 'b'].map((lane) => ({
    type: 'work',
    targetId: `kill-${lane}`,
    maxAttempts: 2,
    payload: { until: gate.path },
  }));
  const jobs = await addJobs(context, given);
  await eventually(() => expect(effects.read().filter((e) => e.kind === 'begin')).toHaveLength(2));
  await startProcess(context, { name: 'survivor', env: { ...effects.env, ...longLease } });
  first.kill('SIGKILL');
  await first.exited;
  await expireLeasesOf(context, 'killed');
  await eventually(async () => {
    expect(await reread(context, jobs[0]!)).toMatchObject({ status: 'RUNNING', leaseOwner: 'survivor', attempt: 2 });
  });
  gate.release();
  await eventually(async () => {
    for (const job of jobs) expect((await reread(context, job)).status).toBe('SUCCESS');
  });
  const attempts = await Promise.all(jobs.map(async (job) => (await reread(context, job)).attempt));
  expect(attempts).toEqual([2, 2, 1, 1]);
  checkEffects(effects.read());
  await checkInvariants(context);
});

test('a daemon that was frozen past its lease can neither finish nor continue', async () => {
  const effects = await useEffects();
  const gate = effects.gate('go');
  const zombie = await startProcess(context, { name: 'zombie', env: { ...effects.env, ...shortLease } });
  const job = await addJob(context, {
    type: 'work',
    targetId: 'frozen',
    maxAttempts: 2,
    payload: { until: gate.path },
  });
  const next = await addJob(context, { type: 'work', targetId: 'frozen' });
  await eventually(() => expect(effects.read().length).toBeGreaterThan(1));
  zombie.kill('SIGSTOP');
  await startProcess(context, { name: 'successor', env: { ...effects.env, ...longLease } });
  await eventually(() => {
    expect(
      effects
        .read()
        .filter((e) => e.kind === 'begin')
        .map((e) => e.attempt),
    ).toEqual([1, 2]);
  });
  zombie.kill('SIGCONT');
  await eventually(async () => expect(await zombie.isReady()).toBe(true));
  await eventually(() => expect(zombie.output()).toMatch(/lease expired|lost/));
  expect(await reread(context, job)).toMatchObject({ status: 'RUNNING', leaseOwner: 'successor', attempt: 2 });
  gate.release();
  await eventually(async () => {
    expect(await reread(context, job)).toMatchObject({ status: 'SUCCESS', attempt: 2 });
    expect((await reread(context, next)).status).toBe('SUCCESS');
  });
  checkEffects(effects.read());
  await checkInvariants(context);
  zombie.kill('SIGTERM');
  expect(await zombie.exited).toEqual({ code: 0, signal: null });
});

// Frozen after its claim was sent and before the answer was read; with another daemon, whose sweeper takes the jobs for
// lost meanwhile, and without one.
test.each(['alone', 'beside another'])(
  'a daemon %s that freezes before its jobs begin costs them no attempt',
  async (how) => {
    const { db, schema } = context;
    const effects = await useEffects();
    const frozen = await startProcess(context, {
      name: `frozen-${how.slice(0, 5)}`,
      env: { ...effects.env, ...shortLease },
    });
    let jobs: Job[] = [];
    await db.transaction(async (tx) => {
      // The claim waits for this lock with all that it needs: it is answered while nobody reads.
      await tx.query(`lock table ${schema}.leases in share row exclusive mode`);
      const lane = `still-${how}`;
      jobs = await addJobs(context, [
        { type: 'work', targetId: lane, payload: {} },
        { type: 'work', targetId: lane, payload: {} },
        { type: 'work', payload: {} },
      ]);
      const waiting = `select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'
                       and query like '%picked as%'`;
      await eventually(async () => {
        expect(await db.query(waiting)).toHaveLength(1);
      });
      frozen.kill('SIGSTOP');
    }, longTransaction);
    const expired = `select 1 from ${schema}.leases where owner = $1 and state = $2 and expires_at < now() and $3 = any(job_ids)`;
    const isExpired = (state: string) => db.query(expired, [frozen.name, state, jobs[0]?.id]);
    if (how === 'alone') await eventually(async () => expect(await isExpired('ACTIVE')).toHaveLength(1));
    else {
      const other = await startProcess(context, {
        name: 'sweeping',
        env: { ...effects.env, WORKER_CONCURRENCY: '0' },
      });
      await eventually(async () => expect(await isExpired('EXPIRED')).toHaveLength(1));
      expect(await reread(context, jobs[0]!)).toMatchObject({ status: 'ERROR', error: { code: 'LEASE_EXPIRED' } });
      other.kill('SIGKILL');
      await other.exited;
    }
    expect(effects.read()).toEqual([]);
    frozen.kill('SIGCONT');
    await eventually(async () => {
      for (const job of jobs) expect(await reread(context, job)).toMatchObject({ status: 'SUCCESS', attempt: 1 });
    });
    expect(effects.read().filter((e) => e.kind === 'begin')).toHaveLength(3);
    checkEffects(effects.read());
    await checkInvariants(context);
  },
);
