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
  process.send({ cpuMicroseconds: user + system });
  await daemon.stop(1000);
  process.exit(0);
});
process.send('up');
