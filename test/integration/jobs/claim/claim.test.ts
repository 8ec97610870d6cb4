// Claims at the same time: each takes what it wants, and none keeps others from what it does not want.
import { expect, onTestFinished, test } from 'vitest';
import { Database } from '../../../../server/database/database.ts';
import { claimJobs, claimRemoteJobs } from '../../../../server/jobs/claim/claim.ts';
import { createLogger } from '../../../../server/kernel/logger.ts';
import { addJobs } from '../../../support/jobs.ts';
import { staysOpen, useTenant } from '../../../support/postgres/database.ts';

const context = useTenant();

test('a claim of one type leaves the lanes of other types alone, also with an older statement', async () => {
  const { schema } = context;
  const db = new Database({ url: context.url, poolMax: 1, logger: createLogger('silent') });
  onTestFinished(() => db.close());
  const of = (type: string) => ({ owner: type, limit: 100, leaseSeconds: 60, types: [type] });
  for (let n = 0; n < 20; n++) await claimJobs(db, schema, of('mine'));
  await addJobs(context, [
    { type: 'mine', targetId: 'a' },
    { type: 'theirs', targetId: 'b' },
    { type: 'theirs', targetId: 'c' },
  ]);
  await db.transaction(async (tx) => {
    expect((await claimJobs(tx, schema, of('mine'))).jobs.map((job) => job.targetId)).toEqual(['a']);
    // It has not ended yet.
    expect((await claimJobs(context.db, schema, of('theirs'))).jobs.map((job) => job.targetId)).toEqual(['b', 'c']);
  }, staysOpen);
});

// The transaction of the second of two answers, for example: it locks the job, changes nothing, and wakes nobody.
test('a claim that skipped locked jobs says so, and finds them when the locks are gone', async () => {
  const { db, schema } = context;
  const [free, locked] = await addJobs(context, [
    { type: 'skipped' },
    { type: 'skipped' },
    { type: 'skipped', targetId: 'skipped' },
  ]);
  const claim = (limit: number) => claimJobs(db, schema, { owner: 'w1', limit, leaseSeconds: 60, types: ['skipped'] });
  await db.transaction(async (tx) => {
    await tx.query(`select 1 from ${schema}.jobs where id = $1 for update`, [locked!.id]);
    await tx.query(`select 1 from ${schema}.jobs where target_id = 'skipped' for update`);
    const short = await claim(10);
    expect(short).toMatchObject({ hasSkipped: true });
    expect(short.jobs.map(({ id }) => id)).toEqual([free!.id]);
    expect(await claim(10)).toMatchObject({ jobs: [], hasSkipped: true });
    const others = { owner: 'w1', limit: 10, leaseSeconds: 60, types: ['others'] };
    expect(await claimJobs(db, schema, others)).toMatchObject({ jobs: [], hasSkipped: false });
  }, staysOpen);
  const full = await claim(1);
  expect(full.jobs).toHaveLength(1);
  expect(full).toMatchObject({ hasSkipped: false });
  expect((await claim(10)).jobs).toHaveLength(1);
  expect(await claim(10)).toMatchObject({ jobs: [], hasSkipped: false });
});

test('so does a claim of a remote worker, which skips only jobs that the worker could run', async () => {
  const { db, schema } = context;
  const [small] = await addJobs(context, [
    { remote: true, queue: 'gpu', costUnits: 2 },
    { remote: true, queue: 'gpu', costUnits: 9 },
  ]);
  const request = { owner: 'w1', limit: 10, leaseSeconds: 60, queue: 'gpu' };
  await db.transaction(async (tx) => {
    await tx.query(`select 1 from ${schema}.jobs where queue = 'gpu' for update`);
    expect(await claimRemoteJobs(db, schema, { ...request, maxCostUnits: 5 })).toMatchObject({ hasSkipped: true });
    expect(await claimRemoteJobs(db, schema, { ...request, maxCostUnits: 1 })).toMatchObject({ hasSkipped: false });
  }, staysOpen);
  const claimed = await claimRemoteJobs(db, schema, { ...request, maxCostUnits: 5 });
  expect(claimed).toMatchObject({ hasSkipped: false, jobs: [{ id: small!.id }] });
});
