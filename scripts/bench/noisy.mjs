// A quiet tenant beside one with fifty times its rate, in one daemon: what is left of its throughput, and what its
// latency becomes. Both enqueue at a steady rate; the quiet one is measured alone first.
import { performance } from 'node:perf_hooks';
import { setTimeout as sleep } from 'node:timers/promises';

const round = (x, digits = 2) => Math.round(x * 10 ** digits) / 10 ** digits;

export const noisy = {
  title: 'a tenant beside one with 50 times its rate: percent of its throughput that is left',
  better: 'higher',
  options: { perSecond: 20, times: 50, seconds: 10 },
  async run(open, { options, calm }) {
    const shared = {};
    const quiet = await open({ schema: 't_quiet', shared });
    const loud = await open({ schema: 't_noisy', shared });
    for (const system of [quiet, loud]) await system.reset({});
    const delays = new Map();
    const handler = ({ who, sentAt }) => void delays.get(who)?.push(performance.now() - sentAt);
    const worker = await quiet.startWorker({ concurrency: options.concurrency, handler });
    await calm();
    const measure = async (tenants) => {
      for (const { who } of tenants) delays.set(who, []);
      await Promise.all(tenants.map((tenant) => enqueueSteadily(tenant, options.seconds)));
      await sleep(2000); // the last jobs start
      return summary(delays.get('quiet'), options);
    };
    const quietTenant = { who: 'quiet', system: quiet, perSecond: options.perSecond };
    const alone = await measure([quietTenant]);
    const beside = await measure([
      quietTenant,
      { who: 'noisy', system: loud, perSecond: options.perSecond * options.times },
    ]);
    const noisyStarted = delays.get('noisy').length;
    await Promise.race([worker.stop(), sleep(10_000)]);
    return {
      value: round((beside.perSecond / alone.perSecond) * 100, 1),
      p50Ratio: round(beside.p50 / alone.p50),
      p99Ratio: round(beside.p99 / alone.p99),
      alone,
      beside,
      noisyPerSecond: round(noisyStarted / options.seconds, 0),
    };
  },
};

/** A tenth of a second at a time: one timer per job would measure the timers. */
async function enqueueSteadily({ who, system, perSecond }, seconds) {
  const start = performance.now();
  const sent = [];
  for (let tick = 0; tick < seconds * 10; tick++) {
    const wait = start + tick * 100 - performance.now();
    if (wait > 0) await sleep(wait);
    for (let n = 0; n < perSecond / 10; n++) sent.push(system.enqueueOne({ who, sentAt: performance.now() }));
  }
  await Promise.allSettled(sent);
}

function summary(delays, { seconds }) {
  const sorted = [...delays].sort((a, b) => a - b);
  const at = (q) => round(sorted[Math.min(sorted.length - 1, Math.ceil(q * sorted.length) - 1)] ?? Number.NaN);
  return { perSecond: round(sorted.length / seconds, 1), p50: at(0.5), p99: at(0.99) };
}
