// `npm run bench:cost -- postgres://…`: what one job costs the database, apart from time: bytes of write-ahead log, rows
// and index entries, over its whole life. These figures do not depend on the machine or its load; npm run simulate
// computes with them. Creates a tenant in the database that is named, and deletes it.
import { randomBytes } from 'node:crypto';
import { Database } from '../../server/database/database.ts';
import { quoteSchema, type Schema } from '../../server/database/identifiers.ts';
import { migrateControl } from '../../server/database/migrations/migrate.ts';
import { sealEvents } from '../../server/events/seals/seal.ts';
import { claimJobs } from '../../server/jobs/claim/claim.ts';
import { enqueue } from '../../server/jobs/enqueue/enqueue.ts';
import { finishAttempts } from '../../server/jobs/finish/finish.ts';
import { createLogger } from '../../server/kernel/logger.ts';
import { rollUpOnce } from '../../server/stats/roll-up.ts';
import { createTenant } from '../../server/tenants/create-tenant.ts';
import { deleteTenant, requestTenantDeletion } from '../../server/tenants/delete-tenant.ts';

const [url] = process.argv.slice(2);
if (url === undefined) throw new Error('say which database: npm run bench:cost -- postgres://…');
const db = new Database({ url, poolMax: 2, logger: createLogger('error') });
const jobs = 4000;

await migrateControl(db);
await db.query('create extension if not exists pgstattuple').catch(() => {});
for (const [name, batch, lanes] of [
  ['batches of 200', 200, 0],
  ['batches of 200, 1,000 lanes', 200, 1000],
  ['one at a time', 1, 0],
] as const) {
  const slug = `cost_${randomBytes(4).toString('hex')}`;
  const { tenant } = await createTenant(db, { slug });
  await measure(name, quoteSchema(tenant.schemaName), batch, lanes);
  const { confirm } = await requestTenantDeletion(db, slug);
  await deleteTenant(db, slug, { confirm, force: true });
}
await db.close();

async function measure(name: string, schema: Schema, batch: number, lanes: number): Promise<void> {
  const count = batch === 1 ? jobs / 10 : jobs;
  const bytes: Record<string, number> = {};
  const step = async (label: string, work: () => Promise<void>) => {
    const before = await walBytes();
    await work();
    bytes[label] = Math.round(((await walBytes()) - before) / count);
  };
  await step('enqueue', async () => {
    for (let i = 0; i < count; i += batch) {
      const given = Array.from({ length: batch }, (_, n) => ({
        type: 'cost.none',
        payload: { number: i + n, text: 'x'.repeat(60) },
        ...(lanes > 0 && { targetId: `lane-${(i + n) % lanes}` }),
      }));
      await enqueue(db, schema, given, 'bench');
    }
  });
  await step('claim and finish', async () => {
    for (;;) {
      const { leaseId, jobs: claimed } = await claimJobs(db, schema, {
        owner: 'bench',
        limit: batch,
        leaseSeconds: 60,
      });
      if (claimed.length === 0) return;
      const items = claimed.map(({ id, targetId }) => {
        return { jobId: id, leaseId, targetId, outcome: { kind: 'complete' as const, result: null } };
      });
      await finishAttempts(db, schema, items, { actor: 'worker:bench', endedLeases: [leaseId] });
    }
  });
  await step('statistics and seals', async () => {
    while (!(await rollUpOnce(db, schema)).complete);
    while (!(await sealEvents(db, schema)).complete);
  });
  const total = Object.values(bytes).reduce((sum, value) => sum + value, 0);
  console.log(
    JSON.stringify({ name, jobs: count, walBytesPerJob: { ...bytes, total }, ...(await rows(schema, count)) }),
  );
}

async function walBytes(): Promise<number> {
  const [row] = await db.query<{ bytes: number }>(`select (pg_current_wal_insert_lsn() - '0/0')::float8 as bytes`);
  return row?.bytes ?? 0;
}

async function rows(schema: Schema, count: number): Promise<object> {
  await db.query('select pg_stat_force_next_flush()');
  const name = schema.slice(1, -1);
  const [tables] = await db.query<Record<string, number>>(
    `select sum(n_tup_ins)::int as inserted, sum(n_tup_upd)::int as updated, sum(n_tup_hot_upd)::int as hot,
            sum(pg_total_relation_size(relid))::float8 as bytes from pg_stat_user_tables where schemaname = $1`,
    [name],
  );
  const [indexes] = await db
    .query<{ entries: number }>(
      `select sum((select tuple_count + dead_tuple_count from pgstattuple(i.indexrelid::regclass)))::float8 as entries
         from pg_stat_user_indexes i
         join pg_class c on c.oid = i.indexrelid and c.relam = (select oid from pg_am where amname = 'btree')
        where schemaname = $1`,
      [name],
    )
    .catch((error: Error) => {
      console.error(`index entries are not counted: ${error.message}`);
      return [{ entries: Number.NaN }];
    });
  const per = (value = 0) => Math.round((10 * value) / count) / 10;
  const { inserted, updated, hot, bytes } = tables ?? {};
  const stored = { inserted: per(inserted), updated: per(updated), hotUpdated: per(hot), bytesStored: per(bytes) };
  return { rowsPerJob: stored, indexEntriesPerJob: per(indexes?.entries) };
}
