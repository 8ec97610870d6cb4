import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { listLogs } from '../../../../server/jobs/attempt/logs.ts';
import { listPhases } from '../../../../server/jobs/attempt/phases.ts';
import { createLogger } from '../../../../server/kernel/logger.ts';
import type { JobDefinition } from '../../../../server/worker/handlers/define-job.ts';
import { HandlerRegistry } from '../../../../server/worker/handlers/handler-registry.ts';
import { loadHandlers } from '../../../../server/worker/handlers/load-handlers.ts';
import { ThreadPool } from '../../../../server/worker/threads/thread-pool.ts';
import { runJob, startJob } from '../../../support/daemon/handlers.ts';
import { eventually } from '../../../support/eventually.ts';
import { reread } from '../../../support/jobs.ts';
import { useTenant } from '../../../support/postgres/database.ts';

const context = useTenant();
const threads = new ThreadPool({ maxThreads: 2, memoryMb: 64, logger: createLogger('silent') });
let registry: HandlerRegistry;

beforeAll(async () => {
  registry = new HandlerRegistry(
    await loadHandlers(fileURLToPath(new URL('../../../fixtures/isolated.ts', import.meta.url))),
    threads,
  );
});
afterAll(() => threads.stop());

function isolated(name: string): JobDefinition {
  return registry.get(`isolated.${name}`) as JobDefinition;
}

test('an isolated handler has the same context', async () => {
  const { job, end } = await runJob(context, isolated('polite'), { payload: { at: '2026-05-01T00:00:00Z' } });
  expect(end).toMatchObject({ kind: 'completed', result: { year: 2026, attempt: 1, child: expect.any(String) } });
  expect(await reread(context, job)).toMatchObject({
    progress: 40,
    progressMessage: 'here',
    tokensUsed: 5,
    checkpoint: { page: 2 },
  });
  expect(await listLogs(context.db, context.schema, job.id, { limit: 10 })).toMatchObject([
    { message: 'from a thread', data: { n: 1 } },
  ]);
});

test('an isolated phase that does not stop is terminated alone, and the job continues', async () => {
  const { job, end } = await runJob(context, isolated('phased'), {}, { cancelGraceSeconds: 0.05 });
  expect(end).toMatchObject({ kind: 'partial', result: { a: { n: 1 }, c: { n: 2 } } });
  expect((await listPhases(context.db, context.schema, job.id)).map((p) => [p.name, p.status, p.error?.code])).toEqual([
    ['a', 'completed', undefined],
    ['deaf', 'failed', 'TIMEOUT'],
    ['c', 'completed', undefined],
  ]);
});

test('a stop reaches the thread', async () => {
  const running = await startJob(context, isolated('sleeper'));
  running.stop({ kind: 'canceled' });
  expect((await running.end).end).toMatchObject({ kind: 'failed', error: { message: 'The job was canceled' } });
  const spent = await runJob(context, isolated('budget'), { tokenLimit: 10 });
  expect(spent.stops).toEqual([{ kind: 'budgetSpent', unit: 'tokens', used: 1000, limit: 10, per: 'job' }]);
});

test('a handler that blocks its thread is terminated by kill', async () => {
  const running = await startJob(context, isolated('blocker'));
  running.stop({ kind: 'canceled' });
  running.kill();
  expect((await running.end).end).toMatchObject({ kind: 'failed', error: { code: 'HANDLER_KILLED' } });
});

test.each(['quitter', 'timer', 'hoarder'])('a %s ends with HANDLER_CRASHED, and the daemon continues', async (name) => {
  const { end } = await runJob(context, isolated(name));
  expect(end).toMatchObject({ kind: 'failed', error: { code: 'HANDLER_CRASHED' }, recoverable: false });
  const after = await runJob(context, isolated('polite'), { payload: { at: '2026-05-01T00:00:00Z' } });
  expect(after.end.kind).toBe('completed');
});

test('errors and results pass between threads unchanged', async () => {
  expect((await runJob(context, isolated('recoverable'))).end).toMatchObject({
    kind: 'failed',
    error: { code: 'BUSY', message: 'try again', details: { a: 1 } },
    recoverable: true,
  });
  expect((await runJob(context, isolated('odd'))).end).toMatchObject({ error: { code: 'RESULT_NOT_JSON' } });
});

test('a thread with remaining timers is not used again, and more jobs than threads take turns', async () => {
  expect((await runJob(context, isolated('litterer'))).end).toMatchObject({ kind: 'completed' });
  const payload = { at: '2026-05-01T00:00:00Z' };
  const running: Awaited<ReturnType<typeof startJob>>[] = [];
  for (let i = 0; i < 5; i++) running.push(await startJob(context, isolated('polite'), { payload }));
  const ends = await Promise.all(running.map((one) => one.end));
  expect(ends.map(({ end }) => end.kind)).toEqual(['completed', 'completed', 'completed', 'completed', 'completed']);
  await eventually(() => expect(threads.size).toBeLessThanOrEqual(2));
});
