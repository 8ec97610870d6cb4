import { expect, onTestFinished, test } from 'vitest';
import { z } from 'zod';
import { Database } from '../../../../server/database/database.ts';
import { Fatal, Recoverable } from '../../../../server/durable/handler-errors.ts';
import { listLogs } from '../../../../server/jobs/attempt/logs.ts';
import { queueDueJobs } from '../../../../server/jobs/finish/due-jobs.ts';
import type { Job } from '../../../../server/jobs/model/job.ts';
import { createLogger } from '../../../../server/kernel/logger.ts';
import { defineJob } from '../../../../server/worker/handlers/define-job.ts';
import { runJob, startClaimed, startJob } from '../../../support/daemon/handlers.ts';
import { eventually } from '../../../support/eventually.ts';
import { eventTypes, expireLease, finish, reread } from '../../../support/jobs.ts';
import { useTenant } from '../../../support/postgres/database.ts';
import { startDelayingProxy } from '../../../support/postgres/proxies/delaying-proxy.ts';

const context = useTenant();

async function eventsOf(jobId: string, type: string): Promise<Record<string, unknown>[]> {
  const rows = await context.db.query<{ data: Record<string, unknown> }>(
    `select data from ${context.schema}.events where job_id = $1 and type = $2 order by seq`,
    [jobId, type],
  );
  return rows.map((row) => row.data);
}

test('many progress reports become few writes, and the last one is stored', async () => {
  const definition = defineJob({
    type: 'test.progress',
    run({ progress }) {
      for (let i = 1; i <= 97; i++) progress(i, `step ${i}`);
    },
  });
  const { job, end } = await runJob(context, definition);
  expect(end).toEqual({ kind: 'completed', result: null });
  expect(await reread(context, job)).toMatchObject({ progress: 97, progressMessage: 'step 97' });
  const notified = await eventsOf(job.id, 'job.progress');
  expect(notified.map((data) => data.progress)).toEqual([1, 97]);
});

/** The attempt failed, and the next one may start. */
async function retryNow(job: Job): Promise<void> {
  await finish(context, job, { kind: 'retry', error: { code: 'X', message: 'x' }, delayMs: 0 });
  await queueDueJobs(context.db, context.schema, 'test');
}

test('a holder without a lease writes nothing and is stopped', async () => {
  const definition = defineJob({
    type: 'test.stale',
    async run({ progress, lease, checkpoint, enqueue, log, addUsage }) {
      await context.db.query(`update ${context.schema}.jobs set lease_id = gen_random_uuid() where lease_id = $1`, [
        lease.id,
      ]);
      progress(50);
      log('still here');
      await addUsage({ tokens: 10 });
      const refused = await Promise.allSettled([lease.assert(), checkpoint({ a: 1 }), enqueue('demo.echo', {})]);
      return refused.map((r) => r.status);
    },
  });
  const { job, end, stops } = await runJob(context, definition);
  expect(stops).toContainEqual({ kind: 'leaseLost' });
  expect(end).toMatchObject({ kind: 'completed', result: ['rejected', 'rejected', 'rejected'] });
  expect(await reread(context, job)).toMatchObject({ progress: null, checkpoint: null, tokensUsed: 0 });
  expect(await listLogs(context.db, context.schema, job.id, { limit: 10 })).toEqual([]);
  const children = await context.db.query(`select id from ${context.schema}.jobs where parent_id = $1`, [job.id]);
  expect(children).toEqual([]);
});

test('lease.assert does not trust an answer that is read after the lease has expired', async () => {
  const { schema } = context;
  const proxy = await startDelayingProxy(context);
  const db = new Database({ url: proxy.url, poolMax: 1, logger: createLogger('silent') });
  onTestFinished(() => db.close());
  await db.query('select 1');
  const definition = defineJob({
    type: 'test.late-answer',
    async run({ lease }) {
      await context.db.query(
        `update ${schema}.leases set expires_at = clock_timestamp() + interval '500 ms' where id = $1`,
        [lease.id],
      );
      proxy.holdAnswers();
      const asserted = Promise.allSettled([lease.assert()]);
      const over = `select 1 from ${schema}.leases where id = $1 and expires_at < now()`;
      await eventually(async () => expect(await context.db.query(over, [lease.id])).toHaveLength(1));
      proxy.deliverAnswers();
      return (await asserted).map(({ status }) => status);
    },
  });
  const { end, stops } = await runJob({ ...context, db }, definition);
  expect(stops).toEqual([{ kind: 'leaseLost' }]);
  expect(end).toEqual({ kind: 'completed', result: ['rejected'] });
});

test('lease.assert fails once the lease has expired by the clock of the database', async () => {
  const definition = defineJob({
    type: 'test.assert',
    async run({ lease }) {
      await lease.assert();
      await expireLease(context, lease.id);
      await lease.assert();
    },
  });
  const { end, stops } = await runJob(context, definition);
  expect(end).toMatchObject({ kind: 'failed', error: { message: 'The lease is no longer held' } });
  expect(stops).toEqual([{ kind: 'leaseLost' }]);
});

test('usage adds up over attempts, and exceeding the limit stops the job', async () => {
  const definition = defineJob({
    type: 'test.tokens',
    retry: { attempts: 2 },
    async run({ addUsage }) {
      await addUsage({ tokens: 40 });
      await addUsage({ tokens: 30 });
    },
  });
  const first = await runJob(context, definition, { tokenLimit: 100 });
  expect(first.stops).toEqual([]);
  expect(await reread(context, first.job)).toMatchObject({ tokensUsed: 70 });
  await retryNow(first.job);
  const second = await (await startClaimed(context, definition, first.job.id)).end;
  expect(second.stops).toEqual([{ kind: 'budgetSpent', unit: 'tokens', used: 110, limit: 100, per: 'job' }]);
  expect(second.end).toMatchObject({ kind: 'failed' });
  expect(await reread(context, first.job)).toMatchObject({ tokensUsed: 110 });
  expect((await eventsOf(first.job.id, 'job.usage')).at(-1)).toEqual({ tokens_used: 110 });
});

test("a job without its own limit has its tenant's, then the daemon's; 0 means none", async () => {
  const definition = defineJob({ type: 'test.limits', run: ({ addUsage }) => addUsage({ tokens: 50 }) });
  expect((await runJob(context, definition, {}, { tokenLimit: 49 })).stops).toHaveLength(1);
  expect((await runJob(context, definition, { tokenLimit: 0 }, { tokenLimit: 49 })).stops).toEqual([]);
  const settings = { token_limit: 50 };
  const rich = { ...context, tenant: { ...context.tenant, settings } };
  expect((await runJob(rich, definition, {}, { tokenLimit: 49 })).stops).toEqual([]);
});

test('log lines are kept in order, with their data, and bounded', async () => {
  const definition = defineJob({
    type: 'test.logs',
    run({ log }) {
      log('hello', { n: 1 });
      log.warn('nul \u0000 here');
      log.error('odd', { big: 1n as unknown as number });
    },
  });
  const { job } = await runJob(context, definition);
  const lines = await listLogs(context.db, context.schema, job.id, { limit: 10 });
  expect(lines.map(({ level, message, data }) => ({ level, message, data }))).toEqual([
    { level: 'info', message: 'hello', data: { n: 1 } },
    { level: 'warn', message: 'nul \ufffd here', data: null },
    { level: 'error', message: 'odd', data: { not_stored: expect.stringContaining('bigint') } },
  ]);
  const chatty = defineJob({
    type: 'test.chatty',
    async run({ log, sleep }) {
      for (let i = 0; i < 3000; i++) {
        log(`line ${i}`);
        if (i % 600 === 599) await sleep(260);
      }
    },
  });
  const loud = await runJob(context, chatty);
  const kept = await context.db.query<{ n: string; last: string }>(
    `select count(*) as n, max(message) filter (where message = 'line 2999') as last from ${context.schema}.job_logs where job_id = $1`,
    [loud.job.id],
  );
  expect(Number(kept[0]?.n)).toBeLessThanOrEqual(1500);
  expect(kept[0]?.last).toBe('line 2999');
});

test('children are created once, however often the parent runs', async () => {
  const definition = defineJob({
    type: 'test.parent',
    retry: { attempts: 2 },
    async run({ enqueue }) {
      const a = await enqueue('demo.echo', { child: 1 });
      const b = await enqueue('demo.echo', { child: 2 }, { targetId: 'children', priority: 'HIGH' });
      const c = await enqueue('demo.echo', { child: 3 }, { key: 'third' });
      return [a.id, b.id, c.id];
    },
  });
  const first = await runJob(context, definition, { author: 'ann' });
  await retryNow(first.job);
  const second = await (await startClaimed(context, definition, first.job.id)).end;
  expect(second.end).toEqual(first.end);
  const children = await context.db.query(
    `select payload, target_id, priority, author, remote from ${context.schema}.jobs where parent_id = $1 order by id`,
    [first.job.id],
  );
  expect(children).toMatchObject([
    { payload: { child: 1 }, author: 'ann', remote: false },
    { payload: { child: 2 }, target_id: 'children', priority: 1 },
    { payload: { child: 3 } },
  ]);
});

test("a child has its parent's id; other jobs have none", async () => {
  const definition = defineJob({
    type: 'test.family',
    payload: z.object({ parentless: z.boolean() }),
    async run({ job, payload, enqueue }) {
      if (payload.parentless) await enqueue('test.family', { parentless: false });
      return job.parentId;
    },
  });
  const parent = await runJob(context, definition, { payload: { parentless: true } });
  expect(parent.end).toEqual({ kind: 'completed', result: null });
  const [made] = await context.db.query<{ id: string }>(`select id from ${context.schema}.jobs where parent_id = $1`, [
    parent.job.id,
  ]);
  const child = await (await startClaimed(context, definition, made!.id)).end;
  expect(child.end).toEqual({ kind: 'completed', result: parent.job.id });
});

test('the next attempt starts from the checkpoint', async () => {
  const seen: unknown[] = [];
  const definition = defineJob({
    type: 'test.checkpoint',
    checkpoint: z.object({ page: z.number() }),
    retry: { attempts: 2 },
    async run({ checkpoint, lastCheckpoint }) {
      seen.push(lastCheckpoint?.page);
      await checkpoint({ page: 7 });
      if (lastCheckpoint === undefined) throw new Recoverable('once');
    },
  });
  const first = await runJob(context, definition);
  expect(first.end).toMatchObject({ kind: 'failed', recoverable: true });
  await retryNow(first.job);
  await (await startClaimed(context, definition, first.job.id)).end;
  expect(seen).toEqual([undefined, 7]);
});

test('sleep ends when the handler must stop, and the signal has the reason', async () => {
  const definition = defineJob({
    type: 'test.sleep',
    async run({ sleep, signal }) {
      await sleep(3_000_000_000).catch(() => {});
      throw signal.reason;
    },
  });
  const running = await startJob(context, definition);
  running.stop({ kind: 'canceled' });
  const { end } = await running.end;
  expect(end).toMatchObject({ kind: 'failed', error: { message: 'The job was canceled' } });
});

test.each([
  ['a function', () => ({ f: () => 1 }), 'RESULT_NOT_JSON'],
  ['a bigint', () => ({ n: 1n }), 'RESULT_NOT_JSON'],
  ['a cycle', () => cycle(), 'RESULT_NOT_JSON'],
  ['NUL', () => ({ s: 'a\u0000b' }), 'RESULT_NOT_JSON'],
  ['half a character', () => 'a\ud800', 'RESULT_NOT_JSON'],
  ['NaN', () => ({ n: Number.NaN }), 'RESULT_NOT_JSON'],
  ['a Map', () => new Map(), 'RESULT_NOT_JSON'],
  ['undefined in a list', () => [undefined], 'RESULT_NOT_JSON'],
  ['too much nesting', () => JSON.parse(`${'['.repeat(5000)}${']'.repeat(5000)}`), 'RESULT_NOT_JSON'],
  ['too much', () => 'x'.repeat(2000), 'RESULT_TOO_LARGE'],
])('a result with %s is a clear error', async (_, make, code) => {
  const definition = defineJob({ type: 'test.result', run: make });
  const { job, end } = await runJob(context, definition, {}, { resultLimitBytes: 1024 });
  expect(end).toMatchObject({ kind: 'failed', error: { code }, recoverable: false });
  if (end.kind === 'failed') await finish(context, job, { kind: 'fail', error: end.error });
  expect(await reread(context, job)).toMatchObject({ status: 'ERROR', error: { code } });
});

test.each([
  ['an error with NUL', () => new Error('a\u0000\ud800'), { code: 'HANDLER_ERROR', message: 'a\ufffd\ufffd' }],
  ['an error without a message', () => new Error(''), { code: 'HANDLER_ERROR', message: 'Error' }],
  ['a string', () => 'oops', { code: 'HANDLER_ERROR', message: 'oops' }],
  ['nothing', () => undefined, { code: 'HANDLER_ERROR', message: 'undefined' }],
  ['a code', () => new Fatal('no', { code: 'NO_WAY', details: { a: 1 } }), { code: 'NO_WAY', details: { a: 1 } }],
])('a handler that throws %s ends with an error that can be stored', async (_, make, error) => {
  const definition = defineJob({
    type: 'test.throw',
    run() {
      throw make();
    },
  });
  const { job, end } = await runJob(context, definition);
  expect(end).toMatchObject({ kind: 'failed', error });
  if (end.kind === 'failed') await finish(context, job, { kind: 'fail', error: end.error });
  expect(await eventTypes(context, job)).toContain('job.failed');
});

test('the handler gets the output of the payload schema', async () => {
  const definition = defineJob({
    type: 'test.payload',
    payload: z.object({ at: z.coerce.date(), n: z.number().default(3) }),
    run: ({ payload }) => ({ year: payload.at.getUTCFullYear(), n: payload.n }),
  });
  const { end } = await runJob(context, definition, { payload: { at: '2026-01-02T00:00:00Z' } });
  expect(end).toEqual({ kind: 'completed', result: { year: 2026, n: 3 } });
  const bad = await runJob(context, definition, { payload: { at: 'soon' } });
  expect(bad.end).toMatchObject({ kind: 'failed', error: { code: 'INVALID_PAYLOAD' }, recoverable: false });
});

function cycle(): object {
  const a: Record<string, unknown> = {};
  a.self = a;
  return a;
}
