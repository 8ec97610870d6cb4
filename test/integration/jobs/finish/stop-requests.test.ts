// A pause or cancel that was acknowledged while the attempt came to its end by itself (I7).
import { expect, test } from 'vitest';
import { cancelJob, pauseJob } from '../../../../server/jobs/actions/pause-and-cancel.ts';
import { repairOrphans } from '../../../../server/jobs/finish/due-jobs.ts';
import type { Outcome } from '../../../../server/jobs/finish/outcome.ts';
import { findExpiredLeases, recoverLease } from '../../../../server/jobs/finish/recover.ts';
import type { Job } from '../../../../server/jobs/model/job.ts';
import { addJob, claim, expireLease, finish, reread } from '../../../support/jobs.ts';
import { checkInvariants } from '../../../support/model/invariants.ts';
import { staysOpen, useTenant } from '../../../support/postgres/database.ts';

const context = useTenant();
const firstId = '00000000-0000-0000-0000-000000000000';
const error = { code: 'X', message: 'x' };
const by = (job: Job) => ({ jobId: job.id, actor: 'user:ann', author: 'ann', reason: 'wrong machine' });

async function runningJob(free: boolean): Promise<Job> {
  const targetId = free ? undefined : `t-${crypto.randomUUID()}`;
  const added = await addJob(context, { maxAttempts: 3, ...(targetId !== undefined && { targetId }) });
  return (await claim(context)).jobs.find((job) => job.id === added.id) as Job;
}

const continues: Outcome[] = [
  { kind: 'retry', error, delayMs: 0 },
  { kind: 'requeue', reason: 'drained' },
  { kind: 'recover', error },
  { kind: 'recoverLater', error, delayMs: 0 },
];

test.each(continues)('a cancel wins over $kind', async (outcome) => {
  for (const free of [true, false]) {
    const job = await runningJob(free);
    await cancelJob(context.db, context.schema, by(job));
    expect((await finish(context, job, outcome)).accepted.has(job.id)).toBe(true);
    expect(await reread(context, job)).toMatchObject({ status: 'CANCELED', cancelRequested: false, attempt: 1 });
  }
});

test.each(continues)('a pause wins over $kind', async (outcome) => {
  const job = await runningJob(false);
  await pauseJob(context.db, context.schema, by(job));
  await finish(context, job, outcome);
  expect(await reread(context, job)).toMatchObject({
    status: 'PAUSED',
    laneHead: true,
    error: { message: 'Job was interrupted by user' },
  });
});

test('a cancel wins over the pause of a drain and over a failure, so that the lane continues', async () => {
  for (const outcome of [{ kind: 'stopPaused', message: 'drained' } as const, { kind: 'fail', error } as const]) {
    const job = await runningJob(false);
    await cancelJob(context.db, context.schema, by(job));
    await finish(context, job, outcome);
    expect(await reread(context, job)).toMatchObject({ status: 'CANCELED', laneHead: false });
  }
});

test('an earlier success wins over a cancel, and a cancel over a spent budget, which wins over a pause', async () => {
  const done = await runningJob(false);
  await cancelJob(context.db, context.schema, by(done));
  await finish(context, done, { kind: 'complete', result: 1 });
  expect((await reread(context, done)).status).toBe('SUCCESS');

  const spent = await runningJob(false);
  await cancelJob(context.db, context.schema, by(spent));
  await finish(context, spent, { kind: 'fail', error: { code: 'TOKEN_LIMIT', message: 'too much' } });
  expect(await reread(context, spent)).toMatchObject({ status: 'CANCELED', asked: null });

  const paused = await runningJob(false);
  await pauseJob(context.db, context.schema, by(paused));
  await finish(context, paused, { kind: 'fail', error: { code: 'TOKEN_LIMIT', message: 'too much' } });
  expect(await reread(context, paused)).toMatchObject({ status: 'ERROR', error: { code: 'TOKEN_LIMIT' } });
});

test('a cancel between the read and the write of the sweeper is not lost', async () => {
  const job = await runningJob(false);
  await expireLease(context, job.leaseId as string);
  const expired = await findExpiredLeases(context.db, context.schema, 0, firstId, 100);
  const lease = expired.find(({ id }) => id === job.leaseId);
  const sweeping = {
    ...context.db,
    transaction: slowTransaction(() => cancelJob(context.db, context.schema, by(job))),
  };
  await recoverLease(sweeping as never, context.schema, lease!, { actor: 'sweeper:x', graceSeconds: 0, tokenLimit: 0 });
  expect((await reread(context, job)).status).toBe('CANCELED');
});

/** Acts after the first statement of the transaction: the sweeper has read the jobs, and not yet their lanes. */
function slowTransaction(meanwhile: () => Promise<unknown>): typeof context.db.transaction {
  return (work) =>
    context.db.transaction(async (tx) => {
      let statements = 0;
      return work({
        query: async (text, values) => {
          const rows = await tx.query(text, values);
          if (++statements === 1) await meanwhile();
          return rows as never;
        },
      });
    }, staysOpen);
}

test('a job that only waits for longer than an outage is late, not orphaned', async () => {
  const late = await addJob(context, { runAt: new Date(Date.now() + 3_600_000).toISOString() });
  await context.db.query(`update ${context.schema}.jobs set run_at = now() - interval '3 hours' where id = $1`, [
    late.id,
  ]);
  await repairOrphans(context.db, context.schema, {
    actor: 'sweeper:x',
    afterSeconds: 7200,
    leaseSeconds: 15,
    from: firstId,
  });
  expect((await reread(context, late)).status).toBe('QUEUED');
});

test('every invariant holds', async () => {
  await checkInvariants(context);
});
