// W10: jobs of five durable steps per second, beside the same work as five phases and as one plain run.
// W11: 10,000 sleepers that are due in the same second: until all have woken and run, and the transactions that it takes.
// W14: free jobs per second with 100,000 limited jobs in front, beside the same without them.
// The adapter of a peer that has durable steps may export a function W10; the others have no peers in this harness.
import { performance } from 'node:perf_hooks';
import { setTimeout as sleep } from 'node:timers/promises';
import { defineJob } from 'leasehold';
import { createLeasehold } from 'leasehold/server';
import pg from 'pg';

const slug = 'durable';
const jobs = `"tenant_${slug}".jobs`;
const names = ['a', 'b', 'c', 'd', 'e'];
const round = (x, digits = 1) => Math.round(x * 10 ** digits) / 10 ** digits;

export const W10 = {
  title: 'jobs of five durable steps per second',
  better: 'higher',
  options: { n: 2000 },
  run: ({ options, calm, url }) =>
    withTenant(url, async (bench) => {
      const types = {
        steps: defineJob({
          type: 'steps',
          run: async ({ step }) => {
            for (const name of names) await step(name, () => name);
          },
        }),
        phases: defineJob({ type: 'phases', phases: names.map((name) => ({ name, run: () => name })) }),
        plain: defineJob({ type: 'plain', run: () => 'done' }),
      };
      const rates = {};
      for (const type of Object.values(types)) rates[type.type] = await bench.rate(type, options.n, calm);
      return { value: rates.steps, phases: rates.phases, plain: rates.plain };
    }),
};

export const W11 = {
  title: '10,000 sleepers due in the same second: seconds until all have run',
  better: 'lower',
  options: { n: 10_000, sleepSeconds: 60 },
  run: ({ options, transactions, url }) =>
    withTenant(url, async (bench) => {
      const { n, sleepSeconds } = options;
      const sleeper = defineJob({
        type: 'sleeper',
        run: async ({ sleepUntil, payload }) => sleepUntil(payload.until),
      });
      const until = new Date(Date.now() + sleepSeconds * 1000).toISOString();
      const worker = await bench.start([sleeper]);
      await bench.enqueue(worker, 'sleeper', n, { until });
      await bench.until(`select count(*) = ${n} as done from ${jobs} where status = 'WAITING'`);
      const left = Date.parse(until) - Date.now();
      if (left < 2000) throw new Error('the sleepers were not all asleep in time; set sleepSeconds higher');
      await sleep(left - 1000);
      const before = await transactions();
      await bench.until(`select not exists (select 1 from ${jobs} where status <> 'SUCCESS') as done`, 50);
      const value = round((Date.now() - Date.parse(until)) / 1000, 2);
      const after = await transactions();
      await worker.stop({ graceSeconds: 1 });
      return { value, transactions: after.count - before.count };
    }),
};

export const W14 = {
  title: 'free jobs per second, with 100,000 limited jobs in front',
  better: 'higher',
  options: { n: 20_000, limited: 100_000 },
  run: ({ options, calm, url }) =>
    withTenant(url, async (bench) => {
      const free = defineJob({ type: 'free', run: () => {} });
      const withoutBacklog = await bench.rate(free, options.n, calm);
      const limits = [{ rate: 1, per: 'second', key: 'payload.account' }];
      const limited = defineJob({ type: 'limited', limits, run: () => {} });
      const sender = await bench.start([limited], { workerConcurrency: 1, tenantConcurrency: 1 });
      await bench.enqueue(sender, 'limited', options.limited, (i) => ({ account: i % 100 }));
      await sender.stop({ graceSeconds: 1 });
      const value = await bench.rate(free, options.n, calm, [limited]);
      return { value, withoutBacklog };
    }),
};

/** By the indexes: reading all jobs would slow down what is measured. */
function isDrained(type) {
  return `select not exists (select 1 from ${jobs} where status = 'QUEUED' and lane_head and not remote and not gated and type = '${type}')
    and not exists (select 1 from "tenant_${slug}".leases l cross join unnest(l.job_ids) as held(id) join ${jobs} j on j.id = held.id
                     where l.state = 'ACTIVE' and j.status = 'RUNNING' and j.type = '${type}') as done`;
}

/** A tenant of its own, and what the workloads do in it. */
async function withTenant(url, run) {
  const logger = process.env.BENCH_LOG === undefined ? false : console;
  // The planner expects a match near the front of the table, and reads all limited jobs before it finds one.
  const reader = new pg.Pool({ connectionString: url, max: 1, options: '-c enable_seqscan=off' });
  const start = async (definitions, settings = {}) => {
    const worker = await createLeasehold({ databaseUrl: url, jobs: definitions, logger, settings });
    await worker.start();
    return worker;
  };
  const until = async (question, everyMs = 100) => {
    while (!(await reader.query(question)).rows[0].done) await sleep(everyMs);
  };
  const enqueue = async (worker, job, count, payload) => {
    const payloadOf = typeof payload === 'function' ? payload : () => payload;
    for (let i = 0; i < count; i += 1000) {
      const size = Math.min(1000, count - i);
      await worker.enqueueMany(
        slug,
        Array.from({ length: size }, (_, n) => ({ job, payload: payloadOf(i + n) })),
      );
    }
  };
  const rate = async (definition, count, calm, others = []) => {
    // Enqueued by a program without workers, so that the drain begins with all of them.
    const sender = await createLeasehold({ databaseUrl: url, jobs: [definition, ...others], logger });
    await enqueue(sender, definition.type, count, {});
    await sender.stop();
    await calm();
    const from = performance.now();
    const worker = await start([definition, ...others]);
    await until(isDrained(definition.type));
    const perSecond = round((count * 1000) / (performance.now() - from));
    await worker.stop({ graceSeconds: 1 });
    return perSecond;
  };
  try {
    const operator = await createLeasehold({ databaseUrl: url, logger });
    await dropEverything(reader);
    await operator.migrate();
    await operator.tenants.create(slug);
    await operator.stop();
    return await run({ start, enqueue, until, rate });
  } finally {
    await reader.end();
  }
}

async function dropEverything(reader) {
  const { rows } = await reader.query(
    `select nspname from pg_namespace where nspname = 'leasehold' or nspname like 'tenant\\_%'`,
  );
  for (const { nspname } of rows) await reader.query(`drop schema "${nspname}" cascade`);
}
