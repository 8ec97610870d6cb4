import { expect, test } from 'vitest';
import { z } from 'zod';
import { Recoverable, SkipPhase } from '../../../../server/durable/handler-errors.ts';
import { cancelJob, pauseJob } from '../../../../server/jobs/actions/pause-and-cancel.ts';
import { resumeJob } from '../../../../server/jobs/actions/resume.ts';
import { listPhases } from '../../../../server/jobs/attempt/phases.ts';
import type { Phase } from '../../../../server/jobs/model/job-values.ts';
import { defineJob, type JobDefinition, type PhaseDefinition } from '../../../../server/worker/handlers/define-job.ts';
import type { JobContext } from '../../../../server/worker/handlers/job-context.ts';
import { startDaemon } from '../../../support/daemon/daemon.ts';
import { runJob, startClaimed, startJob } from '../../../support/daemon/handlers.ts';
import { eventually } from '../../../support/eventually.ts';
import { addJob, addJobs, eventTypes, finish, reread } from '../../../support/jobs.ts';
import { useTenant } from '../../../support/postgres/database.ts';

const context = useTenant();
const by = (jobId: string) => ({ jobId, actor: 'user:ann', author: 'ann' });

async function statuses(jobId: string): Promise<Record<string, Phase['status']>> {
  const phases = await listPhases(context.db, context.schema, jobId);
  return Object.fromEntries(phases.map((phase) => [phase.name, phase.status]));
}

/** Phases of these names that do what is given for each, and nothing otherwise. */
function phased(
  names: string[],
  code: Record<string, () => unknown> = {},
): { definition: JobDefinition; ran: string[] } {
  const ran: string[] = [];
  const definition = defineJob({
    type: `test.${names.join('-')}`,
    retry: { attempts: 3 },
    phases: names.map((name) => ({
      name,
      run: () => {
        ran.push(name);
        return code[name]?.();
      },
    })),
  });
  return { definition, ran };
}

test('phases run in order with the results of earlier ones, and their results are those of the job', async () => {
  const definition = defineJob({
    type: 'test.pipeline',
    payload: z.object({ n: z.number() }),
    phases: [
      { name: 'first', run: ({ payload }) => ({ doubled: payload.n * 2 }) },
      { name: 'second', run: ({ phaseResult }) => ({ plus: (phaseResult('first')?.doubled ?? 0) + 1 }) },
      { name: 'third', run: ({ phaseResults }) => Object.keys(phaseResults()) },
    ],
  });
  const { job, end } = await runJob(context, definition, { payload: { n: 4 } });
  expect(end).toEqual({
    kind: 'completed',
    result: { first: { doubled: 8 }, second: { plus: 9 }, third: ['first', 'second'] },
  });
  expect(await statuses(job.id)).toEqual({ first: 'completed', second: 'completed', third: 'completed' });
  expect(await eventTypes(context, job)).toEqual([
    'job.enqueued',
    'job.started',
    'job.phase_started',
    'job.phase_completed',
    'job.phase_started',
    'job.phase_completed',
    'job.phase_started',
    'job.phase_completed',
  ]);
  expect(await reread(context, job)).toMatchObject({ progress: 100 });
});

test.each([
  ['first', 50, 17],
  ['second', 25, 42],
  ['third', 80, 93],
])('progress in %s of three phases: %i is %i of the whole', async (name, reported, overall) => {
  let seen: number | null = null;
  const definition = defineJob({
    type: 'test.overall',
    phases: ['first', 'second', 'third'].map((phase) => ({
      name: phase,
      async run({ progress, job }: JobContext) {
        if (phase !== name) return;
        progress(reported);
        await eventually(async () => {
          seen = (await reread(context, job)).progress;
          expect(seen).toBe(overall);
        });
      },
    })),
  });
  const { job } = await runJob(context, definition);
  expect(seen).toBe(overall);
  const rows = await listPhases(context.db, context.schema, job.id);
  expect(rows.find((row) => row.name === name)).toMatchObject({ status: 'completed', progress: 100 });
});

test('completed phases are not run again after a retry, and their results are available', async () => {
  let fails = 1;
  const { definition, ran } = phased(['a', 'b', 'c'], {
    a: () => ({ from: 'a' }),
    b: () => {
      if (fails-- > 0) throw new Recoverable('once');
      return 'b';
    },
  });
  const first = await runJob(context, definition);
  expect(first.end).toMatchObject({ kind: 'failed', recoverable: true, error: { phase: 'b', message: 'once' } });
  expect(await statuses(first.job.id)).toEqual({ a: 'completed', b: 'failed', c: 'pending' });
  if (first.end.kind === 'failed') await finish(context, first.job, { kind: 'fail', error: first.end.error });
  await resumeJob(context.db, context.schema, by(first.job.id));
  const second = await (await startClaimed(context, definition, first.job.id)).end;
  expect(second.end).toEqual({ kind: 'completed', result: { a: { from: 'a' }, b: 'b', c: null } });
  expect(ran).toEqual(['a', 'b', 'b', 'c']);
});

test('a paused job resumes in the phase that was interrupted', async () => {
  const ran: string[] = [];
  let wait = true;
  const definition = defineJob({
    type: 'test.paused',
    phases: ['a', 'b', 'c'].map((name) => ({
      name,
      async run({ sleep }: JobContext) {
        ran.push(name);
        if (name === 'b' && wait) await sleep(60_000);
      },
    })),
  });
  const running = await startJob(context, definition);
  await eventually(() => expect(ran).toContain('b'));
  running.stop({ kind: 'paused' });
  const { job } = await running.end;
  await finish(context, job, { kind: 'stopPaused', message: 'paused' });
  expect(await statuses(job.id)).toEqual({ a: 'completed', b: 'pending', c: 'pending' });
  wait = false;
  await resumeJob(context.db, context.schema, by(job.id));
  const { end } = await (await startClaimed(context, definition, job.id)).end;
  expect(end.kind).toBe('completed');
  expect(ran).toEqual(['a', 'b', 'b', 'c']);
});

test('unfinished phases of a canceled job are cancelled, also when it never started', async () => {
  const never = await addJob(context, { phases: ['a', 'b'] });
  await cancelJob(context.db, context.schema, by(never.id));
  expect(await statuses(never.id)).toEqual({ a: 'cancelled', b: 'cancelled' });

  const definition = defineJob({
    type: 'test.canceled',
    phases: [
      { name: 'a', run: () => 1 },
      { name: 'b', run: ({ sleep }) => sleep(60_000) },
      { name: 'c', run: () => 3 },
    ],
  });
  const running = await startJob(context, definition);
  await eventually(async () => expect((await statuses(running.job.id)).b).toBe('running'));
  running.stop({ kind: 'canceled' });
  const { job } = await running.end;
  await finish(context, job, { kind: 'stopCanceled', message: 'canceled' });
  expect(await statuses(job.id)).toEqual({ a: 'completed', b: 'cancelled', c: 'cancelled' });
});

test.each(['cancel', 'pause'] as const)(
  'no phase starts after a requested %s, before any heartbeat',
  async (intent) => {
    const request = intent === 'cancel' ? cancelJob : pauseJob;
    const retry = { on: 'any', attempts: 3, delaySeconds: 0 } as const;
    let ran: string[] = [];
    let ask = async () => {};
    const asksAndFails = async () => {
      await ask();
      throw new Error('failed');
    };
    const asksFirst = async () => {
      await ask();
      return true;
    };
    const next = { name: 'next', run: () => ran.push('next') };
    const cases: PhaseDefinition[][] = [
      [{ name: 'first', run: () => ask() }, next],
      [
        { name: 'first', run: () => ask() },
        { ...next, when: () => true },
      ],
      [{ name: 'first', retry, run: asksAndFails }, next],
      [{ name: 'first', when: asksFirst, run: () => ran.push('first') }, next],
    ];
    for (const phases of cases) {
      ran = [];
      const definition = defineJob({ type: `test.${intent}`, phases });
      const added = await addJob(context, { type: definition.type });
      let asked = 0;
      ask = async () => {
        asked += 1;
        await request(context.db, context.schema, { ...by(added.id), reason: 'enough' });
      };
      const { end, stops } = await (await startClaimed(context, definition, added.id)).end;
      expect([end.kind, ran, asked]).toEqual(['failed', [], 1]);
      const kind = intent === 'cancel' ? 'canceled' : 'paused';
      expect(stops).toMatchObject([{ kind, by: { author: 'ann', reason: 'enough' } }]);
      expect(await statuses(added.id)).toMatchObject({ next: 'pending' });
      expect((await eventTypes(context, added)).filter((type) => type === 'job.phase_started').length).toBeLessThan(2);
    }
  },
);

test('a stop that is requested during the last phase has no effect', async () => {
  const added = await addJob(context, { type: 'test.late' });
  const run = async () => void (await cancelJob(context.db, context.schema, by(added.id)));
  const definition = defineJob({ type: 'test.late', phases: [{ name: 'only', run }] });
  const { end, stops } = await (await startClaimed(context, definition, added.id)).end;
  expect([end.kind, stops]).toEqual(['completed', []]);
});

test('when and SkipPhase skip a phase, and the job ends as SUCCESS if the others completed', async () => {
  const definition = defineJob({
    type: 'test.when',
    payload: z.object({ evaluate: z.boolean() }),
    phases: [
      { name: 'brief', run: () => 'brief' },
      { name: 'evaluate', when: ({ payload }) => payload.evaluate, run: () => 'score' },
      {
        name: 'optimize',
        run: ({ phaseResult }) => {
          if (phaseResult('evaluate') === undefined) throw new SkipPhase('nothing to optimize');
          return 'better';
        },
      },
    ],
  });
  const without = await runJob(context, definition, { payload: { evaluate: false } });
  expect(without.end).toEqual({ kind: 'completed', result: { brief: 'brief' } });
  expect(await statuses(without.job.id)).toEqual({ brief: 'completed', evaluate: 'skipped', optimize: 'skipped' });
  const withIt = await runJob(context, definition, { payload: { evaluate: true } });
  expect(withIt.end).toEqual({ kind: 'completed', result: { brief: 'brief', evaluate: 'score', optimize: 'better' } });
});

test('tolerated failures leave the job PARTIAL; if no phase completed it failed', async () => {
  const failing = (name: string) => ({
    name,
    tolerateFailure: true,
    run: () => {
      throw new Error(`${name} broke`);
    },
  });
  const mixed = defineJob({ type: 'test.mixed', phases: [failing('a'), { name: 'b', run: () => 'done' }] });
  const partial = await runJob(context, mixed);
  expect(partial.end).toMatchObject({
    kind: 'partial',
    result: { b: 'done' },
    error: { code: 'PHASES_FAILED', phases: { a: { message: 'a broke' } } },
  });
  const none = defineJob({ type: 'test.none', phases: [failing('a'), failing('b')] });
  expect((await runJob(context, none)).end).toMatchObject({ kind: 'failed', error: { code: 'PHASES_FAILED' } });
  const marked = defineJob({
    type: 'test.marked',
    phases: [{ name: 'classify', run: ({ markPartial }) => markPartial('3 of 10 items failed') }],
  });
  const some = await runJob(context, marked);
  expect(some.end).toMatchObject({
    kind: 'partial',
    error: { phases: { classify: { message: '3 of 10 items failed' } } },
  });
  expect(await statuses(some.job.id)).toEqual({ classify: 'partial' });
});

test('a phase has its own time limit and tries', async () => {
  let tries = 0;
  const definition = defineJob({
    type: 'test.limits',
    phases: [
      {
        name: 'slow',
        tolerateFailure: true,
        timeoutSeconds: 0.05,
        run: ({ sleep }) => sleep(60_000),
      },
      {
        name: 'flaky',
        retry: { attempts: 3, kind: 'fixed', delaySeconds: 0 },
        run: () => {
          tries += 1;
          if (tries < 3) throw new Recoverable('not yet');
          return tries;
        },
      },
    ],
  });
  const { job, end } = await runJob(context, definition);
  expect(end).toMatchObject({
    kind: 'partial',
    result: { flaky: 3 },
    error: { phases: { slow: { code: 'TIMEOUT' } } },
  });
  const rows = await listPhases(context.db, context.schema, job.id);
  expect(rows.map((row) => [row.name, row.attempt])).toEqual([
    ['slow', 1],
    ['flaky', 3],
  ]);
});

test('a phase that ignores its time limit is fenced off', async () => {
  let release = () => {};
  const definition = defineJob({
    type: 'test.deaf',
    phases: [{ name: 'deaf', timeoutSeconds: 0.02, run: () => new Promise<void>((resolve) => (release = resolve)) }],
  });
  const running = await startJob(context, definition, {}, { cancelGraceSeconds: 0.02 });
  await new Promise<void>((resolve) => running.onStop(() => resolve()));
  release();
  expect((await running.end).stops).toEqual([{ kind: 'timedOut', afterSeconds: 0.02, phase: 'deaf' }]);
});

test('a holder that lost its lease stores no phase', async () => {
  const definition = defineJob({
    type: 'test.lost',
    phases: [
      {
        name: 'a',
        async run({ lease }) {
          await context.db.query(`update ${context.schema}.jobs set lease_id = gen_random_uuid() where lease_id = $1`, [
            lease.id,
          ]);
          return 'zombie';
        },
      },
      { name: 'b', run: () => 1 },
    ],
  });
  const { job, stops } = await runJob(context, definition);
  expect(stops).toEqual([{ kind: 'leaseLost' }]);
  expect(await listPhases(context.db, context.schema, job.id)).toMatchObject([
    { name: 'a', status: 'running', result: null },
    { name: 'b', status: 'pending' },
  ]);
});

test('after a crash between phases the next attempt continues there, and the old holder stores nothing', async () => {
  const ran: string[] = [];
  let release = () => {};
  const definition = defineJob({
    type: 'test.crashed',
    retry: { attempts: 2 },
    phases: ['a', 'b', 'c'].map((name) => ({
      name,
      async run({ job }: JobContext) {
        ran.push(`${name}${job.attempt}`);
        if (name === 'b' && job.attempt === 1) await new Promise<void>((resolve) => (release = resolve));
        return `${name}${job.attempt}`;
      },
    })),
  });
  const crashed = await startJob(context, definition);
  await eventually(() => expect(ran).toContain('b1'));
  await finish(context, crashed.job, { kind: 'recover', error: { code: 'LEASE_EXPIRED', message: 'crashed' } });
  expect(await statuses(crashed.job.id)).toEqual({ a: 'completed', b: 'pending', c: 'pending' });
  const again = await (await startClaimed(context, definition, crashed.job.id)).end;
  expect(again.end).toEqual({ kind: 'completed', result: { a: 'a1', b: 'b2', c: 'c2' } });
  release();
  expect((await crashed.end).stops).toEqual([{ kind: 'leaseLost' }]);
  expect(ran).toEqual(['a1', 'b1', 'b2', 'c2']);
  expect(await listPhases(context.db, context.schema, crashed.job.id)).toMatchObject([
    { name: 'a', attempt: 1, result: 'a1' },
    { name: 'b', attempt: 2, result: 'b2' },
    { name: 'c', attempt: 1, result: 'c2' },
  ]);
});

test('phases of different jobs that end together share a commit', async () => {
  const count = 20;
  let inside = 0;
  let release = () => {};
  const together = new Promise<void>((resolve) => (release = resolve));
  const definition = defineJob({
    type: 'test.together',
    phases: [
      {
        name: 'meet',
        run() {
          inside += 1;
          if (inside === count) release();
          return together;
        },
      },
      { name: 'part', run: () => 'parted' },
    ],
  });
  const env = { WORKER_CONCURRENCY: String(count), TENANT_CONCURRENCY: String(count) };
  const daemon = await startDaemon(context, { handlers: [definition], env });
  const jobs = await addJobs(
    context,
    Array.from({ length: count }, () => ({ type: definition.type })),
  );
  daemon.signals.workAvailable(context.tenant);
  for (const job of jobs) {
    await eventually(async () =>
      expect(await reread(context, job)).toMatchObject({ status: 'SUCCESS', result: { meet: null, part: 'parted' } }),
    );
  }
  const [row] = await context.db.query<{ events: number; commits: number }>(
    `select count(*)::int as events, count(distinct xid)::int as commits from ${context.schema}.events
      where type = 'job.phase_completed' and data ->> 'phase' = 'meet' and job_id = any($1::uuid[])`,
    [jobs.map(({ id }) => id)],
  );
  expect(row?.events).toBe(count);
  // One, unless another transaction had locked one of the jobs at this moment.
  expect(row?.commits).toBeLessThan(count / 4);
});

test('a phase fails if its schema refuses the result', async () => {
  const definition = defineJob({
    type: 'test.schema',
    phases: [{ name: 'a', result: z.object({ n: z.number() }), run: () => ({ n: 'x' as unknown as number }) }],
  });
  expect((await runJob(context, definition)).end).toMatchObject({ kind: 'failed', error: { code: 'INVALID_RESULT' } });
});
