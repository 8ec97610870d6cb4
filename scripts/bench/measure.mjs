// One measurement in one fresh process: node measure.mjs <adapter file> <variant> <workload> <options>.
// Prints one line of JSON.
import { pathToFileURL } from 'node:url';
import pg from 'pg';
import { noisy } from './noisy.mjs';
import { W7, workloads } from './workloads.mjs';

const [file, variant, name, optionText] = process.argv.slice(2);
const adapter = await import(pathToFileURL(file).href);
const settings = adapter.variants[variant];
const own = await ownWorkload();
const ofManyTenants = { W7, noisy }[name];
const workload = own ?? ofManyTenants ?? workloads[name];
const options = { concurrency: settings.concurrency, ...workload.options, ...JSON.parse(optionText ?? '{}') };
const url = process.env.BENCH_URL;

async function ask(text, at = url) {
  const client = new pg.Client(at);
  await client.connect();
  try {
    return (await client.query(text)).rows;
  } finally {
    await client.end();
  }
}

/** The nodes of a cluster, which have the tenants' rows. */
async function nodeUrls() {
  const [{ sharded }] = await ask(`select to_regclass('pg_catalog.pg_dist_node') is not null as sharded`);
  if (!sharded) return [];
  const nodes = await ask('select nodename, nodeport from pg_dist_node where groupid > 0');
  return nodes.map(({ nodename, nodeport }) =>
    Object.assign(new URL(url), { hostname: nodename, port: String(nodeport) }).toString(),
  );
}

const tools = {
  options,
  /** The same calm start for all. */
  calm: async () => {
    for (const at of [url, ...(await nodeUrls())]) {
      await ask('vacuum analyze', at);
      await ask('checkpoint', at);
    }
  },
  /** Without those of autovacuum, which comes when it likes. */
  transactions: async () => {
    const [row] = await ask(`select (xact_commit + xact_rollback)::int
        - (select sum(autovacuum_count + autoanalyze_count)::int from pg_stat_all_tables) as count,
      (select count(*)::int from pg_stat_activity where backend_type = 'client backend'
          and datname = current_database() and pid <> pg_backend_pid()) as connections
      from pg_stat_database where datname = current_database()`);
    return row;
  },
};

const result = await run();
const cpu = process.cpuUsage();
process.stdout.write(
  `${JSON.stringify({ ...result, nodeCpuSeconds: Math.round((cpu.user + cpu.system) / 1e4) / 100 })}\n`,
);
process.exit(0);

async function run() {
  if (own !== undefined) return own.run({ ...tools, url });
  if (ofManyTenants !== undefined) return ofManyTenants.run((where) => adapter.open(settings, where), tools);
  return workload.run(await adapter.open(settings), tools);
}

/** Workloads that no adapter of the seven methods can run. The adapter of a peer may export one under its name. */
async function ownWorkload() {
  if (['W10', 'W11', 'W14'].includes(name)) {
    const { [name]: durable } = await import('./durable.mjs');
    const ofPeer = adapter[name];
    return ofPeer === undefined ? durable : { ...durable, run: (given) => ofPeer({ ...given, settings }) };
  }
  if (name === 'growth') return (await import('./daemons/growth.mjs')).growth;
  if (name === 'W13') return (await import('./daemons/daemons.mjs')).W13;
  if (name === 'W15') return (await import('./daemons/idle-daemons.mjs')).W15;
  if (['W8', 'W9', 'W12'].includes(name)) return (await import('./rest/rest.mjs'))[name];
  return undefined;
}
