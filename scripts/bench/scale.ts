// `npx tsx scripts/bench/scale.ts postgres://… [finished jobs] [jobs in one lane] [tenants]`: pages that a claim, lists,
// `why` and the statistics read among millions of jobs. With several tenants each has that many jobs, and one of them is
// measured. Pages, unlike times, do not depend on the machine and its load. Creates the tenants in the database that is
// named, and deletes them.
import { randomBytes } from 'node:crypto';
import pLimit from 'p-limit';
import { Database, type Queryable } from '../../server/database/database.ts';
import { quoteSchema, type Schema } from '../../server/database/identifiers.ts';
import { migrateControl } from '../../server/database/migrations/migrate.ts';
import { explainJob } from '../../server/explain/explain-job.ts';
import { claimJobs } from '../../server/jobs/claim/claim.ts';
import { finishAttempts } from '../../server/jobs/finish/finish.ts';
import { findJob, listJobs } from '../../server/jobs/read/read-jobs.ts';
import { createLogger } from '../../server/kernel/logger.ts';
import { readSnapshot } from '../../server/stats/read-counts.ts';
import { createTenant } from '../../server/tenants/create-tenant.ts';
import { deleteTenant, requestTenantDeletion } from '../../server/tenants/delete-tenant.ts';
import type { Tenant } from '../../server/tenants/tenant.ts';

const [url, finishedText = '10000000', inLaneText = '1000000', tenantsText = '1'] = process.argv.slice(2);
if (url === undefined) throw new Error('say which database: npx tsx scripts/bench/scale.ts postgres://…');
const [finished, inLane, tenantCount] = [Number(finishedText), Number(inLaneText), Number(tenantsText)];
const claimable = 1000;
const slice = 500_000;
const undo = new Error('rolled back');
const db = new Database({ url, poolMax: 2, logger: createLogger('error'), statementTimeoutMs: 1_200_000 });

await migrateControl(db);
const prefix = `scale_${randomBytes(4).toString('hex')}`;
const bounded = pLimit(2);
const tenants: Tenant[] = [];
try {
  await Promise.all(Array.from({ length: tenantCount }, (_, n) => bounded(() => addTenant(`${prefix}_${n}`))));
  const [measured] = tenants.slice(tenantCount / 2);
  if (measured === undefined) throw new Error('there must be a tenant');
  await measureAll(measured, quoteSchema(measured.schemaName));
} finally {
  await Promise.all(tenants.map(({ slug }) => bounded(() => removeTenant(slug))));
  await db.close();
}

async function addTenant(slug: string): Promise<void> {
  const { tenant } = await createTenant(db, { slug });
  tenants.push(tenant);
  await fill(quoteSchema(tenant.schemaName));
}

async function removeTenant(slug: string): Promise<void> {
  const { confirm } = await requestTenantDeletion(db, slug);
  await deleteTenant(db, slug, { confirm, force: true });
}

/** Ids as uuid v7 makes them, one per millisecond. */
function idOf(n: string): string {
  const time = `lpad(to_hex((1750000000000 + ${n})::bigint), 12, '0')`;
  return `(substr(${time}, 1, 8) || '-' || substr(${time}, 9, 4) || '-7000-8000-' || lpad(to_hex(${n}), 12, '0'))::uuid`;
}

/** Finished jobs without a target, one lane with a held head and a long line, and some jobs that can be claimed. */
async function fill(schema: Schema): Promise<void> {
  for (let from = 0; from < finished; from += slice) {
    await db.query(
      `insert into ${schema}.jobs (id, status, type, lane_head, payload, started_at, finished_at, attempt, created_at)
       select ${idOf('n')}, 'SUCCESS', 'scale', true, '{"n": 1}', now(), now(), 1, now() - interval '1 day'
         from generate_series($1::bigint + 1, $2::bigint) n`,
      [from, Math.min(from + slice, finished)],
    );
  }
  await db.query(`insert into ${schema}.targets (id, lane_seq) values ('long', $1::bigint)`, [inLane]);
  await db.query(
    `insert into ${schema}.jobs (id, status, type, target_id, lane_head, lane_seq, payload, finished_at, held_since, attempt, error)
     select ${idOf('n')}, 'ERROR', 'scale', 'long', true, 0, '{}', now(), now(), 1, '{"code":"E","message":"e"}'
       from generate_series($1::bigint, $1::bigint) n`,
    [finished + 1],
  );
  for (let from = 0; from < inLane; from += slice) {
    await db.query(
      `insert into ${schema}.jobs (id, status, type, target_id, lane_head, lane_rank, lane_seq, payload)
       select ${idOf(`(n + ${finished + 1})`)}, 'QUEUED', 'scale', 'long', false, 4, n, '{}'
         from generate_series($1::bigint + 1, $2::bigint) n`,
      [from, Math.min(from + slice, inLane)],
    );
  }
  await db.query(
    `insert into ${schema}.jobs (id, status, type, lane_head, payload)
     select ${idOf('n')}, 'QUEUED', 'scale', true, '{}' from generate_series($1::bigint, $1::bigint + $2::bigint - 1) n`,
    [finished + inLane + 10, claimable],
  );
  await db.query(`vacuum analyze ${schema}.jobs`);
}

async function measureAll(tenant: Tenant, schema: Schema): Promise<void> {
  const { id: last = '' } = await one(schema, `where target_id = 'long' and lane_rank is not null order by id desc`);
  const { id: old = '' } = await one(schema, 'order by id');
  const view = { tenant, daemons: [], capacities: [], tenantConcurrency: 10, workerConcurrency: 10 } as never;
  const why = async (given: Queryable, id: string) => {
    const job = await findJob(given, schema, id);
    if (job !== undefined) await explainJob(given, job, view);
  };
  const page = { limit: 50 };
  console.log(
    `| ${tenantCount} tenants, each with ${finished} finished jobs and ${inLane} in one lane | statements | pages | ms |\n|---|---|---|---|`,
  );
  const request = { owner: 'scale', limit: 200, leaseSeconds: 3600, types: ['scale'] };
  await measure('claim of 200', (given) => claimJobs(given, schema, request));
  // What the measured claim took was rolled back.
  const { leaseId, jobs } = await claimJobs(db, schema, request);
  const items = jobs.map(({ id, targetId }) => ({
    jobId: id,
    leaseId,
    targetId,
    outcome: { kind: 'complete' as const, result: null },
  }));
  const options = { actor: 'worker:scale', endedLeases: [leaseId] };
  await measure('finish of 200', (given) => finishAttempts(given as Database, schema, items, options));
  await measure('one job', (given) => findJob(given, schema, old));
  await measure('list, newest first', (given) => listJobs(given, schema, {}, page));
  await measure('list of the lane', (given) => listJobs(given, schema, { targetId: 'long' }, page));
  await measure('list of holds', (given) => listJobs(given, schema, { statuses: ['PAUSED', 'ERROR'] }, page));
  await measure('list of QUEUED', (given) => listJobs(given, schema, { statuses: ['QUEUED'] }, page));
  await measure('list of RUNNING', (given) => listJobs(given, schema, { statuses: ['RUNNING'] }, page));
  await measure('list of SUCCESS', (given) => listJobs(given, schema, { statuses: ['SUCCESS'] }, page));
  await measure('why of a finished job', (given) => why(given, old));
  await measure('why of the last job of the lane', (given) => why(given, last));
  await measure('statistics', (given) => readSnapshot(given, schema));
}

async function one(schema: Schema, rest: string): Promise<{ id?: string }> {
  const [row] = await db.query<{ id: string }>(`select id from ${schema}.jobs ${rest} limit 1`);
  return row ?? {};
}

/** Explains each statement with its values, in a transaction that is rolled back, after a first run that fills the cache. */
async function measure(name: string, work: (given: Queryable) => Promise<unknown>): Promise<void> {
  let [statements, pages, ms] = [0, 0, 0];
  const run = async (tx: Queryable) => {
    [statements, pages, ms] = [0, 0, 0];
    const query: Queryable['query'] = async (text, values = []) => {
      const isPlanned = /^\s*(with|select|insert|update|delete)/i.test(text);
      if (isPlanned) {
        await tx.query('savepoint explained');
        const [row] = await tx.query<Record<string, Plan[]>>(`explain (analyze, buffers, format json) ${text}`, values);
        await tx.query('rollback to savepoint explained');
        const [plan] = row?.['QUERY PLAN'] ?? [];
        statements += 1;
        pages += (plan?.Plan['Shared Hit Blocks'] ?? 0) + (plan?.Plan['Shared Read Blocks'] ?? 0);
        ms += plan?.['Execution Time'] ?? 0;
      }
      return tx.query(text, values);
    };
    await work({ query });
  };
  for (let round = 0; round < 2; round++) {
    await db
      .transaction(
        async (tx) => {
          await run(tx);
          throw undo;
        },
        { timeoutMs: 600_000, idleTimeoutMs: 60_000 },
      )
      .catch((error: unknown) => {
        if (error !== undo) throw error;
      });
  }
  console.log(`| ${name} | ${statements} | ${pages} | ${ms.toFixed(1)} |`);
}

interface Plan {
  Plan: Record<string, number | undefined>;
  'Execution Time': number;
}
