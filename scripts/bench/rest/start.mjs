// `npm run bench -- start`: from the start of a daemon's process to the start of the first handler, on a migrated database
// where a job waits; then the memory of the daemon once it is idle.
import { readFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import pg from 'pg';
import { cpuMs, median, round } from './load.mjs';
import { emptyDatabase, startDaemon } from './servers.mjs';

const env = { HANDLERS: fileURLToPath(new URL('./handlers.mjs', import.meta.url)) };
const starts = 5;
const idleMs = 10_000;

export async function measureStart(databaseUrl) {
  await emptyDatabase(databaseUrl);
  const client = new pg.Client(databaseUrl);
  await client.connect();
  const first = await startDaemon(databaseUrl, { env });
  await first.stop();
  const runs = [];
  for (let n = 0; n < starts; n++) runs.push(await startOnce(databaseUrl, client, first.schema));
  await client.end();
  const of = (name) => round(median(runs.map((run) => run[name])));
  const line = {
    workload: 'start',
    'first handler after ms': of('firstHandlerMs'),
    'CPU ms until then': of('cpuMs'),
    'idle RSS MB': of('rssMb'),
    'idle RSS after one request MB': of('rssAfterRequestMb'),
  };
  process.stdout.write(`${JSON.stringify(line)}\n`);
}

async function startOnce(databaseUrl, client, schema) {
  const { rows } = await client.query(`select ${schema}.enqueue('noop') as id`);
  const result = async () => {
    const text = `select (result->>'startedAt')::float8 as at from ${schema}.jobs where id = $1 and status = 'SUCCESS'`;
    return (await client.query(text, [rows[0].id])).rows[0]?.at;
  };
  const spawnedAt = Number(process.hrtime.bigint() / 1000n);
  const daemon = await startDaemon(databaseUrl, { env, isReady: async () => (await result()) !== undefined });
  const used = cpuMs(daemon.pid);
  const startedAt = await result();
  await sleep(idleMs);
  const rssMb = residentMb(daemon.pid);
  await fetch(`${daemon.url}/livez`);
  await sleep(idleMs);
  const rssAfterRequestMb = residentMb(daemon.pid);
  await daemon.stop();
  return { firstHandlerMs: (startedAt - spawnedAt) / 1000, cpuMs: used, rssMb, rssAfterRequestMb };
}

/** NaN where the system has no /proc. */
function residentMb(pid) {
  try {
    return Number(/^VmRSS:\s+(\d+) kB/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1]) / 1024;
  } catch {
    return Number.NaN;
  }
}
