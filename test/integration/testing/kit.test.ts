import { expect, onTestFinished, test } from 'vitest';
import { z } from 'zod';
import { Recoverable } from '../../../server/durable/handler-errors.ts';
import { runHandler, runPhase, startEngine } from '../../../server/testing/index.ts';
import { defineJob } from '../../../server/worker/handlers/define-job.ts';
import { eventually } from '../../support/eventually.ts';
import { useDatabase } from '../../support/postgres/database.ts';

const context = useDatabase();

const crawl = defineJob({
  type: 'crawl',
  payload: z.object({ pages: z.int() }),
  retry: { attempts: 2 },
  async run({ payload, progress, log, addUsage, checkpoint, lastCheckpoint, enqueue, job }) {
    log('starting', { from: lastCheckpoint });
    progress(50, 'half');
    await addUsage({ tokens: payload.pages * 10 });
    await checkpoint({ page: payload.pages });
    await enqueue('index', { pages: payload.pages });
    if (job.attempt === 1 && payload.pages > 5) throw new Recoverable('busy', { code: 'BUSY' });
    return { pages: payload.pages };
  },
});

const steps = defineJob({
  type: 'steps',
  phases: [
    { name: 'one', run: ({ progress }) => progress(50) },
    { name: 'two', run: ({ sleep }) => sleep(100).then(() => 2) },
    { name: 'three', run: ({ phaseResult }) => Number(phaseResult('two')) + 1 },
  ],
});

test('a handler runs with a context that records its calls', async () => {
  const run = await runHandler(crawl, { payload: { pages: 3 }, checkpoint: { page: 1 } });
  expect(run).toMatchObject({
    status: 'completed',
    result: { pages: 3 },
    tokensUsed: 30,
    checkpoint: { page: 3 },
    progress: [{ percent: 50, overall: 50, message: 'half' }],
    logs: [{ level: 'info', message: 'starting', data: { from: { page: 1 } } }],
    children: [{ type: 'index', payload: { pages: 3 } }],
  });
  expect(await runHandler(crawl, { payload: { pages: 9 } })).toMatchObject({
    status: 'failed',
    error: { code: 'BUSY' },
    recoverable: true,
  });
  expect(await runHandler(crawl, { payload: { pages: 9 }, tokenLimit: 50 })).toMatchObject({
    status: 'stopped',
    stoppedBy: { kind: 'budgetSpent', used: 90, limit: 50 },
  });
});

const reminder = defineJob({
  type: 'reminder',
  async run({ sleepFor, sleepUntil }) {
    await sleepFor('3d');
    await sleepUntil('2199-01-01', { name: 'far' });
    return 'sent';
  },
});

test('durable sleeps take no time in memory, and the time that the test advances in the engine', async () => {
  expect(await runHandler(reminder)).toMatchObject({
    status: 'completed',
    result: 'sent',
    sleeps: [
      { name: 'sleep#1', ms: 259_200_000 },
      { name: 'far', until: '2199-01-01T00:00:00.000Z' },
    ],
  });
  const engine = await startEngine({ jobs: [reminder], databaseUrl: context.url });
  onTestFinished(() => engine.stop());
  const { id } = await engine.enqueue('reminder');
  const waitsFor = (step: string) => engine.wait(id, ({ waiting }) => waiting?.step === step);
  await waitsFor('sleep#1');
  await engine.advance('3d');
  await waitsFor('far');
  await engine.advance('62000d');
  await engine.advance('5200d');
  expect(await engine.wait(id)).toMatchObject({ status: 'SUCCESS', attempt: 3 });
});

const approval = defineJob({
  type: 'approval',
  async run({ ask }) {
    const schema = z.object({ note: z.string().max(5).default('-') });
    const { action, note } = await ask({ title: 'Go?', schema, actions: ['Yes', 'No'], onTimeout: { action: 'No' } });
    return `${action} ${note}`;
  },
});

test('people answer in memory and in the engine', async () => {
  const yes = await runHandler(approval, { answers: { 'Go?': { action: 'Yes', note: 'ok' } } });
  expect(yes).toMatchObject({ result: 'Yes ok', questions: [{ name: 'question#1', title: 'Go?' }] });
  expect(await runHandler(approval, { answers: { 'question#1': 'timeout' } })).toMatchObject({ result: 'No -' });
  const refused = await runHandler(approval, { answers: { 'Go?': { action: 'Yes', note: 'too long' } } });
  expect(refused).toMatchObject({ status: 'failed' });
  const engine = await startEngine({ jobs: [approval], databaseUrl: context.url });
  onTestFinished(() => engine.stop());
  const first = await engine.enqueue('approval');
  expect(await engine.question(first.id)).toMatchObject({ title: 'Go?', actions: [{ name: 'Yes' }, { name: 'No' }] });
  await engine.answer(first.id, { action: 'Yes' });
  expect(await engine.wait(first.id)).toMatchObject({ status: 'SUCCESS', result: 'Yes -' });
  const second = await engine.enqueue('approval');
  await engine.wait(second.id, ({ status }) => status === 'WAITING');
  await engine.advance('8d');
  expect(await engine.wait(second.id)).toMatchObject({ result: 'No -' });
});

const signature = defineJob({
  type: 'signature',
  async run({ waitForEvent }) {
    const first = await waitForEvent('approved', { match: { by: 'ann' }, timeoutSeconds: 60 });
    const second = await waitForEvent('approved');
    return [first?.data ?? null, second.data];
  },
});

test('events are given in memory, and sent in the engine', async () => {
  const given = await runHandler(signature, { events: { approved: [{ by: 'ann' }, 2] } });
  expect(given).toMatchObject({ status: 'completed', result: [{ by: 'ann' }, 2] });
  expect(given.eventWaits[0]).toEqual({
    ...{ name: 'event:approved#1', event: 'approved', match: { by: 'ann' } },
    timeoutSeconds: 60,
  });
  expect(await runHandler(signature)).toMatchObject({
    status: 'stopped',
    stoppedBy: { kind: 'suspended', waiting: { event: 'approved', step: 'event:approved#2' } },
  });
  const engine = await startEngine({ jobs: [signature], databaseUrl: context.url });
  onTestFinished(() => engine.stop());
  const { id } = await engine.enqueue('signature');
  const waitsFor = (step: string) => engine.wait(id, ({ waiting }) => waiting?.step === step);
  await waitsFor('event:approved#1');
  await engine.advance('2m');
  await waitsFor('event:approved#2');
  await engine.sendEvent('approved', 'yes', { id: 'a' });
  await engine.sendEvent('approved', 'yes', { id: 'a' });
  expect(await engine.wait(id)).toMatchObject({ status: 'SUCCESS', result: [null, 'yes'] });
});

test('a wait has a time limit as a duration or in seconds, and refuses options that it does not have', async () => {
  const waits = defineJob({
    type: 'waits',
    payload: z.object({ options: z.record(z.string(), z.unknown()) }),
    run: ({ payload, waitForEvent }) => waitForEvent('paid', payload.options),
  });
  const given = async (options: object) => runHandler(waits, { payload: { options: { ...options } } });
  expect((await given({ timeout: '14d' })).eventWaits).toMatchObject([{ timeoutSeconds: 14 * 86_400 }]);
  expect((await given({ timeout: 1500 })).eventWaits).toMatchObject([{ timeoutSeconds: 1.5 }]);
  const refused = [
    [{ timeout: '1d', timeoutSeconds: 5 }, 'waitForEvent: give timeout or timeoutSeconds, not both'],
    [{ timeout: 'soon' }, 'waitForEvent.timeout must be a number of milliseconds from 0'],
    [{ timout: '1d' }, 'waitForEvent has no option "timout"; it has match, timeout'],
  ] as const;
  for (const [options, message] of refused) {
    const run = await given(options);
    expect(run).toMatchObject({
      status: 'failed',
      error: { message: expect.stringContaining(message) },
      eventWaits: [],
    });
  }

  const asks = defineJob({
    type: 'asks',
    payload: z.object({ more: z.record(z.string(), z.unknown()) }),
    run: ({ payload, ask }) => ask({ title: 'Go?', actions: ['Yes'], ...payload.more }),
  });
  const engine = await startEngine({ jobs: [asks], databaseUrl: context.url });
  onTestFinished(() => engine.stop());
  const { id } = await engine.enqueue('asks', { more: { timeout: '3d' } });
  const { askedAt, expiresAt } = (await engine.question(id)) as unknown as Record<'askedAt' | 'expiresAt', string>;
  expect(Date.parse(expiresAt) - Date.parse(askedAt)).toBe(3 * 86_400_000);
  const bad = await runHandler(asks, { payload: { more: { assignee: 'ann' } } });
  expect(bad).toMatchObject({ status: 'failed', error: { message: expect.stringContaining('no option "assignee"') } });
});

test('a call refuses options that it does not have, and values that it would misread', async () => {
  const given = z.record(z.string(), z.unknown());
  const calls = defineJob({
    type: 'calls',
    payload: z.object({ call: z.string(), given }),
    async run(context) {
      const { call, given } = context.payload;
      const made: Record<string, () => Promise<unknown>> = {
        step: () => context.step('one', () => 1, given),
        sleepFor: () => context.sleepFor(1, given),
        sleepUntil: () => context.sleepUntil(new Date(0), given),
        enqueue: () => context.enqueue('child', {}, given),
        fanOut: () => context.fanOut('all', [1], () => ({ type: 'child' }), given),
        'child of fanOut': () => context.fanOut('all', [1], () => ({ type: 'child', ...given })),
        waitForChildren: () => context.waitForChildren(given),
        ask: () => context.ask({ title: 'Go?', actions: ['Yes'], ...given }),
      };
      return made[call]?.();
    },
  });
  const run = (call: string, given: object) => runHandler(calls, { payload: { call, given: { ...given } } });
  for (const [call, given, message] of [
    ['step', { timeOut: '1s' }, 'step has no option "timeOut"; it has retry, timeout, timeoutSeconds, key'],
    ['step', { timeout: '1s', timeoutSeconds: 1 }, 'give timeout or timeoutSeconds, not both'],
    ['step', { timeoutSeconds: 'x' }, 'the time limit of a step must be above 0'],
    ['step', { retry: { atempts: 3 } }, 'retry of a step has no option "atempts"'],
    ['step', { retry: { attempts: 'three' } }, 'retry.attempts of a step must be a whole number above 0'],
    ['sleepFor', { named: 'x' }, 'sleepFor has no option "named"'],
    ['sleepUntil', { named: 'x' }, 'sleepUntil has no option "named"'],
    ['enqueue', { target: 'machine-1' }, 'enqueue has no option "target"; it has queue, targetId'],
    ['fanOut', { concurency: 2 }, 'fanOut has no option "concurency"'],
    ['fanOut', { onFailure: 'never' }, 'onFailure must be first or all settled, not "never"'],
    ['child of fanOut', { target: 'machine-1' }, 'a child of fanOut has no option "target"'],
    ['waitForChildren', { onFail: 'first' }, 'waitForChildren has no option "onFail"'],
    ['ask', { title: ' ' }, 'ask.title: '],
    ['ask', { title: 'x'.repeat(501) }, 'ask.title: '],
    ['ask', { timeout: '0s' }, 'ask.timeout: '],
    ['ask', { onTimeout: 'Yes' }, "ask.onTimeout: must be 'fail', or an object with answer, action or both"],
    ['ask', { onTimeout: { action: 'No' } }, 'ask.onTimeout.action: must be one of: Yes'],
    ['ask', { assignees: 'ann' }, 'ask.assignees: '],
    ['ask', { actions: 'Yes' }, 'ask.actions: '],
    ['ask', { actions: ['Yes', 'Yes'] }, 'ask.actions[1].name: is used twice'],
    ['ask', { reminders: 3600 }, 'ask.reminders: '],
    ['step', { timeout: 'soon' }, 'step.timeout must be a number of milliseconds from 0'],
    ['ask', { timeout: 'soon' }, 'ask.timeout must be a number of milliseconds from 0'],
    ['ask', { reminders: ['1h', 'soon'] }, 'ask.reminders[1] must be a number of milliseconds from 0'],
    ['ask', { escalateTo: { assignees: ['boss'], after: 'soon' } }, 'ask.escalateTo.after must be a number'],
    ['ask', { escalateTo: 'boss' }, 'ask.escalateTo: '],
    ['ask', { escalateTo: { assignees: ['boss'] } }, 'ask.escalateTo.after: '],
    ['ask', { escalateTo: { assignees: ['boss'], afterwards: 1 } }, 'escalateTo of ask has no option "afterwards"'],
    ['ask', { schema: { type: 'object' } }, 'schema of ask must be a zod object'],
    ['ask', { schema: z.object({ at: z.date() }) }, 'schema of ask has a field that no form can show: Date'],
  ] as const) {
    const { status, error, ...reported } = await run(call, given);
    expect({ status, message: error?.message }, `${call} ${JSON.stringify(given)}`).toEqual({
      status: 'failed',
      message: expect.stringContaining(message),
    });
    // Nothing was stored that a corrected handler would find.
    expect(reported).toMatchObject({ steps: {}, sleeps: [], questions: [], children: [] });
  }
  expect(await run('step', { timeout: '30s', retry: { attempts: 2, on: 'any' } })).toMatchObject({ result: 1 });
});

test('reminders and the escalation of a question are durations or seconds', async () => {
  const asks = defineJob({
    type: 'asks',
    run: ({ ask }) =>
      ask({
        title: 'Go?',
        actions: ['Yes'],
        timeout: '2d',
        reminders: ['4h', 86_400],
        escalateTo: { assignees: ['boss'], after: '1d' },
      }),
  });
  const engine = await startEngine({ jobs: [asks], databaseUrl: context.url });
  onTestFinished(() => engine.stop());
  const { id } = await engine.enqueue('asks');
  const question = (await engine.question(id)) as unknown as Record<'askedAt' | 'escalateAt', string> & {
    remindAt: string[];
  };
  const after = (time: string) => (Date.parse(time) - Date.parse(question.askedAt)) / 1000;
  // With microseconds, as all times.
  expect(question.remindAt[0]).toMatch(/\.\d{6}Z$/);
  expect(question.remindAt.map(after)).toEqual([4 * 3600, 86_400]);
  expect(after(question.escalateAt)).toBe(86_400);
  await engine.advance('1d');
  await eventually(async () => expect((await engine.question(id)).assignees).toEqual(['boss']));
});

test('the engine enqueues unique jobs, and jobs that run after others with a policy for each', async () => {
  const engine = await startEngine({ jobs: [steps], databaseUrl: context.url });
  onTestFinished(() => engine.stop());
  const runAt = new Date(Date.now() + 86_400_000).toISOString();
  const unique = { key: 'once', until: 'started', conflict: 'replace' } as const;
  const first = await engine.enqueue('steps', { n: 1 }, { run_at: runAt, unique });
  const second = await engine.enqueue('steps', { n: 2 }, { run_at: runAt, unique });
  expect(second).toMatchObject({ id: first.id, status: 'PENDING', payload: { n: 2 } });
  const [hold, goesOn] = [
    await engine.enqueue('steps', {}, { after: [first.id] }),
    await engine.enqueue('steps', {}, { after: [{ job: first.id, on_failure: 'continue' }] }),
  ];
  await engine.cancel(first.id);
  expect(await engine.wait(hold.id)).toMatchObject({ status: 'PAUSED' });
  expect(await engine.wait(goesOn.id)).toMatchObject({ status: 'SUCCESS' });
});

test('phases run alone or together, and stop on request', async () => {
  expect(await runPhase(steps, 'three', { phaseResults: { two: 4 } })).toMatchObject({ result: 5 });
  const all = await runHandler(steps, { phaseResults: { two: 7 } });
  expect(all).toMatchObject({ status: 'completed', result: { one: null, two: 7, three: 8 } });
  expect(all.progress[0]?.overall).toBe(17);
  const stop = new AbortController();
  const stopped = runHandler(steps, { signal: stop.signal });
  stop.abort();
  expect(await stopped).toMatchObject({ status: 'stopped', stoppedBy: { kind: 'canceled' } });
});

test('a whole job runs on a real engine', async () => {
  const engine = await startEngine({ jobs: [steps], databaseUrl: context.url });
  try {
    const job = await engine.enqueue('steps');
    const done = await engine.wait(job.id);
    expect(done).toMatchObject({ status: 'SUCCESS', result: { one: null, two: 2, three: 3 } });
    expect(done.phases.map((phase) => phase.status)).toEqual(['completed', 'completed', 'completed']);
    await expect(engine.enqueue('unknown')).rejects.toThrow('unknown');
  } finally {
    await engine.stop();
  }
});
