// What can happen to a job, in each durable call that it can be in: one table. Every job makes three calls: a step before,
// the call of its row, a step after. Whatever happens, a completed call is not made again, and the handler gets what was
// stored.
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { Daemon } from '../../../server/daemon/daemon.ts';
import { stopReasonOf } from '../../../server/durable/stop-reason.ts';
import { cancelJob, pauseJob } from '../../../server/jobs/actions/pause-and-cancel.ts';
import { resumeJob } from '../../../server/jobs/actions/resume.ts';
import { listPhases } from '../../../server/jobs/attempt/phases.ts';
import { queueDueJobs } from '../../../server/jobs/finish/due-jobs.ts';
import { resolveDependencies } from '../../../server/jobs/flows/resolve-dependencies.ts';
import type { Job } from '../../../server/jobs/model/job.ts';
import { answerQuestion } from '../../../server/jobs/questions/answer.ts';
import { deliverEvents } from '../../../server/jobs/received/deliver-events.ts';
import { receiveEvent } from '../../../server/jobs/received/receive-event.ts';
import { defineJob } from '../../../server/worker/handlers/define-job.ts';
import type { JobContext } from '../../../server/worker/handlers/job-context.ts';
import { createDaemon } from '../../support/daemon/daemon.ts';
import { eventually } from '../../support/eventually.ts';
import { addJob, eventTypes, expireLease, reread } from '../../support/jobs.ts';
import { checkInvariants } from '../../support/model/invariants.ts';
import { useTenant } from '../../support/postgres/database.ts';

const context = useTenant();
type Code = (given: JobContext) => Promise<unknown>;
type JobId = Pick<Job, 'id'>;

/** How often something happened to a job: `counts.get('<job id> before')` for runs of a step. */
const counts = new Map<string, number>();
const times = ({ id }: JobId, what: string) => counts.get(`${id} ${what}`) ?? 0;
function count(job: JobId, what: string): number {
  counts.set(`${job.id} ${what}`, times(job, what) + 1);
  return times(job, what);
}
/** Runs of the step in the middle that may end: `<job id>` for all, or `<job id> <run>`. */
const released = new Set<string>();

/** Children run when the test makes them due. */
const later = '2199-01-01T00:00:00.000Z';

/** The call in the middle, as its handler makes it. */
const middle = {
  step: ({ step, job, signal }) =>
    step('middle', async () => {
      const run = count(job, 'middle');
      while (!released.has(job.id) && !released.has(`${job.id} ${run}`)) {
        // A run that has lost its lease does not notice.
        if (signal.aborted && stopReasonOf(signal)?.kind !== 'leaseLost') throw signal.reason;
        await new Promise((resolve) => setTimeout(resolve, 5));
      }
      return `run ${run}`;
    }),
  sleep: async ({ sleepFor }) => {
    await sleepFor('3d', { name: 'middle' });
    return 'slept';
  },
  event: async ({ waitForEvent, job }) => (await waitForEvent('go', { match: { job: job.id }, name: 'middle' })).data,
  children: ({ fanOut }) => fanOut('middle', [1, 2], (n) => ({ type: 'child', payload: { n }, runAt: later })),
  question: async ({ ask }) => (await ask({ title: 'Go?', actions: ['Yes', 'No'], name: 'middle' })).action,
} satisfies Record<string, Code>;
type Kind = keyof typeof middle;

/** Other code than `script`, by job id: between the calls, or in place of all. */
const between = new Map<string, Code>();
const changed = new Map<string, Code>();

const script: Code = async (given) => {
  const { job, step, payload } = given;
  const before = await step('before', () => count(job, 'before'));
  const got = await middle[(payload as { kind: Kind }).kind](given);
  await between.get(job.id)?.(given);
  return { before, got, after: await step('after', () => count(job, 'after')) };
};
const scripted = defineJob({
  type: 'scripted',
  run: async (given: JobContext) => {
    try {
      return await (changed.get(given.job.id) ?? script)(given);
    } finally {
      count(given.job, 'ended');
    }
  },
});
const child = defineJob({ type: 'child', run: ({ payload }) => (payload as { n: number }).n * 10 });

let daemon: Daemon | undefined;
async function start(): Promise<void> {
  daemon = createDaemon(context, { handlers: [scripted, child] });
  await daemon.start();
}
async function stop(): Promise<void> {
  await daemon?.stop(0);
  daemon = undefined;
}
beforeAll(start);
afterAll(stop);

async function becomes(job: JobId, status: Job['status']): Promise<Job> {
  return eventually(async () => {
    const now = await reread(context, job);
    expect({ status: now.status, error: now.error }).toMatchObject({ status });
    return now;
  });
}

/** A job that is in the call of its row. */
async function reach(kind: Kind): Promise<Job> {
  const request = { type: 'scripted', payload: { kind }, maxAttempts: 3, onDrain: 'requeue' } as const;
  const job = await addJob(context, request);
  daemon?.signals.workAvailable(context.tenant);
  if (kind === 'step') await eventually(() => expect(times(job, 'middle')).toBe(1));
  else expect((await becomes(job, 'WAITING')).waiting).toMatchObject({ kind, step: 'middle' });
  return job;
}

const by = (job: JobId) => ({ jobId: job.id, actor: 'user:ann' });
const pause = (job: JobId) => pauseJob(context.db, context.schema, by(job));
const cancel = (job: JobId) => cancelJob(context.db, context.schema, by(job));
async function resume(job: JobId): Promise<void> {
  await resumeJob(context.db, context.schema, by(job));
  daemon?.signals.workAvailable(context.tenant);
}

async function wakeDue(): Promise<void> {
  await queueDueJobs(context.db, context.schema, 'test');
  daemon?.signals.workAvailable(context.tenant);
}

async function childrenOf(job: JobId): Promise<Pick<Job, 'id' | 'status'>[]> {
  return context.db.query(`select id, status from ${context.schema}.jobs where parent_id = $1`, [job.id]);
}

async function questionsOf(job: JobId): Promise<{ id: string; status: string }[]> {
  return context.db.query(`select id, status from ${context.schema}.questions where job_id = $1`, [job.id]);
}

async function answer(job: JobId, action: string): Promise<void> {
  const [question] = await questionsOf(job);
  await answerQuestion(context.db, context.schema, { questionId: question!.id, action, actor: 'user:ann' });
  daemon?.signals.workAvailable(context.tenant);
}

async function startChildren(job: JobId): Promise<void> {
  const due = `update ${context.schema}.jobs set run_at = now() where parent_id = $1 and status = 'PENDING'`;
  await context.db.query(due, [job.id]);
  await wakeDue();
}

async function endSleep(job: JobId): Promise<void> {
  const { db, schema } = context;
  await db.query(`update ${schema}.phases set waits_until = now() where job_id = $1 and kind = 'sleep'`, [job.id]);
  await db.query(`update ${schema}.jobs set run_at = now() where id = $1 and status = 'WAITING'`, [job.id]);
}

async function send(job: JobId, id: string): Promise<void> {
  await receiveEvent(
    context.db,
    context.schema,
    { name: 'go', data: { job: job.id, id }, id: `${job.id} ${id}` },
    'test',
  );
  daemon?.onEventReceived(context.tenant);
}

/** What the call waits for comes, once. */
const deliver: Record<Kind, (job: JobId) => Promise<unknown>> = {
  step: async (job) => released.add(job.id),
  sleep: (job) => endSleep(job).then(wakeDue),
  event: (job) => send(job, 'first'),
  children: startChildren,
  question: (job) => answer(job, 'Yes'),
};

/** The same comes twice, or by two ways at once. Returns what the handler gets. */
const deliverTwice: Record<Kind, (job: JobId) => Promise<unknown>> = {
  async step(job) {
    // The job is no longer this run's, which does not know and ends its step: the next run's result counts.
    await crash(job);
    released.add(`${job.id} 1`);
    await eventually(() => expect(times(job, 'ended')).toBe(1));
    expect(await stored(job)).toEqual({ before: 'completed' });
    released.add(`${job.id} 2`);
    return 'run 2';
  },
  async sleep(job) {
    await endSleep(job);
    await Promise.all([wakeDue(), wakeDue(), wakeDue()]);
    return 'slept';
  },
  async event(job) {
    await Promise.all([send(job, 'first'), send(job, 'first')]);
    const again = () => deliverEvents(context.db, context.schema, 'test');
    await Promise.all([again(), again(), again()]);
    await send(job, 'second');
    return { job: job.id, id: 'first' };
  },
  async children(job) {
    await startChildren(job);
    const ended = (await childrenOf(job)).map(({ id }) => id);
    for (const id of ended) await becomes({ id }, 'SUCCESS');
    const resolve = async () => {
      await context.db.transaction((tx) => resolveDependencies(tx, context.schema, { ended, waiting: [job.id] }));
      await wakeDue();
    };
    await Promise.all([resolve(), resolve(), resolve()]);
    return [10, 20];
  },
  async question(job) {
    const answers = await Promise.allSettled([answer(job, 'Yes'), answer(job, 'No')]);
    const [lost] = answers.filter(({ status }) => status === 'rejected');
    expect(lost).toMatchObject({ reason: { code: 'QUESTION_CLOSED' } });
    return answers[0].status === 'fulfilled' ? 'Yes' : 'No';
  },
};

function delivered(kind: Kind, job: JobId): unknown {
  const values = {
    step: 'run 1',
    sleep: 'slept',
    event: { job: job.id, id: 'first' },
    children: [10, 20],
    question: 'Yes',
  };
  return values[kind];
}

/** The lease of the job's attempt expires, as after the death of its process, and the job is recovered. */
async function crash(job: JobId): Promise<void> {
  const { leaseId } = await reread(context, job);
  await eventually(async () => {
    // The heartbeat of the process, which lives, may have renewed it.
    await expireLease(context, leaseId!);
    expect(await eventTypes(context, job)).toContain('job.lease_expired');
  });
}

async function stored(job: JobId): Promise<Record<string, string>> {
  const phases = await listPhases(context.db, context.schema, job.id);
  return Object.fromEntries(phases.map(({ name, status }) => [name, status]));
}

/** The job has completed with this value, and every call was made, asked and delivered once. */
async function succeeds(kind: Kind, job: JobId, got = delivered(kind, job)): Promise<Job> {
  const done = await becomes(job, 'SUCCESS');
  expect(done.result).toEqual({ before: 1, got, after: 1 });
  expect([times(job, 'before'), times(job, 'after')]).toEqual([1, 1]);
  expect(await stored(job)).toEqual({ before: 'completed', middle: 'completed', after: 'completed' });
  expect(await childrenOf(job)).toHaveLength(kind === 'children' ? 2 : 0);
  expect((await questionsOf(job)).map(({ status }) => status)).toEqual(kind === 'question' ? ['answered'] : []);
  const types = await eventTypes(context, job);
  expect(types.filter((type) => type === 'job.event_received')).toHaveLength(kind === 'event' ? 1 : 0);
  expect(types.filter((type) => type === 'job.woken')).toHaveLength(kind === 'step' ? 0 : 1);
  return done;
}

const fail: Code = async ({ job }) => {
  if (count(job, 'failed') === 1) throw new Error('for a person');
};
const hang: Code = async ({ job, signal }) => {
  if (count(job, 'hung') > 1) return;
  await new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason)));
};

/** What happens to the job, and what becomes of it. */
const faults = {
  async crash(kind, job) {
    between.set(job.id, hang);
    await deliver[kind](job);
    await eventually(() => expect(times(job, 'hung')).toBe(1));
    await crash(job);
    // The crash counts as an attempt, the wait does not.
    const { attempt, attemptFloor } = await succeeds(kind, job);
    expect({ attempt, attemptFloor }).toEqual(
      kind === 'step' ? { attempt: 2, attemptFloor: 0 } : { attempt: 3, attemptFloor: 1 },
    );
    expect(times(job, 'middle')).toBe(kind === 'step' ? 1 : 0);
  },

  async pause(kind, job) {
    await pause(job);
    await becomes(job, 'PAUSED');
    await deliver[kind](job);
    await deliverEvents(context.db, context.schema, 'test');
    await wakeDue();
    expect(await reread(context, job)).toMatchObject({ status: 'PAUSED', waiting: null });
    await resume(job);
    // The step was stopped before it had a result, so its code runs again. The others ended while the job was paused.
    expect(await becomes(job, 'SUCCESS')).toMatchObject({
      result: { before: 1, got: kind === 'step' ? 'run 2' : delivered(kind, job), after: 1 },
    });
    // Children may end after the resume.
    if (kind !== 'children') expect(await eventTypes(context, job)).not.toContain('job.woken');
  },

  async cancel(kind, job) {
    await cancel(job);
    daemon?.signals.eventsWritten(context.tenant);
    await becomes(job, 'CANCELED');
    if (kind === 'children') {
      const canceled = [{ status: 'CANCELED' }, { status: 'CANCELED' }];
      await eventually(async () => expect(await childrenOf(job)).toMatchObject(canceled));
      await deliver.children(job);
      expect(await childrenOf(job)).toMatchObject(canceled);
    } else if (kind === 'question') {
      await expect(deliver.question(job)).rejects.toMatchObject({ code: 'QUESTION_CLOSED' });
      expect(await questionsOf(job)).toMatchObject([{ status: 'canceled' }]);
    } else {
      await deliver[kind](job);
    }
    await deliverEvents(context.db, context.schema, 'test');
    await wakeDue();
    expect(await reread(context, job)).toMatchObject({ status: 'CANCELED', waiting: null, result: null });
    expect(await stored(job)).toEqual({ before: 'completed', ...(kind !== 'step' && { middle: 'cancelled' }) });
    expect(times(job, 'after')).toBe(0);
  },

  async resume(kind, job) {
    between.set(job.id, fail);
    await deliver[kind](job);
    await becomes(job, 'ERROR');
    await resume(job);
    await succeeds(kind, job);
    expect(times(job, 'failed')).toBe(2);
  },

  async drain(kind, job) {
    await stop();
    expect((await reread(context, job)).status).toBe(kind === 'step' ? 'QUEUED' : 'WAITING');
    await deliver[kind](job);
    await start();
    const { attempt, attemptFloor } = await succeeds(kind, job, kind === 'step' ? 'run 2' : delivered(kind, job));
    expect(attempt - attemptFloor).toBe(1);
  },

  async 'duplicate delivery'(kind, job) {
    const got = await deliverTwice[kind](job);
    const { attempt } = await succeeds(kind, job, got);
    expect(attempt).toBe(2);
  },

  async 'deploy with changed code'(kind, job) {
    if (kind === 'step') {
      between.set(job.id, fail);
      await deliver.step(job);
      await becomes(job, 'ERROR');
    }
    changed.set(job.id, async ({ step }) => {
      await step('before', () => count(job, 'before'));
      await step('new', () => count(job, 'new'));
    });
    await (kind === 'step' ? resume(job) : deliver[kind](job));
    await eventually(async () => {
      const { status, error } = await reread(context, job);
      expect(status).toBe('ERROR');
      expect(error).toMatchObject({ code: 'STEP_ORDER_CHANGED', message: expect.stringMatching(/"middle".*"new"/) });
    });
    expect(times(job, 'new')).toBe(0);
    changed.set(job.id, async () => 'no call at all');
    await resume(job);
    await eventually(async () => {
      const { status, error } = await reread(context, job);
      expect(status).toBe('ERROR');
      expect(error).toMatchObject({ code: 'STEP_MISSING', message: expect.stringContaining('"before"') });
    });
    changed.delete(job.id);
    await resume(job);
    await succeeds(kind, job);
  },
} satisfies Record<string, (kind: Kind, job: Job) => Promise<void>>;

describe.each(Object.keys(faults) as (keyof typeof faults)[])('%s', (name) => {
  test.each(Object.keys(middle) as Kind[])('in %s', async (kind) => {
    await faults[name](kind, await reach(kind));
    await checkInvariants(context);
  });
});
