// `npm run bench [-- W1 W4 client start growth …] [--reps=3] [--options=JSON] [--peers=DIR] [--node=PATH] [--against=URL]`
// Runs Leasehold, and with --peers the peers too, on the same Postgres, interleaved, each measurement
// in a fresh process, and prints medians and the ratio to the best peer of the same run.
// With --against the same runs on a second database too (a cluster, or the first one through a pooler), in turns with the first, which
// BENCH_URL names, and prints the ratio of the second to the first.
// DIR is a directory with `adapters/<peer>.mjs` and the peers' packages installed; PATH a Node that they accept.
import { spawn } from 'node:child_process';
import { chmodSync, existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { measureClientCost } from './client-cost.mjs';
import { W13 } from './daemons/daemons.mjs';
import { growth } from './daemons/growth.mjs';
import { W15 } from './daemons/idle-daemons.mjs';
import { W10, W11, W14 } from './durable.mjs';
import { noisy } from './noisy.mjs';
import { W8, W9, W12 } from './rest/rest.mjs';
import { measureStart } from './rest/start.mjs';
import { W7, workloads } from './workloads.mjs';

const here = fileURLToPath(new URL('.', import.meta.url));
const all = { ...workloads, W7, W8, W9, W10, W11, W12, W13, W14, W15, noisy, growth };
const args = process.argv.slice(2);
const flag = (name, fallback) => args.find((a) => a.startsWith(`--${name}=`))?.slice(name.length + 3) ?? fallback;
const names = args.filter((a) => !a.startsWith('--'));
// Growth takes 20 minutes: only if it is named, and once.
const chosen =
  names.length > 0
    ? names.filter((name) => !['client', 'start'].includes(name))
    : Object.keys(all).filter((name) => name !== 'growth');
const reps = Number(flag('reps', chosen.includes('growth') ? '1' : '3'));
const peersDir = flag('peers') === undefined ? undefined : resolve(flag('peers'));
const node = flag('node', process.execPath);
const options = flag('options', '{}');
const against = flag('against');
const ofSecond = 'leasehold, second database';

// The best settings found for each peer; see docs/performance.md.
const peers = {
  W1: [
    ['graphile-worker', 'best-c300'],
    ['pg-boss', 'best'],
  ],
  W2: [
    ['graphile-worker', 'default'],
    ['pg-boss', 'default'],
  ],
  W3: [
    ['graphile-worker', 'default'],
    ['pg-boss', 'notify'],
  ],
  W4: [
    ['graphile-worker', 'best'],
    ['pg-boss', 'fetchLoop'],
  ],
  W5: [
    ['graphile-worker', 'best'],
    ['pg-boss', 'fetchLoop'],
  ],
  W6: [
    ['graphile-worker', 'best'],
    ['pg-boss', 'notify'],
  ],
  W7: [
    ['graphile-worker', 'best-shared'],
    ['pg-boss', 'default-shared'],
  ],
  W10: [['dbos', 'best']],
};

const server = await startPostgres();
process.env.BENCH_URL = server.url;
try {
  if (chosen.length > 0) await runAll();
  if (names.length === 0 || names.includes('client')) await measureClientCost(server.url);
  if (names.length === 0 || names.includes('start')) await measureStart(server.url);
} finally {
  await server.stop();
}

async function runAll() {
  const results = new Map();
  for (let rep = 1; rep <= reps; rep++) {
    for (const name of chosen) {
      for (const plan of plansOf(name)) {
        const result = await measure(plan, name);
        const key = `${name} ${plan.label}`;
        results.set(key, [...(results.get(key) ?? []), result]);
        process.stdout.write(`${rep}/${reps} ${key} ${JSON.stringify(result)}\n`);
      }
    }
  }
  report(results);
}

function plansOf(name) {
  const own = { label: 'leasehold', file: join(here, 'leasehold.mjs'), variant: 'default', options };
  // W5's question is how much the backlog costs: the same run without it stands beside.
  const plans = name === 'W5' ? [{ ...own, label: 'leasehold, no backlog', options: '{"blocked":0}' }, own] : [own];
  // Whether anything grows with the number of tenants shows with many more than peers can bear.
  if (name === 'W7') plans.push({ ...own, label: 'leasehold, 1000 tenants', options: '{"tenants":1000}' });
  if (against !== undefined) plans.push({ ...own, label: ofSecond, url: against });
  if (peersDir === undefined) return plans;
  for (const [peer, variant] of peers[name] ?? []) {
    const file = join(peersDir, 'adapters', `${peer}.mjs`);
    if (existsSync(file)) plans.push({ label: `${peer} ${variant}`, file, variant, options });
  }
  return plans;
}

function measure(plan, name) {
  return new Promise((done) => {
    const child = spawn(node, [join(here, 'measure.mjs'), plan.file, plan.variant, name, plan.options], {
      stdio: ['ignore', 'pipe', 'pipe'],
      env: { ...process.env, ...(plan.url && { BENCH_URL: plan.url }) },
    });
    let output = '';
    let errors = '';
    child.stdout.on('data', (text) => {
      output += text;
    });
    child.stderr.on('data', (text) => {
      errors += text;
    });
    const timeoutMs = { W7: 1_200_000, W13: 1_200_000, W15: 1_200_000, growth: 7_200_000 }[name] ?? 240_000;
    const timer = setTimeout(() => child.kill('SIGKILL'), timeoutMs);
    child.on('close', () => {
      clearTimeout(timer);
      try {
        done(JSON.parse(output.trim().split('\n').at(-1)));
      } catch {
        done({ error: (errors || output).slice(-400) });
      }
    });
  });
}

function report(results) {
  const lines = [
    '',
    `| workload | system | median | min | max | ratio to the ${against ? 'first database' : 'best peer'} |`,
    '|---|---|---|---|---|---|',
  ];
  for (const name of chosen) {
    const rows = [...results]
      .filter(([key]) => key.startsWith(`${name} `))
      .map(([key, runs]) => ({
        label: key.slice(name.length + 1),
        values: runs.map((r) => r.value).filter(Number.isFinite),
      }));
    const first = rows.find(({ label }) => label === 'leasehold');
    const best = against ? median(first?.values ?? []) : bestPeer(rows, all[name].better);
    for (const { label, values } of rows) {
      const middle = median(values);
      const isCompared = against ? label === ofSecond : label.startsWith('leasehold');
      const ratio = best === undefined || !isCompared ? '' : (middle / best).toFixed(2);
      lines.push(`| ${name} | ${label} | ${middle} | ${Math.min(...values)} | ${Math.max(...values)} | ${ratio} |`);
    }
    lines.push(`| | *${all[name].title}; ${all[name].better} is better* | | | | |`);
  }
  process.stdout.write(`${lines.join('\n')}\n`);
  for (const name of chosen) reportCases(name, results.get(`${name} leasehold`) ?? []);
}

/** The cases of W8: requests per second of the daemon and of the bare routes, medians over the repetitions. */
function reportCases(name, runs) {
  const cases = Object.keys(runs[0]?.cases ?? {});
  if (cases.length === 0) return;
  const lines = [
    '',
    `| ${name}: request and callers | per second | bare route | ratio | p50 ms | bare p50 ms | p50 ratio | CPU ms: daemon, Postgres | bare: Express, Postgres |`,
    '|---|---|---|---|---|---|---|---|---|',
  ];
  for (const key of cases) {
    const of = (read) => median(runs.map((run) => read(run.cases[key])));
    const cpu = (side) => `${of((one) => one[side].cpuMs)}, ${of((one) => one[side].postgresCpuMs)}`;
    const cells = [
      key,
      of((one) => one.ours.perSecond),
      of((one) => one.bare.perSecond),
      of((one) => one.ratio),
      of((one) => one.ours.p50),
      of((one) => one.bare.p50),
      of((one) => one.p50Ratio),
      cpu('ours'),
      cpu('bare'),
    ];
    lines.push(`| ${cells.join(' | ')} |`);
  }
  process.stdout.write(`${lines.join('\n')}\n`);
}

function bestPeer(rows, better) {
  const medians = rows
    .filter((r) => !r.label.startsWith('leasehold') && r.values.length > 0)
    .map((r) => median(r.values));
  if (medians.length === 0) return undefined;
  return better === 'higher' ? Math.max(...medians) : Math.min(...medians);
}

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = Math.floor(sorted.length / 2);
  return sorted.length % 2 === 1
    ? sorted[middle]
    : ((sorted[middle - 1] ?? Number.NaN) + (sorted[middle] ?? Number.NaN)) / 2;
}

/**
 * Durable, as a user's would be; only sized for the machine. The port is the one that peers' adapters use. It is started as `npm start`
 * does, so that root can run it in a clone below a directory that is closed to other users.
 */
async function startPostgres() {
  if (process.env.BENCH_URL !== undefined) return { url: process.env.BENCH_URL, stop: async () => {} };
  const { prepareClusterDirectory } = await import('../../dist/embedded-postgres/cluster-directory.js');
  const { clusterUrl, postmasterPid, spawned, spawnPostmaster, stopPostmaster, waitForAnswer } = await import(
    '../../dist/embedded-postgres/cluster.js'
  );
  const directory = mkdtempSync(join(tmpdir(), 'leasehold-bench-'));
  // Root's Postgres runs as another user, who must get in.
  chmodSync(directory, 0o755);
  const cluster = await prepareClusterDirectory(directory, 'x', () => {});
  const port = 54400;
  const sizes = ['shared_buffers=512MB', 'max_wal_size=4GB', 'max_connections=700'];
  const settings = [...sizes, 'listen_addresses=127.0.0.1', 'unix_socket_directories='];
  const stop = async () => {
    await stopPostmaster(cluster.directory);
    rmSync(directory, { recursive: true, force: true });
  };
  const stopOnSignal = () => void stop().finally(() => process.exit(1));
  process.once('SIGINT', stopOnSignal).once('SIGTERM', stopOnSignal);
  const logFile = join(directory, 'postgres.log');
  await spawned(spawnPostmaster(cluster, { port, settings, logFile }));
  const url = clusterUrl(port, 'x');
  const gone = async () => (await postmasterPid(cluster.directory)) === undefined;
  if ((await waitForAnswer(url, async () => false, 30_000)) !== 'yes' || (await gone())) {
    throw new Error(`Postgres does not answer on port ${port}: ${readFileSync(logFile, 'utf8')}`);
  }
  return { url, stop };
}
