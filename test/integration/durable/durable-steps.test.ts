// Durable steps: what a step returned is stored and returned again after a wait, a retry, a crash and a resume; code that
// no longer makes the same calls is named, not misread.
import { expect, test } from 'vitest';
import { Recoverable } from '../../../server/durable/handler-errors.ts';
import { resumeJob } from '../../../server/jobs/actions/resume.ts';
import { listPhases } from '../../../server/jobs/attempt/phases.ts';
import { saveSteps } from '../../../server/jobs/attempt/save-steps.ts';
import { queueDueJobs } from '../../../server/jobs/finish/due-jobs.ts';
import type { Job } from '../../../server/jobs/model/job.ts';
import { runHandler } from '../../../server/testing/index.ts';
import { defineJob } from '../../../server/worker/handlers/define-job.ts';
import type { JobContext } from '../../../server/worker/handlers/job-context.ts';
import { startDaemon, useDaemon } from '../../support/daemon/daemon.ts';
import { eventually } from '../../support/eventually.ts';
import { addJob, claim, eventTypes, expireLease, reread } from '../../support/jobs.ts';
import { checkInvariants } from '../../support/model/invariants.ts';
import { useTenant } from '../../support/postgres/database.ts';

type Code = (context: JobContext, ran: (name: string) => number) => Promise<unknown>;

const context = useTenant();
/** How often each step of each test ran, and the code that is deployed for each. */
const counts = new Map<string, number>();
const deployed = new Map<string, Code>();
const scripted = defineJob({
  type: 'scripted',
  retry: { attempts: 2, delaySeconds: 0, jitter: 0 },
  async run(given: JobContext) {
    const test = (given.payload as { test: string }).test;
    const ran = (name: string) => {
      const count = (counts.get(`${test}:${name}`) ?? 0) + 1;
      counts.set(`${test}:${name}`, count);
      return count;
    };
    return deployed.get(test)?.(given, ran);
  },
});
const running = useDaemon(context, { handlers: [scripted] });

async function enqueue(test: string, code: Code): Promise<Job> {
  deployed.set(test, code);
  const request = { type: 'scripted', payload: { test }, maxAttempts: 2, targetId: test };
  const [enqueued] = await running.daemon.enqueue(context.tenant, [request], 'test');
  return enqueued!.job;
}

async function becomes(job: Pick<Job, 'id'>, status: Job['status']): Promise<Job> {
  await eventually(async () => expect((await reread(context, job)).status).toBe(status));
  return reread(context, job);
}

async function resume(job: Pick<Job, 'id'>, code: Code, test: string): Promise<void> {
  deployed.set(test, code);
  await resumeJob(context.db, context.schema, { jobId: job.id, actor: 'user:ann' });
  running.daemon.signals.workAvailable(context.tenant);
}

async function wakeNow(job: Pick<Job, 'id'>): Promise<void> {
  await becomes(job, 'WAITING');
  await context.db.query(`update ${context.schema}.phases set waits_until = now() where job_id = $1`, [job.id]);
  await context.db.query(`update ${context.schema}.jobs set run_at = now() where id = $1`, [job.id]);
  await queueDueJobs(context.db, context.schema, 'test');
  running.daemon.signals.workAvailable(context.tenant);
}

test('steps run once over a wait, a retry and a resume, and return their first results', async () => {
  const job = await enqueue('once', async ({ step, sleepFor, job }, ran) => {
    const a = await step('a', () => ({ at: ran('a'), left: undefined }));
    await sleepFor('3d');
    const parts = [];
    for (const i of [1, 2]) parts.push(await step('part', () => ran(`part${i}`), { key: i }));
    if (job.attempt === 2) throw new Recoverable('again');
    if (job.attempt === 3) throw new Error('for a person');
    return { a, parts };
  });
  await wakeNow(job);
  await becomes(job, 'ERROR');
  await resumeJob(context.db, context.schema, { jobId: job.id, actor: 'user:ann' });
  running.daemon.signals.workAvailable(context.tenant);
  expect(await becomes(job, 'SUCCESS')).toMatchObject({ attempt: 4, result: { a: { at: 1 }, parts: [1, 1] } });
  expect(['a', 'part1', 'part2'].map((name) => counts.get(`once:${name}`))).toEqual([1, 1, 1]);
  expect(await listPhases(context.db, context.schema, job.id)).toMatchObject([
    { name: 'a', kind: 'step', status: 'completed', position: 0 },
    { name: 'sleep#1', kind: 'sleep', status: 'completed', position: 1 },
    { name: 'part#1', kind: 'step', position: 2 },
    { name: 'part#2', kind: 'step', position: 3 },
  ]);
  expect((await eventTypes(context, job)).filter((type) => type === 'job.step_completed')).toHaveLength(3);
  await checkInvariants(context);
});

test('a crash after a step does not run it again, and a lost lease cannot store one', async () => {
  const job = await addJob(context, { type: 'crashed', payload: {}, maxAttempts: 2 });
  const { leaseId } = await claim(context, { types: ['crashed'] });
  const held = { jobId: job.id, leaseId };
  const end = { name: 'a', position: 0, parallel: false, status: 'completed', tries: 1, ms: 1 } as const;
  const save = async (name: string) => {
    const write = { held, changes: [{ ...end, name, result: 'first' }], actor: 'worker:w1' };
    return (await saveSteps(context.db, context.schema, [write])).get(job.id);
  };
  expect(await save('a')).toEqual({ cancelIntent: null, cancelDetail: null });
  // A second daemon runs the type from here on. The row of the job may be sealed already: it must not be altered.
  const run = ({ step }: JobContext) => step('a', () => counts.set('crash:a', 1).size);
  await startDaemon(context, { handlers: [defineJob({ type: 'crashed', run })] });
  await expireLease(context, leaseId);
  expect(await becomes(job, 'SUCCESS')).toMatchObject({ result: 'first', attempt: 2 });
  expect(counts.get('crash:a')).toBeUndefined();
  expect(await save('b')).toBeUndefined();
  expect(await listPhases(context.db, context.schema, job.id)).toHaveLength(1);
});

test('errors name a repeated name, a changed order and a missing call', async () => {
  const twice = await enqueue('twice', async ({ step }) => {
    await step('a', () => 1);
    await step('a', () => 2);
  });
  expect((await becomes(twice, 'ERROR')).error).toMatchObject({ code: 'STEP_NAME_TWICE' });
  const broken: Code = async ({ step }) => {
    await step('charge', () => 1);
    await step('ship', () => 2);
    throw new Error('stop');
  };
  const changed = await enqueue('changed', broken);
  await becomes(changed, 'ERROR');
  await resume(changed, async ({ step }) => void (await step('ship', () => 2)), 'changed');
  await eventually(async () => {
    const { error } = await reread(context, changed);
    expect(error).toMatchObject({ code: 'STEP_ORDER_CHANGED', message: expect.stringMatching(/"charge".*"ship"/) });
  });
  const missing = await enqueue('missing', broken);
  await becomes(missing, 'ERROR');
  await resume(missing, ({ step }) => step('charge', () => 1), 'missing');
  await eventually(async () => {
    const { error } = await reread(context, missing);
    expect(error).toMatchObject({ code: 'STEP_MISSING', message: expect.stringContaining('"ship"') });
  });
  await resume(missing, async ({ step }) => (await step('charge', () => 1)) + (await step('ship', () => 9)), 'missing');
  expect(await becomes(missing, 'SUCCESS')).toMatchObject({ result: 3 });
});

test('a run without any durable call is compared with the earlier ones', async () => {
  const charged: Code = async ({ step }) => {
    await step('charge', () => 1);
    throw new Error('stop');
  };
  const named = async (job: Job, message: string) =>
    eventually(async () => {
      const { status, error } = await reread(context, job);
      expect({ status, error }).toMatchObject({ status: 'ERROR', error: { code: 'STEP_MISSING', message } });
    });
  const silent = await enqueue('silent', charged);
  await becomes(silent, 'ERROR');
  await resume(silent, async () => 'nothing done', 'silent');
  await named(silent, 'An earlier run made the durable call "charge"; this run ended without it.');
  // The call remains, without effect, until the last job that has made it has ended.
  await resume(silent, ({ step }) => step('charge', () => 2), 'silent');
  expect(await becomes(silent, 'SUCCESS')).toMatchObject({ result: 1 });
  await checkInvariants(context);
});

test('a failure that the handler caught is thrown again after a wait; one that failed the job is tried again', async () => {
  const saga = await enqueue('saga', async ({ step, sleepFor }, ran) => {
    const order: unknown[] = [];
    try {
      await step('pay', () => {
        throw Object.assign(new Error(`declined ${ran('pay')}`), { code: 'DECLINED' });
      });
    } catch (error) {
      order.push((error as { code: string }).code, await step('refund', () => 'refunded'));
    }
    await sleepFor('1d');
    return order;
  });
  await wakeNow(saga);
  expect(await becomes(saga, 'SUCCESS')).toMatchObject({ result: ['DECLINED', 'refunded'] });
  expect(counts.get('saga:pay')).toBe(1);
  const late = await enqueue('late', async ({ step, sleepFor }, ran) => {
    const [paid] = await Promise.allSettled([
      step('pay', () => {
        if (ran('pay') === 1) throw new Error('declined');
        return 'paid';
      }),
      sleepFor('1d'),
    ]);
    if (paid.status === 'rejected') throw paid.reason;
    return paid.value;
  });
  await wakeNow(late);
  await becomes(late, 'ERROR');
  await resumeJob(context.db, context.schema, { jobId: late.id, actor: 'user:ann' });
  running.daemon.signals.workAvailable(context.tenant);
  expect(await becomes(late, 'SUCCESS')).toMatchObject({ result: 'paid' });
  await checkInvariants(context);
});

test('a step has tries and a time limit, and calls may be concurrent', async () => {
  const job = await enqueue('tries', async ({ step }, ran) => {
    const retried = await step(
      'flaky',
      () => {
        if (ran('flaky') < 3) throw new Recoverable('busy');
        return 'ok';
      },
      { retry: { attempts: 3, delaySeconds: 0, jitter: 0 } },
    );
    const slow = ({ signal }: { signal: AbortSignal }) =>
      new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason), { once: true }));
    const code = await step('slow', slow, { timeoutSeconds: 0.05 }).catch((error: { code: string }) => error.code);
    const both = await Promise.all([step('x', async () => 1), step('y', () => 2)]);
    return { retried, code, both };
  });
  expect((await becomes(job, 'SUCCESS')).result).toEqual({ retried: 'ok', code: 'TIMEOUT', both: [1, 2] });
});

test('the test kit keeps steps in memory', async () => {
  const greet = defineJob({ type: 'greet', run: ({ step }) => step('name', () => 'ann') });
  expect(await runHandler(greet)).toMatchObject({ result: 'ann', steps: { name: 'ann' } });
  expect(await runHandler(greet, { stepResults: { name: 'bob' } })).toMatchObject({ result: 'bob' });
});
