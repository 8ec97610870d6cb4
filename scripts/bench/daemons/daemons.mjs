// W13: many daemons on one database, as processes of their own. Free no-op jobs, and jobs that compute over many lanes:
// how fast they drain with more daemons than one, how evenly the daemons share them, and how many jobs are claimed and
// requeued without having run; what a job costs the daemons and Postgres, and how many claims were sent. All counts of
// daemons are measured in the same run, one after the other.
import { fork } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { Database } from '../../../dist/database/database.js';
import { migrateControl } from '../../../dist/database/migrations/migrate.js';
import { sealEvents } from '../../../dist/events/seals/seal.js';
import { enqueue } from '../../../dist/jobs/enqueue/enqueue.js';
import { createLogger } from '../../../dist/kernel/logger.js';
import { rollUpOnce } from '../../../dist/stats/roll-up.js';
import { createTenant } from '../../../dist/tenants/create-tenant.js';
import { activateTenant, suspendTenant } from '../../../dist/tenants/tenant-store.js';
import { createDeliveries } from '../../../dist/webhooks/outbox.js';
import { postgresCpuMs, postmasterOf } from '../rest/load.mjs';

const daemonProcess = fileURLToPath(new URL('./daemon-process.mjs', import.meta.url));
const round = (x, digits = 2) => Math.round(x * 10 ** digits) / 10 ** digits;

export const W13 = {
  title: 'daemons: free no-op jobs per second with the most daemons, relative to one',
  better: 'higher',
  options: { daemons: [1, 2, 4, 8], free: 60_000, warmUp: 1000, lanes: 100, computing: 1500, computeMs: 10 },
  async run({ url, options, calm }) {
    const logger = createLogger('silent');
    const db = new Database({ url, poolMax: 4, logger });
    await dropEverything(db);
    await migrateControl(db, logger);
    const runs = [];
    for (const count of options.daemons) {
      const free = await drain(db, url, count, calm, freeJobs(options), options);
      const lanes = await drain(db, url, count, calm, computingJobs(options), options);
      runs.push({ daemons: count, free, lanes });
    }
    await db.close();
    const [one] = runs;
    for (const { free, lanes } of runs) {
      free.ratio = round(free.perSecond / one.free.perSecond);
      lanes.ratio = round(lanes.perSecond / one.lanes.perSecond);
    }
    return { value: runs.at(-1).free.ratio, runs };
  },
};

function freeJobs({ free }) {
  return Array.from({ length: free }, (_, i) => ({ type: 'noop', payload: { i } }));
}

function computingJobs({ computing, lanes, computeMs }) {
  return Array.from({ length: computing }, (_, i) => ({
    type: 'compute',
    payload: { ms: computeMs },
    targetId: `lane-${i % lanes}`,
  }));
}

let tenants = 0;

/** The daemons are up, have run some jobs and are idle before the tenant, suspended until then, is activated. */
async function drain(db, url, count, calm, jobs, { warmUp }) {
  const first = await suspendedTenant(db, freeJobs({ free: count * warmUp }));
  const tenant = await suspendedTenant(db, jobs);
  await calm();
  const daemons = await Promise.all(Array.from({ length: count }, (_, n) => startDaemon(url, `d${n}`)));
  await activateTenant(db, first.slug);
  while (await isPending(db, first)) await new Promise((resolve) => setTimeout(resolve, 25));
  const postmaster = await postmasterOf(url);
  const read = await indexEntriesRead(db, tenant);
  const reports = () => Promise.all(daemons.map((daemon) => daemon.report()));
  const before = await reports();
  const postgresMs = postgresCpuMs(postmaster);
  const start = performance.now();
  await activateTenant(db, tenant.slug);
  while (await isPending(db, tenant)) await new Promise((resolve) => setTimeout(resolve, 25));
  const seconds = (performance.now() - start) / 1000;
  const postgresCpuMicroseconds = round((1000 * (postgresCpuMs(postmaster) - postgresMs)) / jobs.length, 1);
  const after = await reports();
  await Promise.all(daemons.map((daemon) => daemon.stop()));
  // Only what these jobs took: neither the start nor the jobs to warm up.
  const sum = (name) => after.reduce((total, one, n) => total + one[name] - before[n][name], 0);
  const counted = await countEvents(db, tenant, jobs.length);
  const entriesRead = (await indexEntriesRead(db, tenant)) - read;
  // Otherwise the next daemons would count and seal what these have left.
  for (const { id, schema } of [first, tenant]) {
    await db.query(`drop schema ${schema} cascade`);
    await db.query('delete from leasehold.tenants where id = $1', [id]);
  }
  return {
    perSecond: round(jobs.length / seconds, 0),
    cpuMicroseconds: round(sum('cpuMicroseconds') / jobs.length, 1),
    postgresCpuMicroseconds,
    claims: sum('claims'),
    emptyClaims: sum('emptyClaims'),
    claimEntriesPerJob: round(entriesRead / jobs.length, 1),
    ...counted,
  };
}

/** A tenant with waiting jobs, whose events have been counted, delivered and sealed. */
async function suspendedTenant(db, jobs) {
  tenants += 1;
  const { tenant } = await createTenant(db, { slug: `w13_${tenants}` });
  await suspendTenant(db, tenant.slug);
  for (let i = 0; i < jobs.length; i += 5000) await enqueue(db, tenant.schema, jobs.slice(i, i + 5000), 'bench');
  while (!(await rollUpOnce(db, tenant.schema)).complete);
  while (!(await createDeliveries(db, tenant)).complete);
  while (!(await sealEvents(db, tenant.schema)).complete);
  return tenant;
}

/** Entries of the claim's index that were read so far: many more than jobs if claims read what others have taken. */
async function indexEntriesRead(db, { schema }) {
  await db.query('select pg_stat_force_next_flush()');
  const [row] = await db.query(
    `select idx_tup_read::float8 as read from pg_stat_user_indexes
      where schemaname = $1 and indexrelname = 'jobs_claim_priority_created_at_id'`,
    [schema.replaceAll('"', '')],
  );
  return row.read;
}

async function isPending(db, { schema }) {
  const [row] = await db.query(
    `select (select id from ${schema}.jobs where status = 'QUEUED' and lane_head and not remote and not gated
              order by priority, created_at, id limit 1) is not null
         or exists (select 1 from ${schema}.leases where state = 'ACTIVE') as pending`,
  );
  return row.pending;
}

/** How many jobs each daemon started, and how many were requeued without having run. */
async function countEvents(db, { schema }, jobs) {
  const started = await db.query(
    `select actor, count(*)::int as count from ${schema}.events where type = 'job.started' group by actor order by count`,
  );
  const [row] = await db.query(`select count(*)::int as requeued from ${schema}.events where type = 'job.requeued'`);
  return { shares: started.map(({ count }) => count), requeuedPercent: round((row.requeued * 100) / jobs) };
}

/** `report` gives what the daemon has used and done so far, `stop` the same and its end. */
export function startDaemon(url, workerId, settings = {}) {
  const env = { ...process.env, ...settings, BENCH_URL: url, WORKER_ID: workerId };
  const child = fork(daemonProcess, [], { env });
  const exited = new Promise((resolve) => child.once('exit', resolve));
  const ask = (what) => {
    const answer = new Promise((resolve) => child.once('message', resolve));
    child.send(what);
    return answer;
  };
  const report = () => ask('report');
  const stop = async () => {
    const used = await ask('stop');
    await exited;
    return used;
  };
  return new Promise((resolve, reject) => {
    child.once('message', () => resolve({ report, stop }));
    child.once('error', reject);
    child.once('exit', (code) => reject(new Error(`a daemon exited with ${code}`)));
  });
}

export async function dropEverything(db) {
  const rows = await db.query(
    `select nspname from pg_namespace where nspname = 'leasehold' or nspname like 'tenant\\_%'`,
  );
  for (const { nspname } of rows) await db.query(`drop schema "${nspname}" cascade`);
}
