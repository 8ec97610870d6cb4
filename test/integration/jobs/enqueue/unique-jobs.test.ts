// Unique jobs: at most one job of a type holds a key, whatever 50 callers do at once, and a held key is skipped, replaced
// or debounced.
import { expect, test } from 'vitest';
import type { Queryable } from '../../../../server/database/database.ts';
import { sealEvents } from '../../../../server/events/seals/seal.ts';
import { cancelJob, pauseJob } from '../../../../server/jobs/actions/pause-and-cancel.ts';
import { resumeJob } from '../../../../server/jobs/actions/resume.ts';
import { enqueue, enqueueAllOrNone, enqueueInCallersTransaction } from '../../../../server/jobs/enqueue/enqueue.ts';
import type { Enqueued, Unique } from '../../../../server/jobs/enqueue/new-job.ts';
import type { Job } from '../../../../server/jobs/model/job.ts';
import { deleteFreeKeys } from '../../../../server/jobs/retention/delete-stale.ts';
import { verifyTenant } from '../../../../server/verify/verify-tenant.ts';
import { eventually } from '../../../support/eventually.ts';
import { claim, eventTypes, finish, reread } from '../../../support/jobs.ts';
import { checkInvariants } from '../../../support/model/invariants.ts';
import { lockWaiters, staysOpen, useTenant } from '../../../support/postgres/database.ts';

const context = useTenant();
const by = (job: Pick<Job, 'id'>) => ({ jobId: job.id, actor: 'user:ann' });

async function add(type: string, unique: Partial<Unique> & { key: string }, more: object = {}) {
  const full: Unique = { until: 'finished', conflict: 'skip', limits: [], ...unique };
  const [enqueued] = await enqueue(context.db, context.schema, [{ type, payload: {}, ...more, unique: full }], 'test');
  return enqueued!;
}

async function run(type: string): Promise<Job> {
  return (await claim(context, { types: [type], limit: 1 })).jobs[0]!;
}

test.each([undefined, 'lane'])('50 callers at once make one job (target %s)', async (targetId) => {
  const type = `crowd-${targetId}`;
  const all = await Promise.all(
    Array.from({ length: 50 }, (_, n) => {
      const conflict = (['skip', 'replace', 'debounce'] as const)[n % 3] ?? 'skip';
      return add(type, { key: 'k', conflict }, { targetId });
    }),
  );
  expect(new Set(all.map(({ job }) => job.id)).size).toBe(1);
  expect(all.filter(({ kind }) => kind === 'created')).toHaveLength(1);
  expect((await add(type, { key: 'other' })).kind).toBe('created');
  expect((await add(`${type}-2`, { key: 'k' })).kind).toBe('created');
  await checkInvariants(context);
});

test('a request that takes a free key blocks other requests for it until its commit', async () => {
  await add('taken', { key: 'k' });
  await finish(context, await run('taken'));
  const unique: Unique = { key: 'k', until: 'finished', conflict: 'skip', limits: [] };
  let second: Promise<Enqueued> | undefined;
  const meanwhile = async () => {
    let hasAnswer = false;
    second = add('taken', unique).finally(() => {
      hasAnswer = true;
    });
    await eventually(async () => {
      if (hasAnswer) return;
      expect(await context.db.query(lockWaiters(context.schema))).not.toEqual([]);
    });
  };
  const first = await context.db.transaction(async (tx) => {
    const slow = {
      async query(text: string, ...rest: []) {
        const rows = await tx.query(text, ...rest);
        if (/u\.held_until > now\(\)/.test(text)) await meanwhile();
        return rows;
      },
    } as Queryable;
    return enqueueInCallersTransaction(slow, context.tenant, [{ type: 'taken', payload: {}, unique }], 'test');
  }, staysOpen);
  expect(first).toMatchObject([{ kind: 'created' }]);
  expect(await second).toMatchObject({ kind: 'replayed', unique: 'skipped', job: { id: first[0]!.job.id } });
});

test('until finished: the key is free when the job has ended for good, not while it is on hold', async () => {
  const { job } = await add('finished', { key: 'k' });
  const again = () => add('finished', { key: 'k' });
  expect(await again()).toMatchObject({ kind: 'replayed', unique: 'skipped', job: { id: job.id } });
  const running = await run('finished');
  expect(await add('finished', { key: 'k', conflict: 'replace' }, { payload: 2 })).toMatchObject({
    unique: 'skipped',
    job: { id: job.id, payload: {} },
  });
  await finish(context, running, { kind: 'fail', error: { code: 'X', message: 'x' } });
  expect(await again()).toMatchObject({ unique: 'skipped' });
  await resumeJob(context.db, context.schema, by(job));
  await finish(context, await run('finished'));
  expect(await again()).toMatchObject({ kind: 'created' });
});

test('until started: one job runs and one waits; retries, resumes and requeues of the first have no effect', async () => {
  const first = await add('started', { key: 'k', until: 'started' }, { maxAttempts: 3 });
  expect((await add('started', { key: 'k', until: 'started' })).job.id).toBe(first.job.id);
  const running = await run('started');
  const second = await add('started', { key: 'k', until: 'started' });
  expect(second.kind).toBe('created');
  for (const outcome of [
    { kind: 'retry', error: { code: 'X', message: 'x' }, delayMs: 1e6 },
    { kind: 'requeue', reason: 'drained' },
  ] as const) {
    await finish(context, await reread(context, running), outcome);
    expect((await add('started', { key: 'k', until: 'started' })).job.id).toBe(second.job.id);
    await pauseJob(context.db, context.schema, by(first.job));
    await resumeJob(context.db, context.schema, by(first.job));
    await claim(context, { types: ['started'], limit: 1 });
  }
  await cancelJob(context.db, context.schema, by(second.job));
  await checkInvariants(context);
});

test('until seconds: the key is held for that time, even after the end of the job', async () => {
  const { job } = await add('seconds', { key: 'k', until: 60 });
  await finish(context, await run('seconds'));
  expect((await add('seconds', { key: 'k', until: 60 })).job.id).toBe(job.id);
  await context.db.query(`update ${context.schema}.unique_keys set held_until = now() where type = 'seconds'`);
  expect((await add('seconds', { key: 'k', until: 60 })).kind).toBe('created');
});

test('replace and debounce change only the waiting job; seals and verify accept it', async () => {
  const later = (minutes: number) => new Date(Date.now() + minutes * 60_000).toISOString();
  const [first, second, third] = [later(10), later(20), later(30)];
  const { job } = await add('changed', { key: 'k' }, { payload: { n: 1 }, runAt: first, targetId: 't' });
  await sealEvents(context.db, context.schema);
  const replaced = await add('changed', { key: 'k', conflict: 'replace' }, { payload: { n: 2 }, runAt: second });
  expect(replaced).toMatchObject({ unique: 'replaced', job: { id: job.id, payload: { n: 2 }, targetId: 't' } });
  expect(Date.parse(replaced.job.runAt)).toBe(Date.parse(first));
  const moved = await add('changed', { key: 'k', conflict: 'debounce' }, { payload: { n: 3 }, runAt: third });
  expect(moved).toMatchObject({ unique: 'debounced', job: { payload: { n: 3 }, status: 'PENDING' } });
  expect(Date.parse(moved.job.runAt)).toBe(Date.parse(third));
  expect(await eventTypes(context, job)).toEqual(['job.enqueued', 'job.replaced', 'job.replaced']);
  await sealEvents(context.db, context.schema);
  expect((await verifyTenant(context.db, context.schema)).violations).toEqual([]);
  await context.db.query(`update ${context.schema}.jobs set payload = '{"n": 9}' where id = $1`, [job.id]);
  expect((await verifyTenant(context.db, context.schema)).violations).toMatchObject([{ kind: 'job_altered' }]);
  await context.db.query(`update ${context.schema}.jobs set payload = '{"n": 3}' where id = $1`, [job.id]);
  await cancelJob(context.db, context.schema, by(job));
});

test('unique keys in batches, replays and transactions of callers', async () => {
  const unique: Unique = { key: 'k', until: 'finished', conflict: 'replace', limits: [] };
  const batch = [1, 2].map((n) => ({ type: 'batch', payload: n, unique, clientRequestId: `b${n}` }));
  const [one, two] = await enqueueAllOrNone(
    context.db,
    context.schema,
    [...batch, { type: 'plain', payload: 3 }],
    'test',
  );
  expect(one).toMatchObject({ kind: 'created' });
  expect(two).toMatchObject({ unique: 'replaced', job: { id: one!.job.id, payload: 2 } });
  await finish(context, await run('batch'));
  const next = await add('batch', unique, { clientRequestId: 'b3' });
  // The answer of the first request was lost.
  const replay = await add('batch', unique, { payload: 1, clientRequestId: 'b1' });
  expect(replay.job.id).toBe(one!.job.id);
  await context.db.transaction((tx) =>
    enqueueInCallersTransaction(tx, context.tenant, [{ type: 'batch', payload: 4, unique, targetId: 'x' }], 'test'),
  );
  expect(await reread(context, next.job)).toMatchObject({ payload: 4 });
});

test('retention deletes keys that no job holds', async () => {
  await add('old', { key: 'free', until: 1 });
  await finish(context, await run('old'));
  const { job } = await add('old', { key: 'held' });
  await context.db.query(
    `update ${context.schema}.unique_keys set used_at = now() - interval '2 days', held_until = held_until - interval '1 hour' where type = 'old'`,
  );
  expect(await deleteFreeKeys(context.db, context.schema, 100)).toBe(1);
  expect((await add('old', { key: 'held' })).job.id).toBe(job.id);
});
