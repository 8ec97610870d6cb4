// Waiting for children: they are enqueued once however often the handler runs, the parent has no slot and no lease
// meanwhile, and pause, cancel, resume, crash and drain do what a person expects.
import { beforeEach, expect, test } from 'vitest';
import { explainJob } from '../../../server/explain/explain-job.ts';
import type { Reason } from '../../../server/explain/reason.ts';
import { cancelJob, pauseJob } from '../../../server/jobs/actions/pause-and-cancel.ts';
import { resumeJob } from '../../../server/jobs/actions/resume.ts';
import type { Job } from '../../../server/jobs/model/job.ts';
import { defineJob } from '../../../server/worker/handlers/define-job.ts';
import { useDaemon } from '../../support/daemon/daemon.ts';
import { eventually } from '../../support/eventually.ts';
import { eventTypes, reread } from '../../support/jobs.ts';
import { checkInvariants } from '../../support/model/invariants.ts';
import { useTenant } from '../../support/postgres/database.ts';

const context = useTenant();
const by = (job: Pick<Job, 'id'>) => ({ jobId: job.id, actor: 'user:ann' });

let parentRuns = 0;
let childRuns = 0;
let maxUnfinished = 0;
let isBroken = true;
let crashes = 0;
beforeEach(() => {
  parentRuns = 0;
  childRuns = 0;
  maxUnfinished = 0;
  isBroken = true;
});

interface Fan {
  count: number;
  concurrency?: number;
  child?: string;
  targets?: boolean;
}

const handlers = [
  defineJob({
    type: 'ordered',
    async run({ enqueue, waitForChildren }) {
      const first = await enqueue('double', { n: 1 }, { key: 'first' });
      await enqueue('double', { n: 2 }, { key: 'second', after: [first.id] });
      const missing = await enqueue('double', {}, { after: ['no-such-job'] }).catch((error) => error.code);
      return { missing, results: await waitForChildren() };
    },
  }),
  defineJob({
    type: 'unique',
    async run({ enqueue, waitForChildren, fanOut }) {
      const unique = { key: 'k', conflict: 'replace' } as const;
      // The job itself holds the key.
      const own = await enqueue('unique', {}, { unique });
      const runAt = '2199-01-01T00:00:00Z';
      const first = await enqueue('double', { n: 1 }, { unique, runAt, key: 'a' });
      const second = await enqueue('double', { n: 2 }, { unique, key: 'b' });
      const refused = await fanOut('all', [1], () => ({ type: 'double', unique }) as never).catch((e: Error) => e.name);
      return { own, first, second, refused, results: await waitForChildren() };
    },
  }),
  defineJob({
    type: 'fan',
    async run({ payload, fanOut }) {
      parentRuns += 1;
      const { count, concurrency, child = 'double', targets } = payload as Fan;
      const items = Array.from({ length: count }, (_, n) => n);
      const toJob = (n: number) => ({ type: child, payload: { n }, ...(targets && { targetId: `fan-${n % 3}` }) });
      return { results: await fanOut('all', items, toJob, concurrency === undefined ? {} : { concurrency }) };
    },
  }),
  defineJob({
    type: 'settle',
    async run({ fanOut }) {
      return fanOut('all', [1, 2, 3], (n) => ({ type: n === 2 ? 'fails' : 'double', payload: { n } }), {
        onFailure: 'all settled',
      });
    },
  }),
  defineJob({
    type: 'catches',
    async run({ fanOut, sleepFor, step }) {
      const first = await fanOut('all', [1], () => ({ type: 'fails' })).catch((error: { code: string }) => error.code);
      await step('after', () => 1);
      await sleepFor('3d');
      return first;
    },
  }),
  defineJob({
    type: 'waits',
    async run({ enqueue, waitForChildren }) {
      parentRuns += 1;
      await enqueue('double', { n: 4 });
      await enqueue('double', { n: 5 });
      const first = await waitForChildren<number>();
      await enqueue('double', { n: first[0] });
      return [...first, ...(await waitForChildren<number>())];
    },
  }),
  defineJob({
    type: 'crashes',
    async run({ job, fanOut }) {
      parentRuns += 1;
      const result = fanOut('all', [1, 2], (n) => ({ type: 'double', payload: { n } }));
      if (crashes > 0) {
        result.catch(() => {});
        crashes -= 1;
        await eventually(async () => expect(await childrenOf({ id: job.id })).toHaveLength(2));
        throw Object.assign(new Error('lost'), { code: 'LOST' });
      }
      return result;
    },
    retry: { on: 'any' },
  }),
  defineJob({ type: 'none', run: ({ fanOut }) => fanOut('none', [], () => ({ type: 'double' })) }),
  defineJob({
    type: 'changes',
    async run({ fanOut }) {
      parentRuns += 1;
      return fanOut('all', Array.from({ length: parentRuns }), () => ({ type: 'double', payload: { n: 1 } }));
    },
  }),
  // Postgres compresses the results to a few kilobytes; what they are when they are read counts.
  defineJob({
    type: 'large',
    run: async ({ fanOut }) => (await fanOut('all', [1, 2], () => ({ type: 'much' }))).length,
  }),
  defineJob({ type: 'much', run: () => crypto.randomUUID().repeat(20_000) }),
  defineJob({
    type: 'double',
    async run({ payload, job }) {
      childRuns += 1;
      const siblings = await childrenOf({ id: job.parentId as string });
      maxUnfinished = Math.max(
        maxUnfinished,
        siblings.filter(({ status }) => status !== 'SUCCESS' && status !== 'WAITING').length,
      );
      return (payload as { n: number }).n * 2;
    },
  }),
  defineJob({ type: 'quick', run: ({ payload }) => (payload as { n: number }).n }),
  defineJob({
    type: 'fails',
    run() {
      if (isBroken) throw new Error('broken');
      return 'repaired';
    },
  }),
  defineJob({ type: 'asks', run: ({ ask }) => ask({ title: 'Go?', actions: ['Yes'] }) }),
  defineJob({
    type: 'hangs',
    run: ({ signal }) => new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason))),
  }),
];
const running = useDaemon(context, {
  handlers,
  env: { WORKER_CONCURRENCY: '4', TENANT_CONCURRENCY: '4', RESULT_LIMIT_BYTES: '1000000' },
});

async function enqueue(type: string, payload: unknown = {}, more: Record<string, unknown> = {}): Promise<Job> {
  const [enqueued] = await running.daemon.enqueue(context.tenant, [{ type, payload, ...more }], 'test');
  return enqueued!.job;
}

async function becomes(job: Pick<Job, 'id'>, status: Job['status']): Promise<Job> {
  await eventually(async () => expect((await reread(context, job)).status).toBe(status));
  return reread(context, job);
}

async function childrenOf(parent: Pick<Job, 'id'>): Promise<Pick<Job, 'id' | 'status'>[]> {
  return context.db.query(`select id, status from ${context.schema}.jobs where parent_id = $1 order by id`, [
    parent.id,
  ]);
}

async function why(job: Pick<Job, 'id'>): Promise<Reason[]> {
  const view = { tenant: context.tenant, daemons: [], capacities: [], tenantConcurrency: 1, workerConcurrency: 1 };
  return (await explainJob(context.db, await reread(context, job), { ...view, questionTimeoutSeconds: 1 })).reasons;
}

async function openEdges(parent: Pick<Job, 'id'>): Promise<number> {
  const [row] = await context.db.query<{ n: number }>(
    `select count(*)::int as n from ${context.schema}.dependencies
      where job_id = $1 and state in ('open', 'gated', 'canceling')`,
    [parent.id],
  );
  return row!.n;
}

const allAre = (parent: Job, wanted: string) =>
  eventually(async () =>
    expect(new Set((await childrenOf(parent)).map(({ status }) => status))).toEqual(new Set([wanted])),
  );

test('children run once, with a limit of unfinished ones, and their results come in order', async () => {
  const job = await enqueue('fan', { count: 12, concurrency: 3, targets: true });
  const done = await becomes(job, 'SUCCESS');
  expect(done.result).toEqual({ results: Array.from({ length: 12 }, (_, n) => n * 2) });
  expect(done).toMatchObject({ attempt: 2, attemptFloor: 1 });
  expect(childRuns).toBe(12);
  expect(parentRuns).toBe(2);
  expect(maxUnfinished).toBeLessThanOrEqual(3);
  expect(await childrenOf(job)).toHaveLength(12);
  expect(await eventTypes(context, job)).toEqual([
    'job.enqueued',
    'job.started',
    'job.waiting',
    'job.woken',
    'job.started',
    'job.step_completed',
    'job.completed',
  ]);
  expect(await openEdges(job)).toBe(0);
  await checkInvariants(context);
});

test('a call waits for a thousand children', async () => {
  const job = await enqueue('fan', { count: 1000, concurrency: 100, child: 'quick' });
  const done = await becomes(job, 'SUCCESS');
  expect(done.result).toEqual({ results: Array.from({ length: 1000 }, (_, n) => n) });
  expect(await childrenOf(job)).toHaveLength(1000);
  await checkInvariants(context);
});

test('the first failure ends the call; after a person has repaired the child the parent can be resumed', async () => {
  const job = await enqueue('fan', { count: 2, child: 'fails' });
  const failed = await becomes(job, 'ERROR');
  expect(failed.error).toMatchObject({ code: 'CHILD_FAILED', message: expect.stringContaining('failed: broken') });
  // The parent does not wait for the second failure.
  await allAre(job, 'ERROR');
  isBroken = false;
  const children = await childrenOf(job);
  for (const child of children) await resumeJob(context.db, context.schema, by(child));
  await resumeJob(context.db, context.schema, by(job));
  running.daemon.signals.eventsWritten(context.tenant);
  running.daemon.signals.workAvailable(context.tenant);
  expect((await becomes(job, 'SUCCESS')).result).toEqual({ results: ['repaired', 'repaired'] });
  expect(await childrenOf(job)).toHaveLength(2);
  await checkInvariants(context);
});

test('with all settled, the call returns how each child ended', async () => {
  const done = await becomes(await enqueue('settle'), 'SUCCESS');
  expect(done.result).toMatchObject([
    { status: 'succeeded', result: 2 },
    { status: 'failed', error: { code: 'HANDLER_ERROR', message: 'broken' } },
    { status: 'succeeded', result: 6 },
  ]);
});

test('a failure that the handler caught is the same in later runs', async () => {
  const job = await becomes(await enqueue('catches'), 'WAITING');
  await eventually(async () => expect((await reread(context, job)).waiting?.kind).toBe('sleep'));
  isBroken = false;
  await context.db.query(
    `update ${context.schema}.phases set waits_until = now() where job_id = $1 and kind = 'sleep'`,
    [job.id],
  );
  await context.db.query(`update ${context.schema}.jobs set run_at = now() where id = $1`, [job.id]);
  running.daemon.workers.dueIn(context.tenant.slug, 0);
  expect((await becomes(job, 'SUCCESS')).result).toBe('CHILD_FAILED');
});

test('waitForChildren waits for the children that were enqueued since its last call', async () => {
  const done = await becomes(await enqueue('waits'), 'SUCCESS');
  expect(done.result).toEqual([8, 10, 16]);
  expect(childRuns).toBe(3);
  expect(await openEdges(done)).toBe(0);
});

test('the run after one that ended with its children enqueued finds them', async () => {
  crashes = 1;
  const retry = { kind: 'fixed', delaySeconds: 0, maxDelaySeconds: 0, jitter: 0 };
  const job = await enqueue('crashes', {}, { maxAttempts: 2, retry });
  expect((await becomes(job, 'SUCCESS')).result).toEqual([2, 4]);
  expect(childRuns).toBe(2);
  expect(await childrenOf(job)).toHaveLength(2);
});

test('cancel of a waiting parent cancels its children: those that wait, are queued, or run', async () => {
  const job = await becomes(
    await enqueue('fan', { count: 6, concurrency: 3, child: 'hangs', targets: true }),
    'WAITING',
  );
  await eventually(async () => {
    const counts = (await childrenOf(job)).map(({ status }) => status).sort();
    expect(counts).toEqual(['RUNNING', 'RUNNING', 'RUNNING', 'WAITING', 'WAITING', 'WAITING']);
  });
  await cancelJob(context.db, context.schema, by(job));
  running.daemon.signals.eventsWritten(context.tenant);
  await allAre(job, 'CANCELED');
  await eventually(async () => expect(await openEdges(job)).toBe(0));
  await checkInvariants(context);
});

test('pause and resume of a waiting parent; a pause of a child that waits for its turn', async () => {
  const job = await becomes(await enqueue('fan', { count: 3, concurrency: 1, child: 'hangs' }), 'WAITING');
  const gated = (await childrenOf(job)).filter(({ status }) => status === 'WAITING');
  expect(gated).toHaveLength(2);
  await pauseJob(context.db, context.schema, by(job));
  await pauseJob(context.db, context.schema, by(gated[0]!));
  await resumeJob(context.db, context.schema, by(gated[0]!));
  expect(await reread(context, gated[0]!)).toMatchObject({ status: 'WAITING', waiting: { kind: 'turn' } });
  await resumeJob(context.db, context.schema, by(job));
  running.daemon.signals.workAvailable(context.tenant);
  expect(await becomes(job, 'WAITING')).toMatchObject({ waiting: { kind: 'children', step: 'all', jobs: 3 } });
  await eventually(async () => expect(parentRuns).toBe(2));
  await becomes(job, 'WAITING');
  await cancelJob(context.db, context.schema, by(job));
  running.daemon.signals.eventsWritten(context.tenant);
  await allAre(job, 'CANCELED');
});

test('`why` of a parent names the children that need a person', async () => {
  const job = await becomes(await enqueue('fan', { count: 3, child: 'asks' }), 'WAITING');
  const children = await childrenOf(job);
  for (const child of children) await becomes(child, 'WAITING');
  await pauseJob(context.db, context.schema, { ...by(children[1]!), author: 'ann', reason: 'lunch' });
  const path = (id: string, action: string) => `/api/jobs/${id}/${action}`;
  const [summary, ...others] = await why(job);
  const held = others.filter(({ code }) => code === 'CHILD_HELD');
  expect(summary).toMatchObject({ code: 'WAITING', detail: expect.stringContaining('3 of its 3 children') });
  expect(held).toMatchObject([
    {
      code: 'CHILD_HELD',
      jobId: children[0]!.id,
      detail: expect.stringContaining('is WAITING for a person to answer "Go?"'),
    },
    {
      code: 'CHILD_HELD',
      jobId: children[1]!.id,
      detail: expect.stringContaining('is PAUSED: paused by ann: lunch; it waits for a person to answer "Go?"'),
      hold: { kind: 'user' },
    },
    { code: 'CHILD_HELD', jobId: children[2]!.id },
  ]);
  expect(held.map(({ release }) => release.actions.map(({ action }) => action))).toEqual([
    ['answer', 'cancel'],
    ['answer', 'resume', 'resolve', 'cancel'],
    ['answer', 'cancel'],
  ]);
  expect(held[1]!.release.actions[1]).toMatchObject({ path: path(children[1]!.id, 'resume') });
  await cancelJob(context.db, context.schema, by(job));
  running.daemon.signals.eventsWritten(context.tenant);
  await allAre(job, 'CANCELED');
});

test('no items, a different number of items in the next run, and results that are too large', async () => {
  expect((await becomes(await enqueue('none'), 'SUCCESS')).result).toEqual([]);
  const changed = await becomes(await enqueue('changes'), 'ERROR');
  expect(changed.error).toMatchObject({ code: 'STEP_ORDER_CHANGED', message: expect.stringContaining('1 children') });
  const large = await becomes(await enqueue('large'), 'ERROR');
  expect(large.error?.code).toBe('RESULT_TOO_LARGE');
  expect(await openEdges(changed)).toBe(0);
  expect(await openEdges(large)).toBe(0);
});

test('a unique child may be the job of another request, even the parent: no call waits for it', async () => {
  const unique = { key: 'k', until: 'finished', conflict: 'skip', limits: [] };
  const parent = await enqueue('unique', {}, { unique });
  const { result } = await becomes(parent, 'SUCCESS');
  const [child] = await childrenOf(parent);
  expect(result).toEqual({
    own: { id: parent.id, unique: 'skipped' },
    first: { id: child?.id },
    second: { id: child?.id, unique: 'replaced' },
    refused: 'RangeError',
    results: [],
  });
  expect(await reread(context, child!)).toMatchObject({ status: 'PENDING', payload: { n: 2 } });
  await cancelJob(context.db, context.schema, by(child!));
});

test('a child may run after another one', async () => {
  const job = await enqueue('ordered');
  expect((await becomes(job, 'SUCCESS')).result).toEqual({ missing: 'INVALID_FIELD', results: [2, 4] });
  const [first, second] = await Promise.all((await childrenOf(job)).map((child) => reread(context, child)));
  expect(Date.parse(second?.startedAt ?? '')).toBeGreaterThanOrEqual(Date.parse(first?.finishedAt ?? ''));
});
