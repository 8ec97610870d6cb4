import { expect, onTestFinished, test } from 'vitest';
import { z } from 'zod';
import { Recoverable } from '../../../server/durable/handler-errors.ts';
import { runHandler, runPhase, startEngine } from '../../../server/testing/index.ts';
import { defineJob } from '../../../server/worker/handlers/define-job.ts';
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
