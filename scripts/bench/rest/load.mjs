// Keep-alive callers over HTTP, and two servers measured by turns: a block of requests to one, then to the other, in
// changing order. Each block is compared with the one beside it, so what else the machine does affects both.
import { readdirSync, readFileSync } from 'node:fs';
import { performance } from 'node:perf_hooks';
import { setTimeout as sleep } from 'node:timers/promises';
import pg from 'pg';
import { Pool } from 'undici';

/** Sends requests until the time is over or there were `count`: each caller the next one when the last was answered. */
async function block({ pool, request, callers, ms = Number.POSITIVE_INFINITY, count = Number.POSITIVE_INFINITY }) {
  const latencies = [];
  const start = performance.now();
  const end = start + ms;
  let n = 0;
  const caller = async () => {
    while (n < count && performance.now() < end) {
      const sentAt = performance.now();
      const { statusCode, body } = await pool.request(request(n++));
      const text = await body.text();
      if (statusCode >= 300) throw new Error(`answered ${statusCode}: ${text.slice(0, 300)}`);
      latencies.push(performance.now() - sentAt);
    }
  };
  await Promise.all(Array.from({ length: callers }, caller));
  return { perSecond: (latencies.length * 1000) / (performance.now() - start), latencies };
}

/**
 * `ours` and `bare` are { url, pid, request(n) }. Returns medians over the rounds, and the medians of the ratios of
 * neighbouring blocks. CPU is that of the server's process and of Postgres, per request.
 */
export async function byTurns({ ours, bare }, { callers, rounds, ms, postmaster }) {
  const sides = [ours, bare].map((side) => ({
    ...side,
    pool: new Pool(side.url, { connections: callers, pipelining: 1 }),
    blocks: [],
  }));
  const run = async (side) => {
    const before = { server: cpuMs(side.pid), postgres: postgresCpuMs(postmaster) };
    const result = await block({ pool: side.pool, request: side.request, callers, ms });
    // What a request leaves to be done, such as running the job, belongs to its cost.
    await sleep(50);
    const count = result.latencies.length;
    result.cpuMs = (cpuMs(side.pid) - before.server) / count;
    result.postgresCpuMs = (postgresCpuMs(postmaster) - before.postgres) / count;
    return result;
  };
  for (const side of sides) await warmUp(side);
  for (let n = 0; n < rounds; n++) {
    for (const side of n % 2 === 0 ? sides : sides.toReversed()) side.blocks.push(await run(side));
  }
  await Promise.all(sides.map((side) => side.pool.close()));
  const [own, plain] = sides.map(({ blocks }) => blocks);
  const ratio = (read) => median(own.map((one, n) => read(one) / read(plain[n])));
  return {
    ours: summary(own),
    bare: summary(plain),
    ratio: round(ratio((one) => one.perSecond)),
    p50Ratio: round(ratio((one) => quantile(one.latencies, 0.5))),
  };
}

// Until then the code is interpreted.
const warmUpRequests = 3000;
const warmUpMs = 4000;

async function warmUp({ url, request }) {
  const pool = new Pool(url, { connections: 50, pipelining: 1 });
  await block({ pool, request, callers: 50, ms: warmUpMs, count: warmUpRequests });
  await pool.close();
}

function summary(blocks) {
  const of = (read) => median(blocks.map(read));
  return {
    perSecond: Math.round(of((one) => one.perSecond)),
    p50: round(of((one) => quantile(one.latencies, 0.5))),
    p99: round(of((one) => quantile(one.latencies, 0.99))),
    cpuMs: round(of((one) => one.cpuMs)),
    postgresCpuMs: round(of((one) => one.postgresCpuMs)),
  };
}

const tickMs = 10;

/** User and system time of a process. NaN where the system has no /proc. */
export function cpuMs(pid) {
  return (statOf(pid)?.cpu ?? Number.NaN) * tickMs;
}

/** Of all processes of the server, with those that have ended. */
export function postgresCpuMs(postmaster) {
  const own = statOf(postmaster);
  if (own === undefined) return Number.NaN;
  const pids = readdirSync('/proc').filter((name) => /^\d+$/.test(name));
  const children = pids.map(statOf).filter((stat) => stat?.parent === postmaster);
  return children.reduce((sum, stat) => sum + stat.cpu, own.cpu + own.cpuOfEnded) * tickMs;
}

/** The process id of the server; undefined if it runs on another machine. */
export async function postmasterOf(databaseUrl) {
  const client = new pg.Client(databaseUrl);
  await client.connect();
  const { rows } = await client.query('select pg_backend_pid() as pid');
  const postmaster = statOf(rows[0].pid)?.parent;
  await client.end();
  return postmaster;
}

function statOf(pid) {
  try {
    const text = readFileSync(`/proc/${pid}/stat`, 'utf8');
    // The name, in parentheses, may contain spaces.
    const fields = text.slice(text.lastIndexOf(')') + 2).split(' ');
    const [parent, user, system, endedUser, endedSystem] = [1, 11, 12, 13, 14].map((n) => Number(fields[n]));
    return { parent, cpu: user + system, cpuOfEnded: endedUser + endedSystem };
  } catch {
    return undefined;
  }
}

export function quantile(values, q) {
  const sorted = values.toSorted((a, b) => a - b);
  return sorted[Math.max(0, Math.ceil(q * sorted.length) - 1)] ?? Number.NaN;
}

export function median(values) {
  const sorted = values.toSorted((a, b) => a - b);
  const middle = Math.floor(sorted.length / 2);
  return sorted.length % 2 === 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

export function round(value) {
  return Math.round(value * 100) / 100;
}
