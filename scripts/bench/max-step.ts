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
const fail = defineJob({ type: 'bench.fail', run: () => Promise.reject(new Error('as requested')) });
const handlers = new HandlerRegistry([none, fail], threads);
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

async function send(method: string, path: string, body?: unknown, thenMs = 300): Promise<Sent & { stepMs: number }> {
  const text = body === undefined || typeof body === 'string' ? body : JSON.stringify(body);
  const answered = new Promise<Sent>((resolve) => client.once('message', resolve));
  client.postMessage({ url: `${daemon.url}${path}`, method, key: key.text, body: text });
  maxStepMs = 0;
  countTurns();
  const answer = await answered;
  // What follows from the request: the job is claimed, run and finished.
  await new Promise((resolve) => setTimeout(resolve, thenMs));
  counting = 0;
  return { ...answer, stepMs: maxStepMs };
}

async function measure(name: string, method: string, path: string, body?: () => unknown): Promise<string> {
  return measureEach(name, async () => ({ method, path, body: body?.() }));
}

interface Prepared {
  method?: string;
  path: string;
  body?: unknown;
}

/** What comes before each request, such as the claim of a job, is not counted. */
async function measureEach(name: string, prepare: () => Promise<Prepared>): Promise<string> {
  if (!name.includes(only)) return '{"jobs":[]}';
  const found: number[] = [];
  let answer: Sent | undefined;
  for (let n = 0; n < repetitions; n++) {
    const { method = 'POST', path, body } = await prepare();
    const sent = await send(method, path, body);
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

// Jobs of a remote worker: what it stores, asks and reports.
interface Held {
  jobId: string;
  leaseId: string;
}
async function call<T>(method: string, path: string, body?: unknown): Promise<T> {
  const { status, text } = await send(method, path, body, 0);
  if (status >= 400) throw new Error(`${method} ${path}: ${status} ${text.slice(0, 300)}`);
  return JSON.parse(text) as T;
}
let held = 0;
async function hold(): Promise<Held> {
  held += 1;
  const queue = `held-${held}`;
  const { job } = await call<{ job: { job_id: string } }>('POST', '/api/scheduler/jobs/submit', {
    addon_id: queue,
    job_type: 'bench',
  });
  await call('POST', '/api/scheduler/jobs/claim', { addon_id: queue, worker_id: 'w' });
  const { lease } = await call<{ lease: { lease_id: string } }>('POST', '/api/scheduler/lease/request', {
    job_id: job.job_id,
    ttl_sec: 600,
  });
  return { jobId: job.job_id, leaseId: lease.lease_id };
}
const leaseCall = ({ jobId, leaseId }: Held, name: string, body: object): Prepared => ({
  path: `/api/scheduler/lease/${leaseId}/${name}`,
  body: { job_id: jobId, worker_id: 'w', ...body },
});
const sendCall = (of: Held, name: string, body: object) => {
  const { path, body: whole } = leaseCall(of, name, body);
  return call('POST', path, whole);
};
const isSelected = (...names: string[]) => names.some((name) => name.includes(only));

for (const [name, make] of Object.entries(payloads)) {
  await measureEach(`release with a result: ${name}`, async () =>
    leaseCall(await hold(), 'release', { status: 'SUCCEEDED', result_data: make() }),
  );
  await measureEach(`steps: one of ${name}`, async () =>
    leaseCall(await hold(), 'steps', { steps: [{ name: 'a', status: 'completed', result: make() }] }),
  );
  await measureEach(`enqueue a child: ${name}`, async () =>
    leaseCall(await hold(), 'enqueue', { key: 'a', job_type: 'x', addon_id: 'children', payload: make() }),
  );
  await measureEach(`resolve with a result: ${name}`, async () => {
    const { job } = await paused();
    return { path: `/api/jobs/${job}/resolve`, body: { result: make() } };
  });
  await measureEach(`ask, answer: ${name}`, async () => {
    const of = await hold();
    const answered = await call<{ question_id: string }>(
      'POST',
      `/api/scheduler/lease/${of.leaseId}/ask`,
      leaseCall(of, 'ask', { name: 'q', title: 'Go on?', schema: { type: 'object' } }).body,
    );
    const answer = make() as Record<string, unknown>;
    return { path: `/api/questions/${answered.question_id}/answer`, body: { answer } };
  });
}
/** As many parts as the schema of a question may have, and as many comparisons as an answer may need. */
const costlySchema = {
  type: 'object',
  properties: { list: { type: 'array', items: { anyOf: Array.from({ length: 99 }, (_, n) => ({ const: n })) } } },
};
const wideSchema = {
  type: 'object',
  properties: Object.fromEntries(Array.from({ length: 490 }, (_, n) => [`field ${n}`, { type: 'string' }])),
};
await measureEach('ask: 490 fields', async () =>
  leaseCall(await hold(), 'ask', { name: 'q', title: 'Go on?', schema: wideSchema }),
);
await measureEach('answer: 70 items with 99 alternatives each', async () => {
  const of = await hold();
  const question = { name: 'q', title: 'Go on?', schema: costlySchema };
  const { path, body } = leaseCall(of, 'ask', question);
  const { question_id } = await call<{ question_id: string }>('POST', path, body);
  return { path: `/api/questions/${question_id}/answer`, body: { answer: { list: Array(70).fill(98) } } };
});
async function paused(): Promise<{ job: string }> {
  const { id } = await call<{ id: string }>('POST', '/api/jobs', {
    type: 'bench.none',
    run_at: '2099-01-01T00:00:00Z',
  });
  await call('POST', `/api/jobs/${id}/pause`, {});
  return { job: id };
}
await measureEach('status with the longest note', async () => {
  const { jobId } = await hold();
  return {
    path: `/api/scheduler/jobs/${jobId}/status`,
    body: { state: 'RUNNING', worker_id: 'w', note: 'x'.repeat(2000) },
  };
});
await measureEach('release with an error of 1 MB', async () =>
  leaseCall(await hold(), 'release', {
    status: 'FAILED',
    error: { message: 'x'.repeat(9000), stack: 'y'.repeat(megabyte), details: unsorted(900) },
  }),
);
const largeSteps = (from: number) =>
  Array.from({ length: 1000 }, (_, n) => ({
    name: `s${from + n}`,
    position: from + n,
    status: 'completed',
    result: { text: 'x'.repeat(900) },
  }));
await measureEach('steps: 1,000 of 900 bytes', async () => leaseCall(await hold(), 'steps', { steps: largeSteps(0) }));
const numbers = payloads['49,000 numbers'];
let stored: Held | undefined;
async function withCalls(): Promise<Held> {
  if (stored !== undefined) return stored;
  stored = await hold();
  for (let n = 0; n < 30; n++) {
    await sendCall(stored, 'steps', {
      steps: [{ name: `n${n}`, position: n, status: 'completed', result: numbers?.() }],
    });
  }
  for (let n = 0; n < 3; n++) await sendCall(stored, 'steps', { steps: largeSteps(1000 * (n + 1)) });
  return stored;
}
await measureEach('calls, in parts: numbers', async () => leaseCall(await withCalls(), 'calls', { after: '' }));
await measureEach('calls, in parts: small', async () => leaseCall(await withCalls(), 'calls', { after: 'ns' }));
await measureEach('calls, all at once', async () => leaseCall(await withCalls(), 'calls', {}));
await measureEach('GET a job with many steps', async () => ({
  method: 'GET',
  path: `/api/jobs/${(await withCalls()).jobId}`,
}));
await measureEach('children: 1,000', async () =>
  leaseCall(await hold(), 'children', {
    name: 'fan',
    jobs: Array.from({ length: 1000 }, (_, n) => ({
      job_type: 'x',
      addon_id: 'fan',
      payload: { n, text: 'x'.repeat(800) },
    })),
  }),
);
await measureEach('children: 9,900', async () =>
  leaseCall(await hold(), 'children', {
    name: 'fan',
    jobs: Array.from({ length: 9_900 }, () => ({ job_type: 'x', addon_id: 'fan' })),
  }),
);
await measureEach('sleep', async () => leaseCall(await hold(), 'sleep', { name: 's', seconds: 3600 }));
await measureEach('event: a match of 32 kB', async () =>
  leaseCall(await hold(), 'event', { name: 'e', event: 'paid', match: { text: 'x'.repeat(32_000) } }),
);
await measureEach('ask: context of 256 kB, schema of 64 kB', async () =>
  leaseCall(await hold(), 'ask', {
    name: 'q',
    title: 'Go on?',
    context: { list: Array.from({ length: 15_000 }, (_, n) => n * 1.000001) },
    schema: {
      type: 'object',
      properties: Object.fromEntries(
        Array.from({ length: 1400 }, (_, n) => [`f${n}`, { type: 'string', maxLength: 9 }]),
      ),
    },
  }),
);
await measure('GET questions, 200', 'GET', '/api/questions?limit=200');
await measure('POST event from outside of 64 kB', 'POST', '/api/events/paid', () => ({
  data: { list: Array.from({ length: 12_000 }, (_, n) => n), text: 'x'.repeat(5) },
}));
await measure('POST event from outside: 20,000 nested fields', 'POST', '/api/events/paid', () => ({
  data: { list: Array.from({ length: 5_000 }, (_, n) => ({ [n.toString(36)]: 1 })) },
}));
for (const [name, make] of Object.entries(payloads)) {
  await measure(`POST schedule: ${name}`, 'POST', '/api/schedules', () => ({
    name: `p${count++}`,
    cron: '0 8 * * *',
    job: { target_id: 's', ...job(make()) },
  }));
}
await measureEach('POST run of a schedule', async () => {
  const { id } = await call<{ id: string }>('POST', '/api/schedules', {
    name: `r${count++}`,
    cron: '0 8 * * *',
    job: { target_id: 's', ...job(numbers?.()) },
  });
  return { path: `/api/schedules/${id}/run`, body: {} };
});
let batches = 0;
await measure('POST batch of 1,000 jobs with 10 edges each', 'POST', '/api/jobs/batch', () => edges(10));
await measure('POST batch of 1,000 jobs with 100 edges each: refused', 'POST', '/api/jobs/batch', () => edges(100));
function edges(each: number) {
  batches += 1;
  const key = (n: number) => `${batches}.${n}`;
  const before = (n: number) => Array.from({ length: Math.min(n, each) }, (_, m) => key(m));
  return {
    jobs: Array.from({ length: 1000 }, (_, n) => ({ type: 'bench.none', client_request_id: key(n), after: before(n) })),
  };
}
if (isSelected('bulk: retry of 1,000 ids', 'GET webhook deliveries, 200', 'GET deliveries of one job')) {
  const failing = Array.from({ length: 1000 }, () => ({
    type: 'bench.fail',
    on_error: 'continue',
    webhook_url: 'http://127.0.0.1:9/',
  }));
  await send('POST', '/api/jobs/batch', { jobs: failing });
}
await measureEach('bulk: retry of 1,000 ids', async () => {
  const ids: string[] = [];
  let cursor = '';
  do {
    const page = await call<{ jobs: { id: string }[]; next_cursor: string | null }>(
      'GET',
      `/api/jobs?type=bench.fail&limit=200${cursor}`,
    );
    ids.push(...page.jobs.map(({ id }) => id));
    cursor = page.next_cursor === null ? '' : `&cursor=${encodeURIComponent(page.next_cursor)}`;
  } while (cursor !== '' && ids.length < 1000);
  return { path: '/api/operations', body: { action: 'retry', filter: { ids: ids.slice(0, 1000) } } };
});
await measure('bulk: cancel all', 'POST', '/api/operations', () => ({
  action: 'cancel',
  filter: { type: 'bench.fail' },
}));
await measure('GET webhook deliveries, 200', 'GET', '/api/webhooks/deliveries?limit=200');
await measure('GET operations, 200', 'GET', '/api/operations?limit=200');

await client.terminate();
await db.query(`drop schema ${tenant.schema} cascade`).catch(() => {});
await db.close();
await daemon.stop(0);
await embedded?.stop();
process.exit(0);
