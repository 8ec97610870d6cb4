// Leasehold as an adapter of the comparison harness: one file, the same seven methods as its peers.
// Uses the built package as a program that embeds it does, at its defaults: durable, events on, history kept.
import { defineJob } from 'leasehold';
import { createLeasehold } from 'leasehold/server';
import pg from 'pg';

const url = process.env.BENCH_URL ?? `postgres://postgres:x@127.0.0.1:54400/${process.env.BENCH_DB ?? 'postgres'}`;

export const meta = {
  name: 'leasehold',
  version: '0.1.0',
  store: 'pg',
  caps: { ordered: true, blocked: true, schemas: true },
};

/** `default` has no settings: what a user gets. */
export const variants = {
  default: { settings: {} },
  'tenant-roles': { settings: { tenantRoles: true } },
};

const logger = process.env.BENCH_LOG === undefined ? false : console;
// What enqueues before a worker is started, or without one.
const anyNoop = defineJob({ type: 'noop', run: () => {} });

export async function open(variant, { schema = 'bench', shared = {} } = {}) {
  const slug = schema.replace(/^tenant_/, '');
  const tables = `"tenant_${slug}"`;
  shared.reader ??= new pg.Pool({ connectionString: url, max: 2 });
  shared.sender ??= await createLeasehold({ databaseUrl: url, jobs: [anyNoop], logger });
  shared.open = (shared.open ?? 0) + 1;
  const { reader } = shared;
  const toItem = (item) => ({ job: 'noop', payload: item, targetId: item.key });
  return {
    // What an operator does, with a connection of its own: the server counts what it did when it ends.
    async reset() {
      const operator = await createLeasehold({ databaseUrl: url, logger });
      if (!shared.migrated) {
        await dropEverything();
        await operator.migrate();
        shared.migrated = true;
      }
      await operator.tenants.create(slug);
      await operator.stop();
    },
    enqueueBulk: (items) => shared.sender.enqueueMany(slug, items.map(toItem)),
    enqueueOne: (item) => (shared.worker ?? shared.sender).enqueue(slug, 'noop', item, { targetId: item.key }),
    async startWorker({ concurrency, handler }) {
      shared.worker ??= await startWorker(variant, concurrency, handler);
      return {
        stop: async () => {
          await shared.worker?.stop({ graceSeconds: 1 });
          shared.worker = undefined;
        },
      };
    },
    async pending() {
      // In the order of the claim: with figures from before the drain the planner would read the whole table.
      const { rows } = await reader.query(
        `select (select id from ${tables}.jobs where status = 'QUEUED' and lane_head and not remote and not gated
                  order by priority, created_at, id limit 1) is not null
             or exists (select 1 from ${tables}.leases where state = 'ACTIVE') as pending`,
      );
      return rows[0].pending;
    },
    // The head of each key fails, as a handler's error would leave it: all behind it wait for a person.
    block: (keys) =>
      reader.query(
        `update ${tables}.jobs set status = 'ERROR', finished_at = now(), held_since = now(), error = '{"code":"BLOCKED","message":"blocked"}'
          where target_id = any($1) and lane_head`,
        [keys],
      ),
    async close() {
      shared.open -= 1;
      if (shared.open > 0) return;
      await shared.sender.stop();
      await reader.end();
    },
  };
}

async function startWorker(variant, concurrency, handler) {
  const noop = defineJob({ type: 'noop', run: ({ payload }) => handler(payload) });
  const settings = { ...variant.settings };
  if (concurrency !== undefined)
    Object.assign(settings, { workerConcurrency: concurrency, tenantConcurrency: concurrency });
  const worker = await createLeasehold({ databaseUrl: url, jobs: [noop], logger, settings });
  await worker.start();
  return worker;
}

async function dropEverything() {
  const client = new pg.Client(url);
  await client.connect();
  const { rows } = await client.query(
    `select nspname from pg_namespace where nspname = 'leasehold' or nspname like 'tenant\\_%'`,
  );
  for (const { nspname } of rows) await client.query(`drop schema "${nspname}" cascade`);
  await client.end();
}
