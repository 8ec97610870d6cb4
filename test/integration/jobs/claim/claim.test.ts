// Claims at the same time: each takes what it wants, and none keeps others from what it does not want.
import { expect, onTestFinished, test } from 'vitest';
import { Database } from '../../../../server/database/database.ts';
import { claimJobs, claimRemoteJobs, claimStatement } from '../../../../server/jobs/claim/claim.ts';
import { newId } from '../../../../server/kernel/ids.ts';
import { createLogger } from '../../../../server/kernel/logger.ts';
import { addJobs } from '../../../support/jobs.ts';
import { addTenant, staysOpen, useTenant } from '../../../support/postgres/database.ts';

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

interface PlanNode {
  'Relation Name'?: string;
  'Actual Rows': number;
  'Actual Loops': number;
  'Rows Removed by Filter'?: number;
  Plans?: PlanNode[];
}

/** The most rows of jobs that one node of the plan has read. */
function jobsRead(node: PlanNode): number {
  const own = node['Relation Name'] === 'jobs' ? node['Actual Rows'] + (node['Rows Removed by Filter'] ?? 0) : 0;
  return Math.max(own * node['Actual Loops'], ...(node.Plans ?? []).map(jobsRead));
}

// A connection keeps the plan of its claims, whatever the table was like when it was made.
test.each([
  { by: 'daemon' as const, remote: false, parameters: { types: ['kept'] } },
  { by: 'remoteWorker' as const, remote: true, parameters: { types: null, queue: 'kept', maxCostUnits: 9, met: '{}' } },
])(
  'the plan that a $by keeps for an empty table reads only heads of a large one',
  async ({ by, remote, parameters }) => {
    const where = { ...context, ...(await addTenant(context.db, `kept_plan_${remote ? 'remote' : 'local'}`)) };
    const { schema } = where;
    const db = new Database({ url: context.url, poolMax: 1, logger: createLogger('silent') });
    onTestFinished(() => db.close());
    const values = { leaseId: newId(), limit: 10, owner: 'w1', leaseSeconds: 60, advisoryKey: 1, ...parameters };
    const { text, values: ordered } = claimStatement({ by }).bind(schema, values);
    const literals = ordered.map((value) => {
      if (Array.isArray(value)) return `array['${value.join(`','`)}']`;
      return typeof value === 'string' ? `'${value}'` : String(value);
    });
    await db.query(
      `select set_config('plan_cache_mode', 'force_generic_plan', false), set_config('enable_seqscan', 'off', false),
            set_config('enable_bitmapscan', 'off', false)`,
    );
    await db.query(`prepare kept_plan as ${text}`);
    const claimed = async () => {
      const [row] = await db.query<{ 'QUERY PLAN': { Plan: PlanNode }[] }>(
        `explain (analyze, format json) execute kept_plan(${literals.join(', ')})`,
      );
      return jobsRead(row!['QUERY PLAN'][0]!.Plan);
    };
    expect(await claimed()).toBe(0);
    const insert = (status: string, count: number, more: string) =>
      context.db.query(
        `insert into ${schema}.jobs (id, status, type, queue, remote, payload, lane_head, target_id, lane_rank, finished_at)
       select gen_random_uuid(), $1, 'kept', 'kept', $3, '{}', ${more} from generate_series(1, $2::int) as n`,
        [status, count, remote],
      );
    await insert('SUCCESS', 20_000, 'true, null, null, now()');
    await insert('QUEUED', 20_000, `false, 'lane', 2, null`);
    await insert('QUEUED', 100, 'true, null, null, null');
    expect(await claimed()).toBe(10);
    await context.db.query(`analyze ${schema}.jobs`);
    await context.db.query(`update ${schema}.jobs set status = 'QUEUED', attempt = 0 where status = 'RUNNING'`);
    await db.query(`update ${schema}.leases set id = gen_random_uuid()`);
    expect(await claimed()).toBe(10);
  },
);
