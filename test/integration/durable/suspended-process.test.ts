// A process is suspended while an answer waits in its socket, and continues when its lease has run out. Nothing that the
// answer permits may begin then: another worker may have the job.
import { fileURLToPath } from 'node:url';
import { expect, onTestFinished, test } from 'vitest';
import { Database } from '../../../server/database/database.ts';
import { createLogger } from '../../../server/kernel/logger.ts';
import { defineJob, type JobDefinition } from '../../../server/worker/handlers/define-job.ts';
import { HandlerRegistry } from '../../../server/worker/handlers/handler-registry.ts';
import type { JobContext } from '../../../server/worker/handlers/job-context.ts';
import { loadHandlers } from '../../../server/worker/handlers/load-handlers.ts';
import { ThreadPool } from '../../../server/worker/threads/thread-pool.ts';
import { startJob } from '../../support/daemon/handlers.ts';
import { useTenant } from '../../support/postgres/database.ts';
import { type DelayingProxy, startDelayingProxy } from '../../support/postgres/proxies/delaying-proxy.ts';

const context = useTenant();

/** One connection, whose answers can be held. */
async function connect(): Promise<{ db: Database; proxy: DelayingProxy }> {
  const proxy = await startDelayingProxy(context);
  const db = new Database({ url: proxy.url, poolMax: 1, logger: createLogger('silent') });
  onTestFinished(() => db.close());
  await db.query('select 1');
  return { db, proxy };
}

/** The next answer comes after the lease has run out. */
async function runPastLease(definition: JobDefinition, parts: { db: Database; proxy: DelayingProxy }) {
  const running = await startJob({ ...context, db: parts.db }, definition);
  await parts.proxy.answerHeld();
  running.expire();
  parts.proxy.deliverAnswers();
  return running.end;
}

type Code = (context: JobContext, did: (what: string) => void, hold: () => void) => Promise<void>;

const cases: [string, Code, string[]][] = [
  [
    'a first step does not begin',
    async ({ step }, did, hold) => {
      hold();
      await step('charge', () => did('charge'));
    },
    [],
  ],
  [
    'a second step does not begin',
    async ({ step }, did, hold) => {
      await step('charge', () => {
        did('charge');
        hold();
      });
      await step('ship', () => did('ship'));
    },
    ['charge'],
  ],
  [
    'the handler does not continue after its step',
    async ({ step }, did, hold) => {
      await step('charge', () => {
        did('charge');
        hold();
      });
      did('code after the step');
    },
    ['charge'],
  ],
  [
    'the handler does not continue after a sleep that is over',
    async ({ sleepUntil }, did, hold) => {
      hold();
      await sleepUntil('2020-01-01');
      did('code after the sleep');
    },
    [],
  ],
  [
    'the handler does not continue after its child is enqueued',
    async ({ enqueue }, did, hold) => {
      hold();
      await enqueue('demo.echo', {});
      did('code after the child');
    },
    [],
  ],
  [
    'the handler does not continue after a checkpoint',
    async ({ checkpoint }, did, hold) => {
      hold();
      await checkpoint({ page: 1 });
      did('code after the checkpoint');
    },
    [],
  ],
];

test.each(cases)('after a suspension %s', async (_, code, expected) => {
  const parts = await connect();
  const done: string[] = [];
  const definition = defineJob({
    type: 'test.suspended',
    run: (given: JobContext) => code(given, (what) => void done.push(what), parts.proxy.holdAnswers),
  });
  const { end, stops } = await runPastLease(definition, parts);
  expect(done).toEqual(expected);
  expect(stops).toContainEqual({ kind: 'leaseLost' });
  expect(end).toMatchObject({ kind: 'failed', error: { message: 'The lease is no longer held' } });
});

test('after a suspension no try of a step begins', async () => {
  const tries: number[] = [];
  const definition = defineJob({
    type: 'test.retried',
    run: ({ step }: JobContext) =>
      step(
        'flaky',
        () => {
          tries.push(tries.length);
          // The sleep before the next try is the suspension.
          running.expire();
          throw new Error('not yet');
        },
        { retry: { attempts: 5, delaySeconds: 0.001, on: 'any' } },
      ),
  });
  const running = await startJob(context, definition);
  const { stops } = await running.end;
  expect(tries).toEqual([0]);
  expect(stops).toContainEqual({ kind: 'leaseLost' });
});

test('after a suspension no phase begins', async () => {
  const parts = await connect();
  const done: string[] = [];
  const definition = defineJob({
    type: 'test.phases',
    phases: [
      {
        name: 'first',
        run: () => {
          done.push('first');
          parts.proxy.holdAnswers();
        },
      },
      { name: 'second', run: () => void done.push('second') },
    ],
  });
  const { stops } = await runPastLease(definition, parts);
  expect(done).toEqual(['first']);
  expect(stops).toContainEqual({ kind: 'leaseLost' });
});

/** A handler in a thread. It reports by progress what it has begun; `before` is awaited before the thread gets it. */
async function recorder(done: number[], before: () => Promise<void>): Promise<JobDefinition> {
  const threads = new ThreadPool({ maxThreads: 1, memoryMb: 64, logger: createLogger('silent') });
  onTestFinished(() => threads.stop());
  const file = fileURLToPath(new URL('../../fixtures/isolated.ts', import.meta.url));
  const definition = new HandlerRegistry(await loadHandlers(file), threads).get('isolated.recorder') as JobDefinition;
  return {
    ...definition,
    isolate: async (parts, kill) => {
      await before();
      const effects = Object.assign(parts.effects(), { progress: (percent: number) => void done.push(percent) });
      return definition.isolate?.({ ...parts, effects: () => effects }, kill);
    },
  };
}

test('after a suspension a thread does not begin a step', async () => {
  const parts = await connect();
  const done: number[] = [];
  const { end, stops } = await runPastLease(await recorder(done, async () => parts.proxy.holdAnswers()), parts);
  expect(done).toEqual([1]);
  expect(stops).toContainEqual({ kind: 'leaseLost' });
  expect(end).toMatchObject({ kind: 'failed', error: { message: 'The lease is no longer held' } });
});

test('after a suspension a thread does not begin its handler', async () => {
  const done: number[] = [];
  let begin = () => {};
  const begun = new Promise<void>((resolve) => {
    begin = resolve;
  });
  const running = await startJob(context, await recorder(done, () => begun));
  running.expire();
  begin();
  const { end, stops } = await running.end;
  expect(done).toEqual([]);
  expect(stops).toContainEqual({ kind: 'leaseLost' });
  expect(end).toMatchObject({ kind: 'failed', error: { message: 'The lease is no longer held' } });
});
