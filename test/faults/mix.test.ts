// Several daemons under load while processes, connections, the database and clocks fail, and people interfere, at
// random. For some seconds in `npm test`; `npm run test:faults` runs it for minutes, with a server and a standby of its own.
import { test } from 'vitest';
import { Database } from '../../server/database/database.ts';
import { createLogger } from '../../server/kernel/logger.ts';
import { useTenant } from '../support/postgres/database.ts';
import { startPrivateServer } from '../support/postgres/private-server.ts';
import { startStandby } from '../support/postgres/standby.ts';
import { finishRun, runMix, runOptions } from './run.ts';
import { World } from './world.ts';

const shared = useTenant();
const { minutes, seed } = runOptions();
const runMs = minutes > 0 ? minutes * 60_000 : 6_000;

async function createWorld(): Promise<World> {
  if (minutes === 0) return World.create({ context: shared, seed });
  const server = await startPrivateServer();
  const standby = await startStandby(server, { synchronous: true });
  const ports = [server.port, standby.port];
  const url = server.url.replace(/@[^/]*/, `@${ports.map((port) => `127.0.0.1:${port}`).join(',')}`);
  const db = new Database({ url, poolMax: 4, logger: createLogger('silent') });
  return World.create({ context: { ...server, url, db }, ports, server, standby, seed });
}

test(
  'mix: whatever happens to processes, connections and servers, every acknowledged job ends once and in order',
  async () => {
    console.log(`LEASEHOLD_TEST_SEED=${seed}`);
    const world = await createWorld();
    try {
      const names = minutes > 0 ? ['one', 'two', 'three'] : ['one', 'two'];
      await Promise.all(names.map((name) => world.addDaemon(name)));
      await world.follow();
      await runMix(world, runMs);
      await finishRun(world);
    } finally {
      if (world.server !== undefined) await world.context.db.close();
    }
  },
  runMs + 300_000,
);
