// How fast the pages of the dashboard are at size: `npm run test:scale [-- jobs targets tenants]`. Fills a database with
// 1,000,000 jobs, 10,000 targets and 1,000 tenants, sends every request that each page sends, prints the server's times, and
// fails if one takes longer than 200 ms or reads the table of jobs from end to end. Uses DATABASE_URL, which must be a
// database for this alone, or an embedded Postgres in a temporary directory.
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import pg from 'pg';
import { Database } from '../../server/database/database.ts';
import { migrateControl } from '../../server/database/migrations/migrate.ts';
import { startEmbeddedPostgres } from '../../server/embedded-postgres/start.ts';
import { createLogger } from '../../server/kernel/logger.ts';
import { createApiKey } from '../../server/tenants/api-keys/key-store.ts';
import { createTenant } from '../../server/tenants/create-tenant.ts';
import { startApi } from './pages-api.ts';
import { fillScale } from './pages-data.ts';
import { requestsOfPages } from './pages-requests.ts';

const [jobs = 1_000_000, targets = 10_000, tenants = 1_000] = process.argv.slice(2).map(Number);
const limitMs = 200;
// The best of them: what the query costs, not what else the machine does.
const repeats = 8;
const logger = createLogger('error');
const dataDir = await mkdtemp(join(process.getuid?.() === 0 ? '/tmp' : tmpdir(), 'leasehold-scale-'));
const embedded = process.env.DATABASE_URL ? undefined : await startEmbeddedPostgres({ dataDir, logger });
const url = process.env.DATABASE_URL ?? (embedded as { url: string }).url;
const autoExplain = {
  session_preload_libraries: "'auto_explain'",
  'auto_explain.log_min_duration': '0',
  'auto_explain.log_format': "'json'",
  'auto_explain.log_level': "'notice'",
  client_min_messages: "'notice'",
};
const plans: string[] = [];
let failures = 0;

try {
  const db = connect();
  await migrateControl(db, logger);
  const { tenant } = await createTenant(db, { slug: 'scale' });
  const startedAt = performance.now();
  const sample = await fillScale(db, tenant.schema, { jobs, targets, tenants });
  console.log(`filled in ${((performance.now() - startedAt) / 1000).toFixed(0)} s`);
  const { text: key } = await createApiKey(db, { tenantId: tenant.id, name: 'scale', scopes: ['read'] });
  const requests = requestsOfPages(sample);
  const times = await measure(db, key);
  const scans = await explain(db, key);
  console.log('\n| page | request | server ms, best of 8 | plans |\n|---|---|---|---|');
  for (const { page, path } of requests) {
    const ms = times.get(path) ?? Number.NaN;
    const scan = scans.get(path) ?? 0;
    if (ms > limitMs || scan > 0) failures += 1;
    console.log(
      `| ${page} | \`${path}\` | ${ms.toFixed(1)} | ${scan > 0 ? `${scan} scans of jobs` : 'indexes only'} |`,
    );
  }
  await db.close();

  async function measure(database: Database, apiKey: string): Promise<Map<string, number>> {
    const api = await startApi(database);
    const result = new Map<string, number>();
    for (const { path, operator } of requests) {
      const taken: number[] = [];
      for (let n = 0; n <= repeats; n++) taken.push(await api.get(path, operator ? api.adminKey : apiKey));
      // The first one fills caches.
      result.set(path, Math.min(...taken.slice(1)));
    }
    await api.stop();
    return result;
  }

  /** The same requests on connections that report the plan of every statement. */
  async function explain(database: Database, apiKey: string): Promise<Map<string, number>> {
    for (const [name, value] of Object.entries(autoExplain)) {
      const [row] = await database.query<{ db: string }>('select current_database() as db');
      await database.query(`alter database "${row?.db}" set ${name} = ${value}`);
    }
    collectNotices();
    const explained = connect();
    const api = await startApi(explained);
    const result = new Map<string, number>();
    for (const { path, operator } of requests) {
      plans.length = 0;
      await api.get(path, operator ? api.adminKey : apiKey);
      result.set(path, plans.filter(scansJobs).length);
    }
    await api.stop();
    await explained.close();
    return result;
  }
} finally {
  await embedded?.stop();
  await rm(dataDir, { recursive: true, force: true });
}
if (failures > 0) {
  console.error(`${failures} requests are too slow or scan the jobs`);
  process.exitCode = 1;
}

function connect(): Database {
  return new Database({ url, poolMax: 8, logger, statementTimeoutMs: 1_200_000 });
}

function scansJobs(plan: string): boolean {
  return /"Node Type": "Seq Scan",(?:(?!"Node Type")[\s\S])*?"Relation Name": "jobs"/.test(plan);
}

/** Every new connection passes on what auto_explain says. */
function collectNotices(): void {
  const original = pg.Client.prototype.connect as (...args: unknown[]) => unknown;
  pg.Client.prototype.connect = function connectWithNotices(this: pg.Client, ...args: unknown[]) {
    this.on('notice', (notice) => plans.push(notice.message ?? ''));
    return original.apply(this, args);
  } as typeof pg.Client.prototype.connect;
}
