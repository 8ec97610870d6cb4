// Only in `npm run test:citus`: what a tenant's node does for a job is planned and committed by that node alone.
import { readdirSync, readFileSync } from 'node:fs';
import pg from 'pg';
import { expect, test } from 'vitest';
import { createSchedule } from '../../server/schedules/change-schedule.ts';
import { addJob, claim, finish } from '../support/jobs.ts';
import { citusCluster } from '../support/postgres/citus.ts';
import { useTenant } from '../support/postgres/database.ts';

const context = useTenant();
const snapshots = 'test/snapshots';
const statements = readdirSync(snapshots).filter((name) => name.endsWith('.sql'));

test.runIf(citusCluster()).each(statements)('%s is planned without Citus', async (name) => {
  const text = readFileSync(`${snapshots}/${name}`, 'utf8').replace(/^--.*\n/gm, '');
  expect(await planOf(text.replaceAll('"tenant_acme"', context.schema))).not.toMatch(/citus|distributed/i);
});

test.runIf(citusCluster())('a job is enqueued, claimed and finished without a two-phase commit', async () => {
  const before = await preparedSoFar();
  const { id } = await addJob(context);
  const { jobs } = await claim(context);
  expect(jobs.map((job) => job.id)).toEqual([id]);
  for (const job of jobs) await finish(context, job);
  expect(await preparedSoFar()).toEqual(before);
});

test.runIf(citusCluster())('a job for later in a lane and a new schedule are written on the node alone', async () => {
  const { db, schema } = context;
  const before = await preparedSoFar();
  const runAt = new Date(Date.now() + 86_400_000).toISOString();
  const { id } = await addJob(context, { runAt, targetId: 'later' });
  const schedule = {
    name: 'nightly',
    cron: '0 3 * * *',
    timezone: 'UTC',
    missed: 'skip',
    job: { type: 'demo.echo' },
  } as const;
  await createSchedule(db, schema, schedule, 'test');
  expect(await preparedSoFar()).toEqual(before);
  // The coordinator would have taken a number without the epoch.
  const [event] = await db.query<{ epoch: string }>(
    `select (seq >> 48)::text as epoch from ${schema}.events where job_id = $1`,
    [id],
  );
  expect(Number(event?.epoch)).toBeGreaterThan(0);
});

test.runIf(citusCluster())('jobs that are enqueued one by one are planned once', async () => {
  // Later, so that no other test claims them.
  const runAt = new Date(Date.now() + 86_400_000).toISOString();
  for (let n = 0; n < 8; n++) await addJob(context, { runAt });
  const [kept] = await context.db.query<{ plans: string }>(
    `select sum(generic_plans)::text as plans from pg_prepared_statements
      where statement like '%insert into %jobs_%' and exists (select 1 from ${context.schema}.jobs)`,
  );
  // The first uses are not prepared yet.
  expect(Number(kept?.plans)).toBeGreaterThanOrEqual(5);
});

test.runIf(citusCluster())('a large document is read from a node as it was stored', async () => {
  const document = { items: Array.from({ length: 20_000 }, (_, n) => ({ n })) };
  const [row] = await context.db.query<{ document: unknown }>(
    `select $1::jsonb as document from (select count(*) from ${context.schema}.jobs) as one_row`,
    [JSON.stringify(document)],
  );
  expect(row?.document).toEqual(document);
});

/** With a generic plan: the values do not matter. */
async function planOf(text: string): Promise<string> {
  const count = Math.max(0, ...[...text.matchAll(/\$(\d+)/g)].map((match) => Number(match[1])));
  const list = (value: string) => (count === 0 ? '' : `(${Array.from({ length: count }, () => value).join(', ')})`);
  return context.db.transaction(async (tx) => {
    await tx.query(`select 1 from ${context.schema}.jobs limit 1`);
    await tx.query('set local plan_cache_mode = force_generic_plan');
    await tx.query(`prepare hot ${list('unknown')} as ${text}`);
    const rows = await tx.query<{ 'QUERY PLAN': string }>(`explain execute hot ${list('null')}`);
    await tx.query('deallocate hot');
    return rows.map((row) => row['QUERY PLAN']).join('\n');
  });
}

/** What Citus has recorded of two-phase commits, on all nodes. */
async function preparedSoFar(): Promise<string[][]> {
  const { coordinator, workers } = citusCluster() ?? { coordinator: '', workers: [] };
  const database = new URL(context.url).pathname;
  return Promise.all(
    [coordinator, ...workers].map(async (url) => {
      const client = new pg.Client(Object.assign(new URL(url), { pathname: database }).href);
      await client.connect();
      const { rows } = await client.query<{ gid: string }>('select gid from pg_dist_transaction order by gid');
      await client.end();
      return rows.map(({ gid }) => gid);
    }),
  );
}
