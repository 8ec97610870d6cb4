// The longest synchronous step of a daemon for the largest requests that it accepts, in milliseconds of CPU time of its
// main thread: `npx tsx scripts/bench/max-step.ts [repetitions] [part of the name]`. Needs DATABASE_URL, or starts the embedded Postgres
// in DATA_DIR. Linux only: the CPU time of a thread is in /proc. Prints one line per request.
import { randomBytes } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { Worker } from 'node:worker_threads';
import { Daemon } from '../../server/daemon/daemon.ts';
import { Database } from '../../server/database/database.ts';
import { startEmbeddedPostgres } from '../../server/embedded-postgres/start.ts';
import { loadConfig } from '../../server/kernel/config.ts';
import { createLogger } from '../../server/kernel/logger.ts';
import { createTenant } from '../../server/tenants/create-tenant.ts';
import { defineJob } from '../../server/worker/handlers/define-job.ts';
import { HandlerRegistry } from '../../server/worker/handlers/handler-registry.ts';
import { ThreadPool } from '../../server/worker/threads/thread-pool.ts';

const repetitions = Number(process.argv[2] ?? 3);
const only = process.argv[3] ?? '';
const config = loadConfig({ ...process.env, PORT: '0', LOG_LEVEL: 'error', DEMO_TENANT: 'never' });
const logger = createLogger('error');
const embedded =
  config.databaseUrl === '' ? await startEmbeddedPostgres({ dataDir: config.dataDir, logger }) : undefined;
const url = embedded?.url ?? config.databaseUrl;
const threads = new ThreadPool({ maxThreads: 1, memoryMb: config.handlerThreadMemoryMb, logger });
const none = defineJob({ type: 'bench.none', run: ({ payload }) => payload });
const handlers = new HandlerRegistry([none], threads);
const daemon = new Daemon({ config, databaseUrl: url, logger, handlers, version: 'bench' });
await daemon.start();
const db = new Database({ url, poolMax: 2, logger });
const { tenant, key } = await createTenant(db, { slug: `bench_${randomBytes(4).toString('hex')}` });
// The requests are made and their answers read in a thread: only what the daemon does is counted.
const client = new Worker(
  `const { parentPort } = require('node:worker_threads');
   parentPort.on('message', async ({ url, method, key, body }) => {
     try {
       const headers = { authorization: 'Bearer ' + key, 'content-type': 'application/json' };
       const answer = await fetch(url, { method, headers, ...(body !== undefined && { body }) });
       const text = await answer.text();
       parentPort.postMessage({ status: answer.status, text });
     } catch (error) { parentPort.postMessage({ status: 0, text: String(error) }); }
   });`,
  { eval: true },
);

interface Sent {
  status: number;
  text: string;
}

/** CPU time of this thread in milliseconds; the scheduler counts it in ticks of a few. */
const cpuMs = () => Number(readFileSync('/proc/thread-self/schedstat', 'latin1').split(' ')[0]) / 1e6;

let maxStepMs = 0;
/** The count under way: a turn that was scheduled by an earlier one does not belong to it. */
let counting = 0;
let counts = 0;
function countTurns(): void {
  counts += 1;
  const mine = counts;
  counting = mine;
  let before = cpuMs();
  const turn = () => {
    if (counting !== mine) return;
    const now = cpuMs();
    if (now - before > maxStepMs) maxStepMs = now - before;
    before = now;
    setImmediate(turn);
  };
  setImmediate(turn);
}

async function send(method: string, path: string, body?: unknown): Promise<Sent & { stepMs: number }> {
  const text = body === undefined || typeof body === 'string' ? body : JSON.stringify(body);
  const answered = new Promise<Sent>((resolve) => client.once('message', resolve));
  client.postMessage({ url: `${daemon.url}${path}`, method, key: key.text, body: text });
  maxStepMs = 0;
  countTurns();
  const answer = await answered;
  // What follows from the request: the job is claimed, run and finished.
  await new Promise((resolve) => setTimeout(resolve, 300));
  counting = 0;
  return { ...answer, stepMs: maxStepMs };
}

async function measure(name: string, method: string, path: string, body?: () => unknown): Promise<string> {
  if (!name.includes(only)) return '{"jobs":[]}';
  const found: number[] = [];
  let answer: Sent | undefined;
  for (let n = 0; n < repetitions; n++) {
    const sent = await send(method, path, body?.());
    answer = sent;
    found.push(sent.stepMs);
  }
  const bytes = answer?.text.length ?? 0;
  const worst = Math.max(...found).toFixed(0);
  const median = [...found].sort((a, b) => a - b)[found.length >> 1]?.toFixed(0);
  console.log(
    `${name.padEnd(58)} status ${answer?.status}  answer ${String(bytes).padStart(8)}  worst ${worst.padStart(4)} ms  median ${median?.padStart(4)} ms`,
  );
  if (answer !== undefined && answer.status >= 400) console.log(`  ${answer.text.slice(0, 300)}`);
  return answer?.text ?? '';
}

const megabyte = 1_000_000;
const unsorted = (count: number) =>
  Object.fromEntries(
    Array.from({ length: count }, (_, n) => [`${(count - n).toString(36)}${'k'.repeat(24)}`, `v${n}`]),
  );
const nested = (depth: number): unknown => {
  let value: unknown = 'x'.repeat(megabyte - 1000);
  for (let n = 0; n < depth; n++) value = { [`a${n}`]: value };
  return value;
};
const payloads: Record<string, () => unknown> = {
  'one string of 1 MB': () => ({ text: 'x'.repeat(megabyte - 500) }),
  'one string of 1 MB, not Latin': () => ({ text: '漢'.repeat(megabyte / 3 - 500) }),
  'one string of escapes': () => ({ text: '\n"'.repeat(megabyte / 4 - 500) }),
  '19,000 unsorted fields': () => unsorted(19_000),
  '49,000 numbers': () => ({ list: Array.from({ length: 49_000 }, (_, n) => n * 1.000001) }),
  '90 levels around 1 MB': () => nested(90),
  '19,000 fields in objects of one': () => ({
    list: Array.from({ length: 18_900 }, (_, n) => ({ [`z${n.toString(36)}`]: n })),
  }),
};
const job = (payload: unknown) => ({ type: 'bench.none', payload });

for (const [name, make] of Object.entries(payloads)) {
  await measure(`POST job: ${name}`, 'POST', '/api/targets/t/jobs', () => job(make()));
}
const keyed = () => ({ ...job(payloads['19,000 unsorted fields']?.()), client_request_id: 'same' });
await measure('POST job: 19,000 unsorted fields, replayed by its key', 'POST', '/api/targets/keyed/jobs', keyed);
for (const [name, make] of Object.entries(payloads)) {
  const jobs = () => {
    const one = make();
    const count = Math.max(1, Math.floor(8_300_000 / (Buffer.byteLength(JSON.stringify(one)) + 100)));
    return { jobs: Array.from({ length: Math.min(count, 1000) }, (_, n) => ({ target_id: `b${n}`, ...job(one) })) };
  };
  await measure(`POST batch of 8 MB: ${name}`, 'POST', '/api/jobs/batch', jobs);
}
const small = () => ({
  jobs: Array.from({ length: 1000 }, (_, n) => ({ target_id: `s${n}`, ...job({ text: 'x'.repeat(8000) }) })),
});
await measure('POST batch of 1,000 jobs of 8 kB', 'POST', '/api/jobs/batch', small);
await measure('POST batch of 1,000 jobs of 8 kB, atomic', 'POST', '/api/jobs/batch', () => ({
  ...small(),
  atomic: true,
}));
await measure('GET jobs, 200', 'GET', '/api/jobs?limit=200');
await measure('GET jobs with documents', 'GET', '/api/targets/t/jobs?limit=200&include=payload,result');
const page = await measure('GET remote jobs, 200', 'GET', '/api/scheduler/jobs?limit=200');
const [first] = (JSON.parse(page) as { jobs: { job_id: string }[] }).jobs;
await measure('GET one job', 'GET', `/api/scheduler/jobs/${first?.job_id}`);
await measure('GET lanes', 'GET', '/api/lanes?limit=100');
await measure('GET attention', 'GET', '/api/attention');
await measure('GET events, 1000', 'GET', '/api/events?limit=1000');
await measure('GET metrics', 'GET', '/metrics');
for (const [name, make] of Object.entries(payloads)) {
  let n = 0;
  await measure(`POST remote job: ${name}`, 'POST', '/api/scheduler/jobs/submit', () => {
    n += 1;
    return { addon_id: `queue-${name.length}`, job_type: 'bench', payload: make(), target_id: `r${n}${name.length}` };
  });
  await measure(`claim: ${name}`, 'POST', '/api/scheduler/jobs/claim', () => ({
    addon_id: `queue-${name.length}`,
    worker_id: 'w',
    limit: 100,
  }));
}
let count = 0;
await measure('POST schedule with 900 kB', 'POST', '/api/schedules', () => ({
  name: `large ${count++}`,
  cron: '0 8 * * *',
  job: { target_id: 's', ...job({ text: 'x'.repeat(900_000) }) },
}));
for (let n = 0; n < 200 && 'GET schedules, 200'.includes(only); n++) {
  await send('POST', '/api/schedules', {
    name: `s${n}`,
    cron: '0 8 29 2 *',
    timezone: 'Europe/Berlin',
    job: { target_id: 's', ...job({ n }) },
  });
}
await measure('GET schedules, 200', 'GET', '/api/schedules?limit=200');
await measure('POST preview of a rare cron', 'POST', '/api/schedules/preview', () => ({
  cron: '0 0 29 2 MON',
  timezone: 'Europe/Berlin',
}));
await measure('GET openapi.json', 'GET', '/openapi.json');

await client.terminate();
await db.query(`drop schema ${tenant.schema} cascade`).catch(() => {});
await db.close();
await daemon.stop(0);
await embedded?.stop();
process.exit(0);
