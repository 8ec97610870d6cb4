// One daemon of W13, with its defaults. Says 'up' when it runs, stops when it is asked to.
import { randomBytes } from 'node:crypto';
import { Daemon } from '../../dist/daemon/daemon.js';
import { loadConfig } from '../../dist/kernel/config.js';
import { createLogger } from '../../dist/kernel/logger.js';
import { HandlerRegistry } from '../../dist/worker/handlers/handler-registry.js';

const noop = { type: 'noop', run: () => {} };
const compute = {
  type: 'compute',
  run: ({ payload }) => {
    const end = performance.now() + payload.ms;
    while (performance.now() < end);
  },
};
const env = {
  PORT: '0',
  LOG_LEVEL: process.env.BENCH_LOG ?? 'silent',
  WORKER_ID: process.env.WORKER_ID,
  ADMIN_API_KEY: randomBytes(24).toString('hex'),
};
const daemon = new Daemon({
  config: loadConfig(env),
  databaseUrl: process.env.BENCH_URL,
  logger: createLogger(env.LOG_LEVEL),
  handlers: new HandlerRegistry([noop, compute]),
  version: 'bench',
});
await daemon.start();
const before = process.cpuUsage();
process.on('message', async (message) => {
  if (message !== 'stop') return;
  const { user, system } = process.cpuUsage(before);
  const { some = 0, none = 0 } = await claimsByResult();
  process.send({ cpuMicroseconds: user + system, claims: some + none, emptyClaims: none });
  await daemon.stop(1000);
  process.exit(0);
});
process.send('up');

async function claimsByResult() {
  const { values } = await daemon.metrics.registry.getSingleMetric('leasehold_claims_total').get();
  const counts = {};
  for (const { labels, value } of values) counts[labels.result] = (counts[labels.result] ?? 0) + value;
  return counts;
}
