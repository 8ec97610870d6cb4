// Jobs that wait for others: what nobody would wake is found and repaired, and a large graph does not slow claims.
import { expect, test } from 'vitest';
import { repairOrphans } from '../../../../server/jobs/finish/due-jobs.ts';
import type { Job } from '../../../../server/jobs/model/job.ts';
import { verifyTenant } from '../../../../server/verify/verify-tenant.ts';
import { after, flowsOf } from '../../../support/flows.ts';
import { addJob, addJobs, claim, finish } from '../../../support/jobs.ts';
import { useTenant } from '../../../support/postgres/database.ts';

const context = useTenant();
const { family, follow, statusOf, suspend } = flowsOf(context);

test('verify reports a job that nothing would wake, and the sweeper repairs it', async () => {
  const { parent, child } = await family();
  await suspend(parent);
  await follow();
  const first = await addJob(context);
  const next = await addJob(context, { after: [after(first)] });
  await follow();
  // As after a change by hand: ended, without an event.
  const ended = `update ${context.schema}.jobs
      set status = 'SUCCESS', finished_at = now() - interval '1 hour', lease_owner = null, lane_head = target_id is null
    where id = any($1)`;
  await context.db.query(ended, [[child.id, first.id]]);
  const waited = `update ${context.schema}.jobs set held_since = now() - interval '1 hour' where id = any($1)`;
  await context.db.query(waited, [[parent.id, next.id]]);
  const { violations } = await verifyTenant(context.db, context.schema);
  const named = violations.filter(({ kind }) => kind === 'job_waiting').map(({ jobId }) => jobId);
  expect(new Set(named)).toEqual(new Set([parent.id, next.id]));
  const scan = { actor: 'test', afterSeconds: 3600, leaseSeconds: 15 };
  let from: string | undefined = '00000000-0000-0000-0000-000000000000';
  while (from !== undefined) from = (await repairOrphans(context.db, context.schema, { ...scan, from })).next;
  expect([await statusOf(parent), await statusOf(next)]).toEqual(['QUEUED', 'QUEUED']);
});

test('a graph of 10,000 jobs does not slow a claim: it reads a few pages', async () => {
  const { schema, db } = context;
  await db.query(
    `update ${schema}.jobs set status = 'CANCELED', finished_at = now(), held_since = null, waiting = null, lane_rank = null, lane_head = target_id is null, lease_owner = null where status <> 'CANCELED'`,
  );
  const pages = async () => {
    await db.query(`vacuum analyze ${schema}.jobs`);
    const rows = await db.query<{ 'QUERY PLAN': string }>(
      `explain (analyze, buffers, costs off, timing off, summary off)
       select id from ${schema}.jobs where status = 'QUEUED' and lane_head and not remote and not gated order by priority, created_at, id limit 10`,
    );
    const plan = rows.map((row) => row['QUERY PLAN']).join('\n');
    expect(plan).toContain('jobs_claim');
    return Number(/Buffers: shared (?:hit=(\d+))?/.exec(plan)?.[1] ?? 0);
  };
  const type = crypto.randomUUID();
  const root = await addJob(context, { type });
  let last = [root];
  for (let layer = 0; layer < 10; layer++) {
    const jobs = Array.from({ length: 1000 }, (_, n) => ({ after: [after(last[n % last.length] as Job)], type }));
    last = await addJobs(context, jobs);
  }
  // The root of the index and the page of the one row that is ready, with some room.
  expect(await pages()).toBeLessThanOrEqual(8);
  const { jobs } = await claim(context, { types: [type] });
  expect(jobs.map(({ id }) => id)).toEqual([root.id]);
  const started = jobs[0] as Job;
  await finish(context, started);
  await follow();
  expect((await claim(context, { types: [type], limit: 2000 })).jobs).toHaveLength(1000);
});
