// The gate: what it opens, what it counts, and that neither claims nor free jobs read what waits behind a limit.
import { describe, expect, test } from 'vitest';
import { cancelJob } from '../../../../server/jobs/actions/pause-and-cancel.ts';
import { claimStatement } from '../../../../server/jobs/claim/claim.ts';
import type { NewJob } from '../../../../server/jobs/enqueue/enqueue.ts';
import { expireUnstartedJobs, queueDueJobs } from '../../../../server/jobs/finish/due-jobs.ts';
import type { Outcome } from '../../../../server/jobs/finish/outcome.ts';
import { recoverLease } from '../../../../server/jobs/finish/recover.ts';
import { dropFullBuckets, gateStatement, openGate } from '../../../../server/jobs/limits/gate.ts';
import { assignLimits, claimantOf, limitKeysOf } from '../../../../server/jobs/limits/limit-keys.ts';
import type { Limit, LimitSetting } from '../../../../server/tenants/named-settings.ts';
import { addJobs, claim, expireLease, finish, reread } from '../../../support/jobs.ts';
import { useTenantPerTest } from '../../../support/postgres/database.ts';

const context = useTenantPerTest();
const type = 'mail';

function limit(name: string, setting: LimitSetting): Limit {
  return { name, source: 'settings', ...setting };
}

/** Jobs of the type, with the keys that these limits give them. */
async function add(limits: Limit[], jobs: Partial<NewJob>[]) {
  return addJobs(
    context,
    jobs.map((job) => {
      const given = { type, payload: {}, ...job };
      return { ...given, limitKeys: limitKeysOf(limits, given) };
    }),
  );
}

function open(limits: Limit[], room = 100, types = [type]) {
  const claimants = types.map((name) => claimantOf({ type: name }));
  return openGate(context.db, context.schema, { limits, claimants, room });
}

/** Makes time pass for the buckets. */
async function pass(seconds: number): Promise<void> {
  await context.db.query(
    `update ${context.schema}.limit_buckets set full_at = full_at - $1 * interval '1 second' where key <> ''`,
    [seconds],
  );
}

test('a rate allows its burst, then one token at a time', async () => {
  const limits = [limit('mail', { type, rate: 60, per: 'hour', burst: 3 })];
  await add(limits, Array(10).fill({}));
  expect((await claim(context)).jobs).toEqual([]);
  const first = await open(limits);
  expect(first.opened).toBe(3);
  expect(first.nextMs).toBeGreaterThan(54_000);
  expect(first.nextMs).toBeLessThanOrEqual(60_000);
  expect((await claim(context)).jobs).toHaveLength(3);
  expect((await open(limits)).opened).toBe(0);
  await pass(120);
  expect((await open(limits)).opened).toBe(2);
  expect((await claim(context)).jobs).toHaveLength(2);
  // However long nothing starts, no more than the burst comes at once.
  await pass(3600);
  await dropFullBuckets(context.db, context.schema);
  expect((await open(limits)).opened).toBe(3);
});

test('no time of a next run is given if no job waits for a token', async () => {
  const rate = [limit('mail', { type, rate: 1, per: 'hour' })];
  expect(await open(rate)).toEqual({ opened: 0, nextMs: undefined, position: undefined });
  const slots = [limit('one', { type, concurrency: 1 })];
  await add(slots, [{}, {}]);
  expect((await open(slots)).opened).toBe(1);
  await claim(context);
  // The end of the running job opens the gate, not a time.
  expect(await open(slots)).toEqual({ opened: 0, nextMs: undefined, position: undefined });
});

test('jobs that are opened and not claimed keep their tokens', async () => {
  const limits = [limit('mail', { type, rate: 1, burst: 3 })];
  await add(limits, Array(10).fill({}));
  expect((await open(limits, 2)).opened).toBe(2);
  expect((await open(limits, 2)).opened).toBe(0);
  await pass(3600);
  expect((await open(limits, 100)).opened).toBe(1);
});

test('keys do not wait for each other, and a shared limit counts all of them', async () => {
  const limits = [
    limit('account', { key: 'payload.account', concurrency: 1 }),
    limit('all', { rate: 1, per: 'hour', burst: 3 }),
  ];
  const of = (account: string) => ({ payload: { account } });
  await add(limits, [...Array(5).fill(of('a')), of('b'), of('c'), of('d')]);
  expect((await open(limits)).opened).toBe(3);
  const { jobs } = await claim(context);
  expect(jobs.map((job) => (job.payload as { account: string }).account)).toEqual(['a', 'b', 'c']);
});

test('jobs of a type that the claimant does not run stay closed', async () => {
  const limits = [limit('all', { concurrency: 1 })];
  const [, mine] = await add(limits, [{ type: 'other' }, {}]);
  expect((await open(limits)).opened).toBe(1);
  expect((await claim(context)).jobs.map((job) => job.id)).toEqual([mine?.id]);
});

test('an opened job that nobody claims is closed again, and another may take its slot', async () => {
  const limits = [limit('all', { concurrency: 1 })];
  await add(limits, [{ type: 'other' }, {}]);
  await open(limits, 1, ['other']);
  expect((await open(limits)).opened).toBe(0);
  await context.db.query(`update ${context.schema}.jobs set updated_at = now() - interval '1 minute'`);
  expect((await open(limits)).opened).toBe(1);
  expect((await claim(context)).jobs.map((job) => job.type)).toEqual([type]);
});

describe('a slot is free exactly once, however its job ends', () => {
  const outcomes: Outcome[] = [
    { kind: 'complete', result: null },
    { kind: 'fail', error: { code: 'X', message: 'x' } as never },
    { kind: 'retry', error: { code: 'X', message: 'x' } as never, delayMs: 3_600_000 },
    { kind: 'stopPaused', message: 'x' },
    { kind: 'stopCanceled', message: 'x' },
    { kind: 'requeue', reason: 'x' },
    {
      kind: 'suspend',
      waiting: { kind: 'sleep', step: 's', until: '2100-01-01T00:00:00Z' } as never,
      leftMs: 3_600_000,
    },
  ];
  test.each(outcomes)('$kind', async (outcome) => {
    const limits = [limit('two', { concurrency: 2 })];
    await add(limits, Array(6).fill({ maxAttempts: 3 }));
    expect((await open(limits)).opened).toBe(2);
    const [first] = (await claim(context)).jobs;
    expect((await open(limits)).opened).toBe(0);
    await finish(context, first as never, outcome);
    await finish(context, first as never, outcome);
    expect((await open(limits)).opened).toBe(1);
    expect((await open(limits)).opened).toBe(0);
  });

  test('crash', async () => {
    const limits = [limit('one', { concurrency: 1 })];
    await add(limits, [{ maxAttempts: 3 }, {}]);
    await open(limits);
    const { leaseId, jobs } = await claim(context);
    await expireLease(context, leaseId);
    // The job may still run: only its recovery frees the slot.
    expect((await open(limits)).opened).toBe(0);
    const lease = { id: leaseId, kind: 'local' as const, owner: 'w1', job_ids: jobs.map((job) => job.id) };
    const options = { actor: 'sweeper', tokenLimit: 0, graceSeconds: 1 };
    await recoverLease(context.db, context.schema, lease, options);
    await recoverLease(context.db, context.schema, lease, options);
    expect((await open(limits)).opened).toBe(1);
    expect((await open(limits)).opened).toBe(0);
  });

  test('cancel and expiry of an opened job', async () => {
    const limits = [limit('one', { concurrency: 1 })];
    const [first, second] = await add(limits, [{}, { expiresInSeconds: 3600 }, {}]);
    await open(limits);
    await cancelJob(context.db, context.schema, { jobId: first?.id as string, actor: 'test' });
    expect((await open(limits)).opened).toBe(1);
    await context.db.query(`update ${context.schema}.jobs set expires_at = now() - interval '1 s' where id = $1`, [
      second?.id,
    ]);
    await expireUnstartedJobs(context.db, context.schema, 'sweeper');
    expect((await open(limits)).opened).toBe(1);
  });
});

test('a limited head holds its lane; the next of the lane does not start past the gate', async () => {
  const limits = [limit('mail', { type, concurrency: 1 })];
  const [first, second, free] = await add(limits, [
    { targetId: 'a' },
    { targetId: 'a' },
    { targetId: 'b', type: 'free' },
  ]);
  await open(limits);
  const { jobs } = await claim(context);
  expect(jobs.map((job) => job.id)).toEqual([first?.id, free?.id]);
  await finish(context, jobs[0] as never);
  expect(await reread(context, second as never)).toMatchObject({ status: 'QUEUED', laneHead: true, gated: true });
  expect((await claim(context)).jobs).toEqual([]);
  expect((await open(limits)).opened).toBe(1);
  expect((await claim(context)).jobs.map((job) => job.id)).toEqual([second?.id]);
});

test('a scheduled job passes the gate when it is due', async () => {
  const limits = [limit('mail', { type, concurrency: 1 })];
  await add(limits, [{ runAt: '2100-01-01T00:00:00Z' }]);
  expect((await open(limits)).opened).toBe(0);
  await context.db.query(`update ${context.schema}.jobs set run_at = now()`);
  await queueDueJobs(context.db, context.schema, 'test');
  expect((await claim(context)).jobs).toEqual([]);
  expect((await open(limits)).opened).toBe(1);
});

test('changed limits are assigned to the jobs that exist, with the keys that an enqueue gives', async () => {
  const limits = [
    limit('Account', { key: 'payload.account.id', concurrency: 5 }),
    limit('author', { key: 'author', concurrency: 5 }),
    limit('b', { type: 'other', concurrency: 5 }),
    limit('queue', { queue: 'slow', key: 'target_id', concurrency: 5 }),
  ];
  const given: Partial<NewJob>[] = [
    { payload: { account: { id: 7 } }, author: 'ann' },
    { payload: { account: { id: 'x'.repeat(200) } }, queue: 'slow', targetId: 't' },
    { payload: { account: { id: null } }, type: 'other' },
    { payload: { account: { id: { deep: true } } }, remote: true },
    { payload: [1], type: 'ö'.repeat(100) },
    { payload: 'text' },
    { payload: { account: { id: true } }, runAt: '2100-01-01T00:00:00Z' },
  ];
  const jobs = await addJobs(
    context,
    given.map((job) => ({ type, ...job })),
  );
  await claim(context, { limit: 1 });
  expect(await assignLimits(context.db, context.schema, limits)).toBe(jobs.length);
  expect(await assignLimits(context.db, context.schema, limits)).toBe(0);
  for (const [n, job] of jobs.entries()) {
    const stored = await reread(context, job);
    expect(stored.limitKeys).toEqual(limitKeysOf(limits, { type, payload: {}, ...given[n] }));
    expect(stored.gated).toBe(stored.status === 'QUEUED');
  }
  expect(await assignLimits(context.db, context.schema, [])).toBe(jobs.length);
  expect((await claim(context)).jobs).toHaveLength(4);
});

test('100,000 limited jobs in front cost a free job nothing, and the gate one probe per key', async () => {
  const { db, schema } = context;
  const limits = [limit('account', { type, key: 'payload.account', rate: 1, per: 'hour', burst: 1 })];
  const claimParameters = {
    leaseId: '01890000-0000-7000-8000-000000000001',
    limit: 1,
    owner: 'w',
    leaseSeconds: 15,
    advisoryKey: 1,
    types: [type, 'free'],
  };
  const readBy = async (
    statement: { bind(s: never, p: never): { text: string; values: unknown[] } },
    parameters: object,
  ) => {
    const { text, values } = statement.bind(schema as never, parameters as never);
    let plan: { Plan: Record<string, number> }[] = [];
    await db
      .transaction(async (tx) => {
        const [row] = await tx.query<{ 'QUERY PLAN': never }>(
          `explain (analyze, buffers, format json) ${text}`,
          values,
        );
        plan = row?.['QUERY PLAN'] as never;
        throw new Error('undo');
      })
      .catch((error: Error) => {
        if (error.message !== 'undo') throw error;
      });
    const root = plan[0]?.Plan ?? {};
    return (root['Shared Hit Blocks'] ?? 0) + (root['Shared Read Blocks'] ?? 0);
  };
  await addJobs(context, [{ type: 'free', priority: 'LOW' }]);
  await db.query(`vacuum analyze ${schema}.jobs`);
  const alone = await readBy(claimStatement({ by: 'daemon' }), claimParameters);
  await db.query(
    `insert into ${schema}.jobs (id, status, lane_head, type, payload, gated, limit_keys, created_at)
     select gen_random_uuid(), 'QUEUED', true, $1, '{}', true, array['type:' || $1, 'account:' || n % 100], now() - interval '1 day'
       from generate_series(1, 100000) n`,
    [type],
  );
  await db.query(`vacuum analyze ${schema}.jobs`);
  const behind = await readBy(claimStatement({ by: 'daemon' }), claimParameters);
  // The index is one level deeper now, and a scan of the limited jobs would read thousands of pages.
  expect(behind).toBeLessThan(alone + 150);
  // All keys are spent.
  expect((await open(limits, 1000)).opened).toBe(100);
  const gate = await readBy(gateStatement, {
    limits: JSON.stringify([{ name: 'account', seconds: 3600, burst: 1 }]),
    claimants: JSON.stringify([{ who: 'type:mail' }]),
    room: 1000,
    maxGroups: 500,
  });
  expect(gate).toBeLessThan(100 * 12);
  const other = limitKeysOf(limits, { type, payload: { account: 'new' } });
  await addJobs(context, [{ type, limitKeys: other }]);
  expect((await open(limits, 1000)).opened).toBe(1);
});
