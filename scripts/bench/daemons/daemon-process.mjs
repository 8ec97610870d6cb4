// One daemon of W13 or of growth, with its defaults. Says 'up' when it runs, reports and stops when it is asked to.
import { randomBytes } from 'node:crypto';
import { Daemon } from '../../../dist/daemon/daemon.js';
import { loadConfig } from '../../../dist/kernel/config.js';
import { createLogger } from '../../../dist/kernel/logger.js';
import { HandlerRegistry } from '../../../dist/worker/handlers/handler-registry.js';

const noop = { type: 'noop', run: () => {} };
const compute = {
  type: 'compute',
  run: ({ payload }) => {
    const end = performance.now() + payload.ms;
    while (performance.now() < end);
  },
};
const { RETENTION_STALE_AFTER_SECONDS, RETENTION_DELETE_AFTER_SECONDS, BENCH_EVENT_SECONDS } = process.env;
const env = {
  PORT: '0',
  LOG_LEVEL: process.env.BENCH_LOG ?? 'silent',
  WORKER_ID: process.env.WORKER_ID,
  ADMIN_API_KEY: randomBytes(24).toString('hex'),
  ...(RETENTION_STALE_AFTER_SECONDS && { RETENTION_STALE_AFTER_SECONDS, RETENTION_DELETE_AFTER_SECONDS }),
};
const config = loadConfig(env);
// The setting has whole days.
if (BENCH_EVENT_SECONDS) config.retentionEventDays = Number(BENCH_EVENT_SECONDS) / 86_400;
const daemon = new Daemon({
  config,
  databaseUrl: process.env.BENCH_URL,
  logger: createLogger(env.LOG_LEVEL),
  handlers: new HandlerRegistry([noop, compute]),
  version: 'bench',
});
await daemon.start();
const before = process.cpuUsage();
process.on('message', async (message) => {
  const { user, system } = process.cpuUsage(before);
  const { some = 0, none = 0 } = await countBy('leasehold_claims_total', 'result');
  const ended = Object.values(await countBy('leasehold_job_attempts_total', 'outcome')).reduce(
    (sum, one) => sum + one,
    0,
  );
  process.send({ cpuMicroseconds: user + system, claims: some + none, emptyClaims: none, ended });
  if (message !== 'stop') return;
  await daemon.stop(1000);
  process.exit(0);
});
process.send('up');

async function countBy(metric, label) {
  const { values } = await daemon.metrics.registry.getSingleMetric(metric).get();
  const counts = {};
  for (const { labels, value } of values) counts[labels[label]] = (counts[labels[label]] ?? 0) + value;
  return counts;
}
