// W8: enqueues and reads over HTTP, beside bare Express routes. W9: from an enqueue over HTTP to the start of its handler.
// W12: remote jobs through the TypeScript worker. The daemon, the bare routes and the callers are processes of their own.
import { fork } from 'node:child_process';
import { performance } from 'node:perf_hooks';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import pg from 'pg';
import { Pool } from 'undici';
import { byTurns, cpuMs, median, postgresCpuMs, postmasterOf, quantile, round } from './load.mjs';
import { emptyDatabase, startBareRoutes, startDaemon } from './servers.mjs';

const pathOf = (name) => fileURLToPath(new URL(name, import.meta.url));
const handlers = { HANDLERS: pathOf('./handlers.mjs') };
const later = '2100-01-01T00:00:00Z';

// Each is a request to the daemon and the request to the bare routes that it is compared with.
const requests = {
  now: { callers: [1, 10, 100], job: (n) => ({ type: 'noop', payload: { n } }) },
  later: { callers: [1, 10, 100], job: (n) => ({ type: 'noop', payload: { n }, run_at: later }) },
  lane: { callers: [10], job: (n) => ({ type: 'noop', payload: { n }, target_id: `lane-${n % 100}` }) },
  batch: { callers: [4], size: 100, job: (n) => ({ type: 'noop', payload: { n }, run_at: later }) },
  read: { callers: [1, 10] },
};

export const W8 = {
  title:
    'single enqueues per second over HTTP, relative to a bare Express route that inserts one row (now, 10 callers)',
  better: 'higher',
  options: { cases: Object.keys(requests), rounds: 5, ms: 700 },
  async run({ url, options }) {
    const postmaster = await postmasterOf(url);
    await emptyDatabase(url);
    const [daemon, bare] = [await startDaemon(url, { env: handlers }), await startBareRoutes(url)];
    try {
      const cases = {};
      for (const name of options.cases) {
        for (const callers of options.callers ?? requests[name].callers) {
          const sides = await sidesOf(name, daemon, bare);
          const result = await byTurns(sides, { ...options, callers, postmaster });
          if (requests[name].size !== undefined) result.jobsPerSecond = result.ours.perSecond * requests[name].size;
          cases[`${name} ${callers}`] = result;
        }
      }
      return { value: cases['now 10']?.ratio ?? Number.NaN, cases };
    } finally {
      await Promise.all([daemon.stop(), bare.stop()]);
    }
  },
};

async function sidesOf(name, daemon, bare) {
  const { job, size } = requests[name];
  if (name === 'read') return readsOf(daemon, bare);
  const jobsOf = (n) => (size === undefined ? job(n) : { jobs: Array.from({ length: size }, () => job(n)) });
  const ours = (n) => post(size === undefined ? '/api/jobs' : '/api/jobs/batch', jobsOf(n), daemon.key);
  return { ours: { ...daemon, request: ours }, bare: { ...bare, request: (n) => post('/rows', job(n)) } };
}

// Callers that read at the same time read different jobs.
const readJobs = 100;

async function readsOf(daemon, bare) {
  const [ownIds, bareIds] = [[], []];
  for (let n = 0; n < readJobs; n++) {
    const job = requests.later.job(n);
    ownIds.push(await created(daemon.url, post('/api/jobs', job, daemon.key)));
    bareIds.push(await created(bare.url, post('/rows', job)));
  }
  const headers = { authorization: `Bearer ${daemon.key}` };
  return {
    ours: { ...daemon, request: (n) => ({ method: 'GET', path: `/api/jobs/${ownIds[n % readJobs]}`, headers }) },
    bare: { ...bare, request: (n) => ({ method: 'GET', path: `/rows/${bareIds[n % readJobs]}` }) },
  };
}

async function created(url, { method, path, headers, body }) {
  const response = await fetch(url + path, { method, headers, body });
  return (await response.json()).id;
}

function post(path, body, key) {
  const headers = { 'content-type': 'application/json', ...(key !== undefined && { authorization: `Bearer ${key}` }) };
  return { method: 'POST', path, headers, body: JSON.stringify(body) };
}

/** Fifty jobs a second into a daemon with free slots; the time at the handler is that of the machine's common clock. */
export const W9 = {
  title: 'from the request that enqueues to the start of the handler, over HTTP, idle worker: p50 ms',
  better: 'lower',
  options: { seconds: 10, perSecond: 50 },
  async run({ url, options }) {
    await emptyDatabase(url);
    const [daemon, bare] = [await startDaemon(url, { env: handlers }), await startBareRoutes(url)];
    try {
      const sides = await sidesOf('now', daemon, bare);
      const pools = Object.fromEntries(['ours', 'bare'].map((side) => [side, new Pool(sides[side].url)]));
      const count = options.seconds * options.perSecond;
      const sentAt = new Map();
      const bareMs = [];
      const sending = [];
      const start = performance.now();
      for (let n = 0; n < count; n++) {
        const wait = start + (n * 1000) / options.perSecond - performance.now();
        if (wait > 0) await sleep(wait);
        const at = microseconds();
        sending.push(
          send(pools.ours, sides.ours.request(n)).then(({ id }) => sentAt.set(id, at)),
          send(pools.bare, sides.bare.request(n)).then(() => bareMs.push((microseconds() - at) / 1000)),
        );
      }
      await Promise.all(sending);
      const delays = await readDelays(url, daemon.schema, sentAt);
      const at = (q) => round(quantile(delays, q));
      return {
        value: at(0.5),
        p95: at(0.95),
        p99: at(0.99),
        started: delays.length,
        bareAnswerP50: round(median(bareMs)),
      };
    } finally {
      await Promise.all([daemon.stop(), bare.stop()]);
    }
  },
};

async function send(pool, request) {
  const { body } = await pool.request(request);
  return body.json();
}

async function readDelays(url, schema, sentAt) {
  const client = new pg.Client(url);
  await client.connect();
  let rows = [];
  for (let tries = 0; rows.length < sentAt.size && tries < 40; tries++) {
    await sleep(100);
    const text = `select id, (result->>'startedAt')::float8 as "startedAt" from ${schema}.jobs where status = 'SUCCESS'`;
    ({ rows } = await client.query(text));
  }
  await client.end();
  return rows.map(({ id, startedAt }) => (startedAt - sentAt.get(id)) / 1000);
}

function microseconds() {
  return Number(process.hrtime.bigint() / 1000n);
}

/** One worker process with `slots` slots, against a daemon that has no handler for the type. */
export const W12 = {
  title: 'remote jobs per second through the TypeScript worker',
  better: 'higher',
  options: { slots: 10, seconds: 6, jobs: 6000, warmUpJobs: 500 },
  async run({ url, options }) {
    const postmaster = await postmasterOf(url);
    await emptyDatabase(url);
    const daemon = await startDaemon(url, { env: handlers, settings: { remote_job_types: ['remote.noop'] } });
    try {
      const pool = new Pool(daemon.url);
      for (let n = 0; n < options.jobs; n += 1000) {
        const jobs = Array.from({ length: 1000 }, (_, i) => ({ type: 'remote.noop', payload: { i }, queue: 'bench' }));
        await send(pool, post('/api/jobs/batch', { jobs }, daemon.key));
      }
      await pool.close();
      const worker = fork(pathOf('./remote-worker-process.mjs'), {
        env: { ...process.env, DAEMON_URL: daemon.url, DAEMON_KEY: daemon.key, SLOTS: String(options.slots) },
      });
      await nextMessage(worker);
      const read = async () => {
        worker.send('count');
        const { done } = await nextMessage(worker);
        const [client, server, database] = [cpuMs(worker.pid), cpuMs(daemon.pid), postgresCpuMs(postmaster)];
        return { at: performance.now(), done, client, server, database };
      };
      let before = await read();
      while (before.done < options.warmUpJobs) {
        await sleep(100);
        before = await read();
      }
      await sleep(options.seconds * 1000);
      const after = await read();
      worker.kill('SIGKILL');
      const count = after.done - before.done;
      const each = (name) => round((after[name] - before[name]) / count);
      return {
        value: round((count * 1000) / (after.at - before.at)),
        workerCpuMs: each('client'),
        daemonCpuMs: each('server'),
        postgresCpuMs: each('database'),
      };
    } finally {
      await daemon.stop();
    }
  },
};

function nextMessage(child) {
  return new Promise((resolve, reject) => {
    child.once('message', resolve);
    child.once('exit', (code) => reject(new Error(`the worker exited with ${code}`)));
  });
}
