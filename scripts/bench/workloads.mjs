// The workloads of `npm run bench`, against an adapter (see leasehold.mjs). Each returns plain numbers.
import { performance } from 'node:perf_hooks';
import { setTimeout as sleep } from 'node:timers/promises';

const now = () => performance.now();
const times = (n, make) => Array.from({ length: n }, (_, i) => make(i));
const round = (x, digits = 1) => Math.round(x * 10 ** digits) / 10 ** digits;

export const workloads = {
  W1: {
    title: 'drain: no-op jobs per second, until the store says that all are done',
    better: 'higher',
    options: { n: 100_000 },
    async run(system, { options, calm }) {
      await system.reset({});
      await putIn(
        system,
        times(options.n, (i) => ({ i })),
        10_000,
      );
      await calm();
      return { value: await drain(system, options) };
    },
  },
  W2: {
    title: 'single enqueues per second, 10 callers at once',
    better: 'higher',
    options: { seconds: 5 },
    async run(system, { options }) {
      await system.reset({});
      let count = 0;
      const start = now();
      const end = start + options.seconds * 1000;
      const caller = async () => {
        while (now() < end) {
          await system.enqueueOne({ i: count });
          count += 1;
        }
      };
      await Promise.all(times(10, caller));
      return { value: round((count * 1000) / (now() - start)) };
    },
  },
  W3: {
    title: 'from enqueue to the start of the handler, idle worker: p50 ms',
    better: 'lower',
    options: { seconds: 10 },
    async run(system, { options }) {
      await system.reset({});
      return latency(system, options, (i) => ({ i }));
    },
  },
  W4: {
    title: 'ordered: jobs per second over 1,000 lanes, order and overlap checked',
    better: 'higher',
    options: { n: 60_000, keys: 1000 },
    async run(system, { options, calm }) {
      await system.reset({ ordered: true });
      const items = times(options.n, (i) => ({ i, key: `k${i % options.keys}`, seq: Math.floor(i / options.keys) }));
      await putIn(system, items, options.keys);
      await calm();
      const checked = orderCheck();
      const value = await drain(system, { ...options, handler: checked.handler });
      return { value, outOfOrder: checked.outOfOrder(), overlap: checked.overlap() };
    },
  },
  W5: {
    title: 'free jobs per second, with 100,000 older jobs behind held lanes',
    better: 'higher',
    options: { n: 2000, blocked: 100_000 },
    async run(system, { options, calm }) {
      await system.reset({ ordered: true });
      await holdBack(system, options.blocked);
      await putIn(
        system,
        times(options.n, (i) => ({ i, key: `f${i}` })),
        options.n,
      );
      await calm();
      return { value: await drain(system, { ...options, untilStarted: true }) };
    },
  },
  W6: {
    title: 'an idle worker: transactions per second',
    better: 'lower',
    options: { seconds: 30 },
    async run(system, { options, calm, transactions }) {
      await system.reset({});
      const worker = await system.startWorker({ concurrency: options.concurrency, handler: () => {} });
      await calm();
      await sleep(12_000); // until then the server's counters still tell of the start
      const idle = await measureIdle(options.seconds, transactions);
      await worker.stop();
      return idle;
    },
  },
};

/** Many tenants in one process: what they cost while all are idle, and then what a job in one of them costs. */
export const W7 = {
  title: 'idle tenants in one process: transactions/s',
  better: 'lower',
  options: { tenants: 50, seconds: 30, concurrency: 1, jobs: 100 },
  async run(open, { options, calm, transactions }) {
    const shared = {};
    const systems = [];
    for (let i = 0; i < options.tenants; i++) {
      const system = await open({ schema: `t_bench_${i}`, shared });
      await system.reset({});
      systems.push(system);
    }
    const workers = [];
    for (const system of systems) {
      workers.push(await system.startWorker({ concurrency: options.concurrency, handler: () => {} }));
    }
    await calm();
    await sleep(35_000); // pools close idle connections after ten to thirty seconds
    const idle = await measureIdle(options.seconds, transactions);
    const perJob = await transactionsPerJob(systems[0], options.jobs, idle.value, transactions);
    await Promise.race([Promise.allSettled(workers.map((worker) => worker.stop())), sleep(10_000)]);
    return { ...idle, perJob };
  },
};

/** Twenty jobs a second into one tenant; what all of them cost anyway is taken off. */
async function transactionsPerJob(system, jobs, idlePerSecond, transactions) {
  const before = await transactions();
  const start = now();
  for (let i = 0; i < jobs; i++) {
    await system.enqueueOne({ i });
    await sleep(50);
  }
  await sleep(11_000); // the last of the server's counters come when a connection has been idle for ten seconds
  const elapsed = (now() - start) / 1000;
  const after = await transactions();
  return round((after.count - before.count - 1 - idlePerSecond * elapsed) / jobs, 2);
}

async function putIn(system, items, size) {
  for (let i = 0; i < items.length; i += size) await system.enqueueBulk(items.slice(i, i + size));
}

async function holdBack(system, count) {
  if (count === 0) return;
  const keys = times(1000, (i) => `b${i}`);
  await putIn(
    system,
    times(count, (i) => ({ i, key: keys[i % keys.length] })),
    10_000,
  );
  await system.block(keys);
}

/** Jobs per second from starting the worker until nothing that can run is left in the store. */
async function drain(system, { n, concurrency, handler = () => {}, untilStarted = false }) {
  let seen = 0;
  let all;
  const done = new Promise((resolve) => {
    all = resolve;
  });
  const count = () => {
    seen += 1;
    if (seen >= n) all();
  };
  const start = now();
  const worker = await system.startWorker({
    concurrency,
    handler: (item) => {
      const result = handler(item);
      return result?.then ? result.then(count) : count();
    },
  });
  await Promise.race([done, sleep(170_000)]);
  const startedAt = now();
  while (await system.pending()) await sleep(5);
  const end = untilStarted ? startedAt : now();
  await Promise.race([worker.stop(), sleep(20_000)]);
  if (seen < n) throw new Error(`only ${seen} of ${n} jobs ran`);
  return round((n * 1000) / (end - start));
}

async function latency(system, { seconds, concurrency }, item) {
  const sent = [];
  const delays = [];
  const worker = await system.startWorker({ concurrency, handler: ({ i }) => void delays.push(now() - sent[i]) });
  await sleep(1500);
  const count = seconds * 50;
  const start = now();
  const adding = [];
  for (let i = 0; i < count; i++) {
    const wait = start + i * 20 - now();
    if (wait > 0) await sleep(wait);
    sent[i] = now();
    adding.push(system.enqueueOne(item(i)));
  }
  await Promise.all(adding);
  const limit = now() + 4000;
  while (delays.length < count && now() < limit) await sleep(20);
  await Promise.race([worker.stop(), sleep(10_000)]);
  delays.sort((a, b) => a - b);
  const at = (q) => round(delays[Math.min(delays.length - 1, Math.ceil(q * delays.length) - 1)] ?? Number.NaN, 2);
  return { value: at(0.5), p95: at(0.95), p99: at(0.99), delivered: delays.length };
}

function orderCheck() {
  const last = new Map();
  const running = new Set();
  let outOfOrder = 0;
  let overlap = 0;
  const handler = async ({ key, seq }) => {
    if (running.has(key)) overlap += 1;
    running.add(key);
    if (seq !== (last.get(key) ?? -1) + 1) outOfOrder += 1;
    last.set(key, seq);
    await null;
    running.delete(key);
  };
  return { handler, outOfOrder: () => outOfOrder, overlap: () => overlap };
}

async function measureIdle(seconds, transactions) {
  const cpu = process.cpuUsage();
  const before = await transactions();
  const start = now();
  await sleep(seconds * 1000);
  const used = process.cpuUsage(cpu);
  const elapsed = (now() - start) / 1000;
  await sleep(1200); // the server's counters lag by a second
  const after = await transactions();
  return {
    value: round(Math.max(0, after.count - before.count - 1) / (elapsed + 1.2), 2),
    cpuPercent: round((used.user + used.system) / 1e4 / elapsed, 2),
    connections: after.connections,
    rssMb: Math.round(process.memoryUsage().rss / 2 ** 20),
  };
}
