// A job that ends leaves no question open, in whatever way it ends, and however close the question came before its end.
import { randomUUID } from 'node:crypto';
import { expect, test } from 'vitest';
import { cancelJob, pauseJob, skipJob } from '../../../../server/jobs/actions/pause-and-cancel.ts';
import { resolveJob } from '../../../../server/jobs/actions/resume.ts';
import { finishAttempts } from '../../../../server/jobs/finish/finish.ts';
import type { Outcome } from '../../../../server/jobs/finish/outcome.ts';
import { recoverLease } from '../../../../server/jobs/finish/recover.ts';
import { cancelChildren } from '../../../../server/jobs/flows/cancel-children.ts';
import type { Job } from '../../../../server/jobs/model/job.ts';
import { eventually } from '../../../support/eventually.ts';
import { addJob, claim, eventTypes, expireLease, finish, reread } from '../../../support/jobs.ts';
import { checkInvariants } from '../../../support/model/invariants.ts';
import { lockWaiters, useTenant } from '../../../support/postgres/database.ts';
import { askQuestion, plainCall } from '../../../support/questions.ts';

const context = useTenant();
const by = (job: { id: string }) => ({ jobId: job.id, actor: 'user:ann', author: 'ann' });

const ask = (job: Job) => askQuestion(context, job);

let types = 0;

async function running(targetId?: string): Promise<Job> {
  types += 1;
  const type = `asks-${types}`;
  await addJob(context, { type, ...(targetId !== undefined && { targetId }) });
  const [job] = (await claim(context, { types: [type] })).jobs;
  if (job === undefined) throw new Error('nothing was claimed');
  return job;
}

/** A running job of this target with an open question. */
async function asking(targetId?: string): Promise<Job> {
  const job = await running(targetId);
  expect(await ask(job)).toMatchObject({ status: 'open' });
  return job;
}

function suspend(job: Job) {
  const waiting = { kind: 'question' as const, step: plainCall.name, until: '2090-01-01T00:00:00Z' };
  return finish(context, job, { kind: 'suspend', waiting, leftMs: 1e9, awaited: { steps: [plainCall.name] } });
}

async function expectClosed(job: Job, status: string): Promise<void> {
  expect((await reread(context, job)).status).toBe(status);
  const questions = await context.db.query(`select status from ${context.schema}.questions where job_id = $1`, [
    job.id,
  ]);
  expect(questions).toEqual([{ status: 'canceled' }]);
  expect(await eventTypes(context, job)).toContain('question.canceled');
  await checkInvariants(context);
}

const outcomes: Record<string, Outcome> = {
  SUCCESS: { kind: 'complete', result: null },
  PARTIAL: { kind: 'completePartly', result: 1 },
  CANCELED: { kind: 'stopCanceled', message: 'stop' },
};

for (const [status, outcome] of Object.entries(outcomes)) {
  for (const targetId of [undefined, `lane-${status}`]) {
    test(`the attempt ends as ${status}, ${targetId === undefined ? 'without a lane' : 'in a lane'}`, async () => {
      const job = await asking(targetId);
      const next = targetId === undefined ? undefined : await addJob(context, { targetId });
      const result = await finish(context, job, outcome);
      expect([...result.accepted]).toEqual([job.id]);
      await expectClosed(job, status);
      if (next !== undefined) expect(await reread(context, next)).toMatchObject({ laneHead: true });
    });
  }
}

test('the next job of the lane is not claimed with that end, but reported as runnable', async () => {
  const { db, schema } = context;
  const job = await asking('continued');
  const next = await addJob(context, { type: job.type, targetId: 'continued' });
  const claimable = { owner: 'w1', limit: 10, leaseSeconds: 60, types: [job.type] };
  const item = {
    jobId: job.id,
    leaseId: job.leaseId as string,
    targetId: job.targetId,
    outcome: { kind: 'complete', result: null } as const,
  };
  const claimNext = { ...claimable, leaseId: randomUUID() };
  const { claimed, runnable } = await finishAttempts(db, schema, [item], { actor: 'worker:w1', claimNext });
  await expectClosed(job, 'SUCCESS');
  expect({ claimed: claimed?.jobs ?? [], runnable }).toEqual({ claimed: [], runnable: true });
  expect((await claim(context, { types: [job.type] })).jobs.map(({ id }) => id)).toEqual([next.id]);
});

test('jobs with and without questions end in one call', async () => {
  const asked = await asking();
  const items = [asked, await running()].map(({ id, leaseId, targetId }) => {
    return { jobId: id, leaseId: leaseId as string, targetId, outcome: { kind: 'complete', result: null } as const };
  });
  const { accepted } = await finishAttempts(context.db, context.schema, items, { actor: 'worker:w1' });
  expect(accepted.size).toBe(2);
  await expectClosed(asked, 'SUCCESS');
});

test('a cancel of a waiting job, and skip and resolve of a held one, close its questions', async () => {
  const { db, schema } = context;
  const waiting = await asking();
  await suspend(waiting);
  await cancelJob(db, schema, by(waiting));
  await expectClosed(waiting, 'CANCELED');
  const skipped = await asking('skipped');
  await suspend(skipped);
  await pauseJob(db, schema, by(skipped));
  await skipJob(db, schema, by(skipped));
  await expectClosed(skipped, 'CANCELED');
  const resolved = await asking('resolved');
  await finish(context, resolved, { kind: 'fail', error: { code: 'HANDLER_ERROR', message: 'no' } });
  await resolveJob(db, schema, { ...by(resolved), result: 1 });
  await expectClosed(resolved, 'SUCCESS');
});

test('the cancel of a parent closes the questions of its child', async () => {
  const { db, schema } = context;
  const parent = await addJob(context, { runAt: '2090-01-01T00:00:00Z' });
  const child = await asking();
  await suspend(child);
  await db.query(
    `insert into ${schema}.dependencies (job_id, after_id, step, on_failure, state) values ($1, $2, 'all', 'continue', 'canceling')`,
    [parent.id, child.id],
  );
  await cancelJob(db, schema, by(parent));
  await cancelChildren(db, schema, 'test');
  await expectClosed(child, 'CANCELED');
});

test('a lost lease with a requested cancel closes the questions', async () => {
  const { db, schema } = context;
  const job = await asking();
  await cancelJob(db, schema, by(job));
  await expireLease(context, job.leaseId as string);
  const lease = { id: job.leaseId as string, kind: 'local' as const, owner: 'w1', job_ids: [job.id] };
  await recoverLease(db, schema, lease, { actor: 'sweeper:test', graceSeconds: 0, tokenLimit: 0 });
  await expectClosed(job, 'CANCELED');
});

for (const [status, outcome] of Object.entries(outcomes)) {
  test(`a question that is stored while the outcome ${status} waits for it`, async () => {
    const job = await running();
    const { db, schema } = context;
    let results: Promise<unknown> = Promise.resolve();
    await db.transaction(async (tx) => {
      await tx.query(`select id from ${schema}.jobs where id = $1 for update`, [job.id]);
      const asked = ask(job);
      await blocked(1);
      const ended = finish(context, job, outcome);
      await blocked(2);
      results = Promise.all([asked, ended]);
    });
    expect(await results).toMatchObject([{ status: 'open' }, { runnable: false }]);
    await expectClosed(job, status);
  });
}

test('the same question asked many times concurrently is one question', async () => {
  const job = await running();
  const answers = await Promise.all(Array.from({ length: 8 }, () => ask(job)));
  const ids = answers.map((state) => state?.status === 'open' && state.questionId);
  expect(new Set(ids).size).toBe(1);
  await finish(context, job);
  await expectClosed(job, 'SUCCESS');
});

/** So many sessions wait for a lock. */
async function blocked(count: number): Promise<void> {
  await eventually(async () => {
    expect(await context.db.query(lockWaiters(context.schema))).toHaveLength(count);
  });
}
