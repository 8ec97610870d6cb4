// Steps and phases of many jobs that end at once share commits. Each stays fenced by its own lease, and what is wrong with one
// does not concern the others.
import pg from 'pg';
import { expect, onTestFinished, test } from 'vitest';
import type { Database } from '../../../../server/database/database.ts';
import { listPhases } from '../../../../server/jobs/attempt/phases.ts';
import type { PhaseChange } from '../../../../server/jobs/attempt/save-steps.ts';
import { StepGroupCommit } from '../../../../server/jobs/attempt/step-group-commit.ts';
import { openSleep } from '../../../../server/jobs/attempt/steps.ts';
import type { Job } from '../../../../server/jobs/model/job.ts';
import { addJobs, claim, eventTypes, finish, reread } from '../../../support/jobs.ts';
import { checkInvariants } from '../../../support/model/invariants.ts';
import { useTenantPerTest } from '../../../support/postgres/database.ts';

const context = useTenantPerTest();
const noStop = { cancelIntent: null, cancelDetail: null };

async function running(count: number): Promise<Job[]> {
  await addJobs(
    context,
    Array.from({ length: count }, () => ({})),
  );
  return (await claim(context)).jobs;
}

function saver() {
  const commits = new StepGroupCommit(context.db);
  return (job: Job, result: unknown, { name = 'a', leaseId = job.leaseId as string, bytes = 0 } = {}) => {
    const end = { name, position: 0, parallel: true, status: 'completed', result, tries: 1, ms: 1 } as const;
    return commits.save(
      context.schema,
      { held: { jobId: job.id, leaseId }, changes: [end], actor: 'worker:w1' },
      bytes,
    );
  };
}

function phaseSaver() {
  const commits = new StepGroupCommit(context.db);
  return (job: Job, changes: Omit<PhaseChange, 'kind'>[], leaseId = job.leaseId as string) => {
    const phases = changes.map((change) => ({ ...change, kind: 'phase' as const }));
    const write = { held: { jobId: job.id, leaseId }, changes: phases, actor: 'worker:w1' };
    return commits.save(context.schema, write, 0);
  };
}

async function resultsOf(job: Job): Promise<unknown[]> {
  return (await listPhases(context.db, context.schema, job.id)).map(({ result }) => result);
}

/** Transactions that recorded such events. */
async function countCommits(type = 'job.step_completed'): Promise<number> {
  const [row] = await context.db.query<{ commits: number }>(
    `select count(distinct xid)::int as commits from ${context.schema}.events where type = $1`,
    [type],
  );
  return row?.commits ?? 0;
}

test('steps of jobs that end at the same time are stored in one commit, and each event names its job and lease', async () => {
  const jobs = await running(30);
  const save = saver();
  const stops = await Promise.all(jobs.flatMap((job, n) => [save(job, n), save(job, { n }, { name: 'b' })]));
  expect(stops).toEqual(stops.map(() => noStop));
  expect(await countCommits()).toBe(1);
  for (const [n, job] of jobs.entries()) expect(await resultsOf(job)).toEqual([n, { n }]);
  await checkInvariants(context);
});

test('phases of jobs that end at the same time are stored in one commit with the progress of each job', async () => {
  const jobs = await running(20);
  const [first] = jobs as [Job];
  await finish(context, first, { kind: 'requeue', reason: 'test' });
  const save = phaseSaver();
  const stops = await Promise.all(
    jobs.map((job, n) =>
      save(job, [
        { name: 'a', position: 0, status: 'completed', result: n, overall: 50 },
        { name: 'b', position: 1, status: 'running', attempt: 1 },
      ]),
    ),
  );
  // The first one has lost its lease.
  expect(stops).toEqual([undefined, ...jobs.slice(1).map(() => noStop)]);
  expect(await countCommits('job.phase_completed')).toBe(1);
  expect(await countCommits('job.phase_started')).toBe(1);
  expect(await resultsOf(first)).toEqual([]);
  expect(await reread(context, first)).toMatchObject({ status: 'QUEUED', progress: null });
  for (const [n, job] of jobs.entries()) {
    if (n === 0) continue;
    expect(await resultsOf(job)).toEqual([n, null]);
    expect(await reread(context, job)).toMatchObject({ progress: 50 });
  }
  await checkInvariants(context);
});

test('a phase starts once per try, however often its start is sent, and not after a stop was requested', async () => {
  const [job, paused] = (await running(2)) as [Job, Job];
  const save = phaseSaver();
  const start = (attempt: number) => ({ name: 'a', position: 0, status: 'running', attempt }) as const;
  await save(job, [start(1)]);
  await save(job, [start(1)]);
  await save(job, [start(2)]);
  const end = { name: 'a', position: 0, status: 'completed', result: 1 } as const;
  await save(job, [end, { name: 'b', position: 1, status: 'running', attempt: 1 }]);
  await save(job, [end, { name: 'b', position: 1, status: 'running', attempt: 1 }]);
  expect((await eventTypes(context, job)).filter((type) => type.startsWith('job.phase'))).toEqual([
    'job.phase_started',
    'job.phase_started',
    'job.phase_completed',
    'job.phase_started',
  ]);
  expect(await listPhases(context.db, context.schema, job.id)).toMatchObject([
    { name: 'a', kind: 'phase', status: 'completed', attempt: 2, progress: 100, result: 1 },
    { name: 'b', kind: 'phase', status: 'running', attempt: 1, progress: 0, result: null },
  ]);

  await save(paused, [start(1)]);
  await context.db.query(
    `update ${context.schema}.jobs set cancel_requested = true, cancel_intent = 'pause' where id = $1`,
    [paused.id],
  );
  const stop = await save(paused, [end, { name: 'b', position: 1, status: 'running', attempt: 1 }]);
  expect(stop?.cancelIntent).toBe('pause');
  expect(await listPhases(context.db, context.schema, paused.id)).toMatchObject([{ name: 'a', status: 'completed' }]);
});

test('a write that arrives late, after its repetition and later writes, changes nothing', async () => {
  const [job] = (await running(1)) as [Job];
  const save = phaseSaver();
  const a = { name: 'a', position: 0 } as const;
  const b = { name: 'b', position: 1 } as const;
  const places = [a, b].map((phase) => ({ ...phase, status: 'pending' }) as const);
  const starts = [
    { ...a, status: 'completed', result: 1, overall: 50 },
    { ...b, status: 'running', attempt: 1 },
  ] as const;
  await save(job, places);
  await save(job, [{ ...a, status: 'running', attempt: 1, overall: 0 }]);
  await save(job, [...starts]);
  await save(job, [{ ...b, status: 'completed', result: 2, overall: 100 }]);
  const phases = await listPhases(context.db, context.schema, job.id);
  const events = await eventTypes(context, job);
  expect(phases).toMatchObject([{ result: 1 }, { status: 'completed', attempt: 1, progress: 100, result: 2 }]);
  for (const late of [places, [...starts], [{ ...a, status: 'running', attempt: 1, overall: 0 } as const]]) {
    await save(job, late);
    expect(await listPhases(context.db, context.schema, job.id)).toEqual(phases);
    expect(await eventTypes(context, job)).toEqual(events);
    expect((await reread(context, job)).progress).toBe(100);
  }

  const step = { name: 's', position: 2, parallel: true, tries: 1, ms: 1 } as const;
  const error = { code: 'BUSY', message: 'busy' };
  const commits = new StepGroupCommit(context.db);
  const send = (status: 'pending' | 'completed', end: object) =>
    commits.save(
      context.schema,
      {
        held: { jobId: job.id, leaseId: job.leaseId as string },
        changes: [{ ...step, status, ...end }],
        actor: 'worker:w1',
      },
      0,
    );
  await send('pending', { error });
  await send('completed', { result: 3 });
  await send('pending', { error });
  expect((await listPhases(context.db, context.schema, job.id)).at(-1)).toMatchObject({
    status: 'completed',
    result: 3,
  });
});

test('large results are not gathered in one statement', async () => {
  const jobs = await running(4);
  const save = saver();
  await Promise.all(jobs.map((job) => save(job, 'x'.repeat(200_000), { bytes: 200_000 })));
  expect(await countCommits()).toBe(4);
});

test('a lost lease is refused alone, also beside the job under its new lease', async () => {
  const [first, ...others] = await running(5);
  const lost = first as Job;
  await finish(context, lost, { kind: 'requeue', reason: 'test' });
  const again = (await claim(context)).jobs.find(({ id }) => id === lost.id) as Job;
  const save = saver();
  const answers = await Promise.all([
    save(lost, 'stale'),
    save(again, 'current', { name: 'b' }),
    save(lost, 'stale', { name: 'c' }),
    ...others.map((job) => save(job, 'other')),
  ]);
  expect(answers).toEqual([undefined, noStop, undefined, ...others.map(() => noStop)]);
  expect(await resultsOf(lost)).toEqual(['current']);
  for (const job of others) expect(await resultsOf(job)).toEqual(['other']);
  await checkInvariants(context);
});

test('a job that another transaction has locked waits alone', async () => {
  const [first, ...others] = await running(5);
  const locked = first as Job;
  const client = new pg.Client(context.url);
  client.on('error', () => {});
  await client.connect();
  onTestFinished(() => client.end());
  await client.query('begin');
  await client.query(`select id from ${context.schema}.jobs where id = $1 for update`, [locked.id]);
  const save = saver();
  let isStored = false;
  const waiting = save(locked, 'late').then((stop) => {
    isStored = true;
    return stop;
  });
  await Promise.all(others.map((job) => save(job, 'early')));
  await Promise.all(others.map((job) => save(job, 'second', { name: 'b' })));
  expect(isStored).toBe(false);
  await client.query('rollback');
  expect(await waiting).toEqual(noStop);
  expect(await resultsOf(locked)).toEqual(['late']);
});

test('a result that Postgres refuses fails alone', async () => {
  const [bad, ...others] = await running(4);
  const save = saver();
  const answers = await Promise.allSettled([save(bad as Job, '\u0000'), ...others.map((job) => save(job, 'good'))]);
  expect(answers.map(({ status }) => status)).toEqual(['rejected', 'fulfilled', 'fulfilled', 'fulfilled']);
  for (const job of others) expect(await resultsOf(job)).toEqual(['good']);
});

test('the answer has the stop that people have requested for each job', async () => {
  const [paused, other] = (await running(2)) as [Job, Job];
  await context.db.query(
    `update ${context.schema}.jobs set cancel_requested = true, cancel_intent = 'pause' where id = $1`,
    [paused.id],
  );
  const save = saver();
  const answers = await Promise.all([save(paused, 1), save(other, 2)]);
  expect(answers.map((answer) => answer?.cancelIntent)).toEqual(['pause', null]);
});

test('what earlier runs stored is read for all jobs that start together; large and lost ones are read alone', async () => {
  const jobs = await running(6);
  const [small, large, lost, asleep] = jobs as [Job, Job, Job, Job];
  const save = saver();
  await save(small, 'kept');
  await save(large, 'x'.repeat(40_000));
  await finish(context, lost, { kind: 'requeue', reason: 'test' });
  const held = { jobId: asleep.id, leaseId: asleep.leaseId as string };
  const nap = { name: 'nap', position: 0, parallel: false };
  await openSleep(context.db, context.schema, held, nap, { until: '2020-01-01T00:00:00Z' });
  const sent: string[] = [];
  const recording = {
    query(text: string, values?: unknown[]) {
      sent.push(text);
      return context.db.query(text, values);
    },
    forTenant: () => recording,
  } as unknown as Database;
  const commits = new StepGroupCommit(recording);
  const loaded = await Promise.all(
    jobs.map((job) => commits.load(context.schema, { jobId: job.id, leaseId: job.leaseId as string })),
  );
  expect(loaded.map((one) => one?.steps.map(({ name }) => name))).toEqual([['a'], ['a'], undefined, ['nap'], [], []]);
  expect(loaded[0]?.steps).toMatchObject([{ name: 'a', kind: 'step', status: 'completed', result: 'kept' }]);
  // One statement for all, and one each for the two that are read alone.
  expect(sent).toHaveLength(3);
  expect((await listPhases(context.db, context.schema, asleep.id)).map(({ status }) => status)).toEqual(['completed']);
});

test('a sleep that has ended is stored when its job is free again', async () => {
  const jobs = await running(3);
  const [first] = jobs as [Job];
  const heldOf = (job: Job) => ({ jobId: job.id, leaseId: job.leaseId as string });
  const nap = { name: 'nap', position: 0, parallel: false };
  for (const job of jobs) {
    await openSleep(context.db, context.schema, heldOf(job), nap, { until: '2020-01-01T00:00:00Z' });
  }
  const client = new pg.Client(context.url);
  client.on('error', () => {});
  await client.connect();
  onTestFinished(() => client.end());
  await client.query('begin');
  await client.query(`select id from ${context.schema}.jobs where id = $1 for update`, [first.id]);
  const commits = new StepGroupCommit(context.db);
  const loads = jobs.map((job) => commits.load(context.schema, heldOf(job)));
  const others = await Promise.all(loads.slice(1));
  expect(others.map((one) => one?.steps.length)).toEqual([1, 1]);
  await client.query('rollback');
  expect((await loads[0])?.steps).toHaveLength(1);
  for (const job of jobs) {
    expect(await listPhases(context.db, context.schema, job.id)).toMatchObject([{ name: 'nap', status: 'completed' }]);
  }
});
