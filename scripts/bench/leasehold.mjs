// Leasehold as an adapter of the comparison harness: one file, the same seven methods as its peers.
// Runs the built daemon (dist/) at its defaults: durable, events on, history kept.
import { randomBytes } from 'node:crypto';
import { Daemon } from '../../dist/daemon/daemon.js';
import { Database } from '../../dist/database/database.js';
import { migrateControl } from '../../dist/database/migrations/migrate.js';
import { enqueue } from '../../dist/jobs/enqueue/enqueue.js';
import { EnqueueGroupCommit } from '../../dist/jobs/enqueue/group-commit.js';
import { loadConfig } from '../../dist/kernel/config.js';
import { createLogger } from '../../dist/kernel/logger.js';
import { createTenant } from '../../dist/tenants/provision.js';
import { HandlerRegistry } from '../../dist/worker/handlers/handler-registry.js';

const url = process.env.BENCH_URL ?? `postgres://postgres:x@127.0.0.1:54400/${process.env.BENCH_DB ?? 'postgres'}`;

export const meta = {
  name: 'leasehold',
  version: '0.1.0',
  store: 'pg',
  caps: { ordered: true, blocked: true, schemas: true },
};

/** `default` has no settings: what a user gets. */
export const variants = { default: { env: {} } };

export async function open(variant, { schema = 'bench', shared = {} } = {}) {
  const logger = createLogger(process.env.BENCH_LOG ?? 'silent');
  const connect = () => new Database({ url, poolMax: 10, logger });
  shared.db ??= connect();
  shared.group ??= new EnqueueGroupCommit(shared.db);
  shared.open = (shared.open ?? 0) + 1;
  const { db } = shared;
  let tenant;
  const toJob = (item) => ({ type: 'noop', payload: item, targetId: item.key });
  return {
    // What an operator does, with a connection of its own: the server counts what it did when it ends.
    async reset() {
      const operator = connect();
      if (!shared.migrated) {
        await dropEverything(operator);
        await migrateControl(operator, logger);
        shared.migrated = true;
      }
      tenant = (await createTenant(operator, { slug: schema })).tenant;
      await operator.close();
    },
    enqueueBulk: (items) => enqueue(db, tenant.schema, items.map(toJob), 'bench'),
    enqueueOne: (item) =>
      shared.daemon
        ? shared.daemon.enqueue(tenant, [toJob(item)], 'bench')
        : shared.group.enqueue(tenant.schema, [toJob(item)], 'bench'),
    async startWorker({ concurrency, handler }) {
      shared.daemon ??= await startDaemon(variant, concurrency, handler, logger);
      await shared.daemon.registry.refresh();
      return {
        stop: async () => {
          await shared.daemon?.stop(1000);
          shared.daemon = undefined;
        },
      };
    },
    async pending() {
      // In the order of the claim: with figures from before the drain the planner would read the whole table.
      const [row] = await db.query(
        `select (select id from ${tenant.schema}.jobs where status = 'QUEUED' and lane_head and not remote
                  order by priority, created_at, id limit 1) is not null
             or exists (select 1 from ${tenant.schema}.leases where state = 'ACTIVE') as pending`,
      );
      return row.pending;
    },
    // The head of each key fails, as a handler's error would leave it: all behind it wait for a person.
    block: (keys) =>
      db.query(
        `update ${tenant.schema}.jobs set status = 'ERROR', finished_at = now(), held_since = now(), error = '{"code":"BLOCKED","message":"blocked"}'
          where target_id = any($1) and lane_head`,
        [keys],
      ),
    async close() {
      shared.open -= 1;
      if (shared.open === 0) await db.close();
    },
  };
}

async function startDaemon(variant, concurrency, handler, logger) {
  const env = {
    PORT: '0',
    LOG_LEVEL: process.env.BENCH_LOG ?? 'silent',
    ADMIN_API_KEY: randomBytes(24).toString('hex'),
    ...variant.env,
  };
  if (concurrency !== undefined)
    Object.assign(env, { WORKER_CONCURRENCY: String(concurrency), TENANT_CONCURRENCY: String(concurrency) });
  const definition = { type: 'noop', run: ({ payload }) => handler(payload) };
  const handlers = new HandlerRegistry([definition]);
  const daemon = new Daemon({ config: loadConfig(env), databaseUrl: url, logger, handlers, version: 'bench' });
  await daemon.start();
  return daemon;
}

async function dropEverything(db) {
  const rows = await db.query(
    `select nspname from pg_namespace where nspname = 'leasehold' or nspname like 'tenant\\_%'`,
  );
  for (const { nspname } of rows) await db.query(`drop schema "${nspname}" cascade`);
}
