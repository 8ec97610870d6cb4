// How fast statistics are with a million jobs: `npx tsx scripts/bench/statistics.ts [jobs]`. Fills a
// tenant of its own in DATABASE_URL, or in an embedded Postgres in a temporary directory.
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Database } from '../../server/database/database.ts';
import { migrateControl } from '../../server/database/migrations/migrate.ts';
import { startEmbeddedPostgres } from '../../server/embedded-postgres/start.ts';
import { createLogger } from '../../server/kernel/logger.ts';
import { readCounts, readOldestSeconds, readSnapshot } from '../../server/stats/read-counts.ts';
import { rollUpOnce } from '../../server/stats/roll-up.ts';
import { metricNames, readTimeseries } from '../../server/stats/timeseries.ts';
import { createTenant } from '../../server/tenants/create-tenant.ts';

const jobs = Number(process.argv[2] ?? 1_000_000);
const logger = createLogger('error');
const dataDir = await mkdtemp(join(process.getuid?.() === 0 ? '/tmp' : tmpdir(), 'leasehold-bench-'));
const embedded = process.env.DATABASE_URL ? undefined : await startEmbeddedPostgres({ dataDir, logger });
const db = new Database({
  url: process.env.DATABASE_URL ?? (embedded as { url: string }).url,
  poolMax: 2,
  logger,
  statementTimeoutMs: 1_200_000,
});

try {
  await migrateControl(db, logger);
  const { tenant } = await createTenant(db, { slug: `bench${Date.now().toString(36)}` });
  const { schema } = tenant;
  const rollUp = async () => {
    while (!(await rollUpOnce(db, schema)).complete);
  };
  await fill(jobs, '30 days');
  await time(`rollup of 30 days: ${jobs} jobs with three events each`, rollUp);
  await fill(100_000, '1 minute');
  await time('rollup of one busy minute: 100,000 jobs with three events each', rollUp);
  await time('the same counts by a scan, for comparison', () =>
    db.query(`select status, count(*) from ${schema}.jobs group by 1`),
  );
  await often('counts by status', () => readCounts(db, schema));
  await often('snapshot', () => readSnapshot(db, schema));
  await often('age of the oldest waiting job', () => readOldestSeconds(db, schema));
  for (const [bucket, range] of [
    ['1m', '24h'],
    ['1h', '31d'],
  ] as const) {
    for (const metric of metricNames) {
      await often(`${metric}, ${bucket} over ${range}`, () => readTimeseries(db, schema, { metric, bucket, range }));
    }
  }
  await db.query(`drop schema ${schema} cascade`);

  /** Spread over five queues: enqueued, started two seconds later, ended after five. */
  async function fill(count: number, over: string): Promise<void> {
    const slice = 50_000;
    for (let from = 0; from < count; from += slice) {
      await db.query(
        `with made as (
           select gen_random_uuid() as id, now() - $4::interval * (1 - n::float8 / $3) as at, n,
                  case when n % 20 = 0 then 'QUEUED' when n % 50 = 1 then 'ERROR' else 'SUCCESS' end as status
             from generate_series($1::int, $2::int) as n),
         put as (
           insert into ${schema}.jobs (id, status, type, queue, lane_head, created_at, run_at, updated_at, started_at, finished_at, held_since, attempt, payload)
           select id, status, 'bench', 'queue' || n % 5, true, at, at, at, case when status <> 'QUEUED' then at + interval '2 seconds' end,
                  case when status <> 'QUEUED' then at + interval '5 seconds' end,
                  case when status = 'ERROR' then at + interval '5 seconds' end, case when status = 'QUEUED' then 0 else 1 end, '{}' from made)
         insert into ${schema}.events (at, type, job_id, from_status, to_status, actor)
         select * from (
           select at, 'job.enqueued', id, null, 'QUEUED', 'bench' from made union all
           select at + interval '2 seconds', 'job.started', id, 'QUEUED', 'RUNNING', 'bench' from made where status <> 'QUEUED' union all
           select at + interval '5 seconds', 'job.completed', id, 'RUNNING', status, 'bench' from made where status <> 'QUEUED') as e
          order by 1`,
        [from, Math.min(from + slice, count) - 1, count, over],
      );
    }
    await db.query(`analyze ${schema}.jobs`);
    await db.query(`analyze ${schema}.events`);
  }
} finally {
  await db.close();
  await embedded?.stop();
  await rm(dataDir, { recursive: true, force: true });
}

async function time(name: string, run: () => Promise<unknown>): Promise<void> {
  const began = performance.now();
  await run();
  console.log(`${name}: ${Math.round(performance.now() - began)} ms`);
}

async function often(name: string, run: () => Promise<unknown>): Promise<void> {
  const taken: number[] = [];
  for (let i = 0; i < 20; i++) {
    const began = performance.now();
    await run();
    taken.push(performance.now() - began);
  }
  taken.sort((a, b) => a - b);
  console.log(`${name}: median ${taken[10]?.toFixed(1)} ms, worst ${taken.at(-1)?.toFixed(1)} ms`);
}
