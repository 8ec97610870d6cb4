// What the claim costs among 10,000 and among 1,000,000 jobs, most of them finished or waiting behind
// held lanes; and what lists cost there. Builds the data in a scratch database, prints EXPLAIN
// (ANALYZE, BUFFERS) of the very statement that claimJobs sends. For docs/performance.md:
//   npx tsx scripts/bench/explain-claim.ts [jobs …]        DATABASE_URL, or an embedded Postgres
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Database, type Queryable } from '../../server/database/database.ts';
import type { Schema } from '../../server/database/identifiers.ts';
import { migrateControl } from '../../server/database/migrations/migrate.ts';
import { startEmbeddedPostgres } from '../../server/embedded-postgres/start.ts';
import { claimJobs } from '../../server/jobs/claim/claim.ts';
import type { JobFilter } from '../../server/jobs/read/filter.ts';
import { listJobs } from '../../server/jobs/read/read-jobs.ts';
import { createLogger } from '../../server/kernel/logger.ts';
import { createTenant } from '../../server/tenants/create-tenant.ts';

const logger = createLogger('silent');
const heldLanes = 1000;
const claimable = 1000;
const batch = 200;

async function main(): Promise<void> {
  const sizes = process.argv.slice(2).map(Number);
  const dataDir = await mkdtemp(join(tmpdir(), 'leasehold-explain-'));
  const embedded = process.env.DATABASE_URL ? undefined : await startEmbeddedPostgres({ dataDir, logger });
  const serverUrl = process.env.DATABASE_URL ?? embedded?.url ?? '';
  try {
    for (const jobs of sizes.length > 0 ? sizes : [10_000, 1_000_000]) await measure(serverUrl, jobs);
  } finally {
    await embedded?.stop();
    await rm(dataDir, { recursive: true, force: true });
  }
}

async function measure(serverUrl: string, jobs: number): Promise<void> {
  const name = `leasehold_explain_${process.pid}_${jobs}`;
  const server = new Database({ url: serverUrl, poolMax: 1, logger });
  await server.query(`create database ${name}`);
  const url = new URL(serverUrl);
  url.pathname = `/${name}`;
  const db = new Database({ url: url.href, poolMax: 4, logger, statementTimeoutMs: 1_200_000 });
  try {
    await migrateControl(db, logger);
    const { tenant } = await createTenant(db, { slug: 'explain' });
    await fill(db, tenant.schema, jobs);
    await explainClaim(db, tenant.schema, jobs);
    await timeLists(db, tenant.schema, jobs);
  } finally {
    await db.close();
    await server.query(`drop database ${name} with (force)`);
    await server.close();
  }
}

/** Half finished, half waiting behind 1,000 held lanes, and 1,000 that can be claimed. */
async function fill(db: Database, schema: Schema, jobs: number): Promise<void> {
  const lanes = Math.min(heldLanes, jobs / 20);
  const half = Math.floor(jobs / 2);
  // Ids as uuid v7 would make them, one per millisecond.
  const time = "lpad(to_hex((1750000000000 + n)::bigint), 12, '0')";
  const v7 = `(substr(${time}, 1, 8) || '-' || substr(${time}, 9, 4) || '-7' || substr(md5(n::text), 1, 3)
    || '-8' || substr(md5(n::text), 4, 3) || '-' || substr(md5(n::text), 7, 12))::uuid`;
  await db.query(
    `insert into ${schema}.targets (id, lane_seq) select 'lane-' || n, 1000000 from generate_series(1, $1) n`,
    [lanes],
  );
  await db.query(
    `insert into ${schema}.jobs (id, status, type, lane_head, payload, finished_at, attempt)
     select ${v7}, 'SUCCESS', 'demo.echo', true, '{"n": 1}', now(), 1 from generate_series(1, $1::int) n`,
    [half],
  );
  await db.query(
    `insert into ${schema}.jobs (id, status, type, target_id, lane_head, lane_seq, payload, finished_at, held_since, attempt)
     select ${v7}, 'ERROR', 'demo.echo', 'lane-' || (n - $1), true, 1, '{}', now(), now(), 1 from generate_series($1::int + 1, $1::int + $2::int) n`,
    [half, lanes],
  );
  await db.query(
    `insert into ${schema}.jobs (id, status, type, target_id, lane_head, lane_rank, lane_seq, payload)
     select ${v7}, 'QUEUED', 'demo.echo', 'lane-' || (n % $2::int + 1), false, 4, n, '{}' from generate_series($1::int + $2::int + 1, $3::int - $4::int) n`,
    [half, lanes, jobs, claimable],
  );
  await db.query(
    `insert into ${schema}.jobs (id, status, type, lane_head, payload)
     select ${v7}, 'QUEUED', 'demo.echo', true, '{}' from generate_series($1::int - $2::int + 1, $1::int) n`,
    [jobs, claimable],
  );
  await db.query(`vacuum analyze ${schema}.jobs`);
}

async function explainClaim(db: Database, schema: Schema, jobs: number): Promise<void> {
  let statement: { text: string; values: unknown[] } | undefined;
  const recorder: Queryable = {
    query: async (text, values = []) => {
      statement = { text, values };
      return [];
    },
  };
  await claimJobs(recorder, schema, { owner: 'explain', limit: batch, leaseSeconds: 15, types: ['demo.echo'] });
  if (statement === undefined) throw new Error('claimJobs sent no statement');
  const { text, values } = statement;
  for (let run = 1; run <= 4; run++) {
    const plan = await explain(db, text, values);
    const total = plan.slice(-2).join(', ');
    console.log(`claim of ${batch} among ${jobs} jobs, run ${run}: ${total}`);
    if (run === 4) console.log(plan.join('\n'));
  }
}

/** In a transaction that is rolled back: every run claims the same jobs. */
async function explain(db: Database, text: string, values: unknown[]): Promise<string[]> {
  const undo = new Error('undo');
  let plan: string[] = [];
  await db
    .transaction(async (tx) => {
      const rows = await tx.query<Record<string, string>>(`explain (analyze, buffers, costs off) ${text}`, values);
      plan = rows.map((row) => row['QUERY PLAN'] ?? '');
      throw undo;
    })
    .catch((error) => {
      if (error !== undo) throw error;
    });
  return plan;
}

const lists: Record<string, JobFilter> = {
  'no filter': {},
  'status=QUEUED': { statuses: ['QUEUED'] },
  'status=RUNNING': { statuses: ['RUNNING'] },
  'status=PAUSED,ERROR (held=true)': { statuses: ['PAUSED', 'ERROR'] },
  'status=SUCCESS': { statuses: ['SUCCESS'] },
  'status=CANCELED (none in the history)': { statuses: ['CANCELED'] },
  'type=nothing (a full page of slices)': { type: 'nothing' },
  'target_id=lane-7': { targetId: 'lane-7' },
  'target_id=lane-7, status=ERROR': { targetId: 'lane-7', statuses: ['ERROR'] },
};

async function timeLists(db: Database, schema: Schema, jobs: number): Promise<void> {
  for (const [name, filter] of Object.entries(lists)) {
    const times: number[] = [];
    let found = 0;
    for (let run = 0; run < 5; run++) {
      const start = performance.now();
      found = (await listJobs(db, schema, filter, { limit: 50 })).jobs.length;
      times.push(performance.now() - start);
    }
    times.sort((a, b) => a - b);
    console.log(`list among ${jobs}: ${name}: ${found} jobs, median ${times[2]?.toFixed(1)} ms`);
  }
}

await main();
