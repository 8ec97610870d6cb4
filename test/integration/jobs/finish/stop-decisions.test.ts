// A pause or cancel that was acknowledged while the attempt came to its end by itself (I7): for every outcome, which
// of the two decides.
import { expect, test } from 'vitest';
import { cancelJob, pauseJob } from '../../../../server/jobs/actions/pause-and-cancel.ts';
import { repairOrphans } from '../../../../server/jobs/finish/due-jobs.ts';
import { finishAttempts } from '../../../../server/jobs/finish/finish.ts';
import type { Outcome } from '../../../../server/jobs/finish/outcome.ts';
import { findExpiredLeases, recoverLease } from '../../../../server/jobs/finish/recover.ts';
import {
  endOf,
  isSupersedable,
  notSuperseded,
  requestedOutcome,
} from '../../../../server/jobs/finish/stop-decisions.ts';
import type { Job, StopIntent } from '../../../../server/jobs/model/job.ts';
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

const waiting = { kind: 'sleep', call: 'nap', until: '2100-01-01T00:00:00Z' } as const;
const outcomes = {
  complete: { kind: 'complete', result: 1 },
  completePartly: { kind: 'completePartly', result: 1 },
  stopCanceled: { kind: 'stopCanceled', message: 'stop' },
  fail: { kind: 'fail', error },
  'fail by a spent budget': { kind: 'fail', error: { code: 'TOKEN_LIMIT', message: 'too much' } },
  stopPaused: { kind: 'stopPaused', message: 'pause' },
  drained: { kind: 'stopPaused', message: 'drained', by: { kind: 'drain', author: 'worker:w1' } },
  retry: { kind: 'retry', error, delayMs: 0 },
  requeue: { kind: 'requeue', reason: 'drained' },
  recover: { kind: 'recover', error },
  recoverLater: { kind: 'recoverLater', error, delayMs: 0 },
  suspend: { kind: 'suspend', waiting, leftMs: 0 },
  suspendAside: { kind: 'suspendAside', waiting, leftMs: 0 },
} as const satisfies Record<string, Outcome>;

const canceled = { status: 'CANCELED', cancelRequested: false, attempt: 1 };
const paused = { status: 'PAUSED', cancelRequested: false, attempt: 1, hold: { kind: 'user', author: 'ann' } };
const failed = { status: 'ERROR', cancelRequested: false };
const afterCancel: Partial<Record<keyof typeof outcomes, object>> = {
  complete: { status: 'SUCCESS' },
  completePartly: { status: 'PARTIAL' },
};
const afterPause: Partial<Record<keyof typeof outcomes, object>> = {
  complete: { status: 'SUCCESS' },
  completePartly: { status: 'PARTIAL' },
  stopCanceled: canceled,
  fail: failed,
  'fail by a spent budget': { ...failed, error: { code: 'TOKEN_LIMIT' } },
  stopPaused: { ...paused, hold: { kind: 'user' } },
};
const names = Object.keys(outcomes) as (keyof typeof outcomes)[];

test.each(names)('%s, after a cancel was acknowledged', async (name) => {
  for (const free of [true, false]) {
    const job = await runningJob(free);
    await cancelJob(context.db, context.schema, by(job));
    expect((await finish(context, job, outcomes[name])).accepted.has(job.id)).toBe(true);
    expect(await reread(context, job)).toMatchObject(afterCancel[name] ?? { ...canceled, laneHead: free, asked: null });
  }
});

test.each(names)('%s, after a pause was acknowledged', async (name) => {
  for (const free of [true, false]) {
    const job = await runningJob(free);
    await pauseJob(context.db, context.schema, by(job));
    expect((await finish(context, job, outcomes[name])).accepted.has(job.id)).toBe(true);
    expect(await reread(context, job)).toMatchObject(afterPause[name] ?? { ...paused, laneHead: true });
  }
});

test('a drained job and a paused one end together, each with its own hold', async () => {
  const jobs = [await runningJob(true), await runningJob(true)] as const;
  await pauseJob(context.db, context.schema, by(jobs[1]));
  const items = jobs.map((job, n) => ({
    jobId: job.id,
    leaseId: job.leaseId as string,
    targetId: null,
    outcome: n === 0 ? outcomes.drained : outcomes.stopPaused,
  }));
  await finishAttempts(context.db, context.schema, items, { actor: 'worker:w1' });
  expect((await reread(context, jobs[0])).hold).toMatchObject({ kind: 'drain' });
  expect((await reread(context, jobs[1])).hold).toMatchObject({ kind: 'user' });
});

test('the guard in the statement and the decision in the process agree about every end', async () => {
  for (const name of names) {
    const end = endOf(outcomes[name]);
    const rows = await context.db.query<{ cancelIntent: StopIntent | null; written: boolean }>(
      `select cancel_intent as "cancelIntent", ${notSuperseded(end) ?? 'true'} as written
         from (values (null), ('pause'), ('cancel')) as j (cancel_intent)`,
    );
    for (const { cancelIntent, written } of rows) {
      const requested = requestedOutcome(end, { cancelIntent, cancelDetail: null });
      expect([end, cancelIntent, requested === undefined]).toEqual([end, cancelIntent, written]);
    }
    expect(isSupersedable(end)).toBe(rows.some((row) => !row.written));
  }
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
